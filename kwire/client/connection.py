"""One connection to a broker: a request at a time, each in the newest version that both sides speak."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, TypeVar

from kwire.client.failure import Lost
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, NotInVersion, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
FIRST_VERSION: Final = 3
"""Of ApiVersions: whoever does not know it says in version 0 what it knows instead (KIP-511)."""

NEWEST: Final[Mapping[int, int]] = {
    # Those in which topics are told by their names, as people have them (KIP-516).
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.DELETE_TOPICS: 5,
    # Those of one key and one group, which every release knows: many at once came later (KIP-699, KIP-709).
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.OFFSET_FETCH: 7,
}
"""The newest versions that are spoken here, where newer ones are declared."""

A = TypeVar("A", bound=Message)


class Connection:
    """A socket on which requests are answered one after the other."""

    def __init__(self, host: str, port: int, client_id: str, timeout_seconds: float) -> None:
        """Connect, and learn which versions the peer speaks. Lost; WireError where it is no broker."""
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._asked = 0
        with self._losing():
            self._socket = socket.create_connection((host, port), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        try:
            self._ranges = self._negotiate()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._stream.close()
            self._socket.close()

    def version(self, api_key: int) -> int:
        """In which version a request is sent. ApiError where there is none that both sides speak."""
        api = API_VERSIONS[api_key]
        most = min(api.max_version, NEWEST.get(api_key, api.max_version))
        served = self._ranges.get(api_key)
        if served is None or served[1] < api.min_version or served[0] > most:
            there = "not at all" if served is None else f"in versions {served[0]} to {served[1]}"
            known = f"{api.min_version} to {most} are known here"
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} answers {api.name} {there}, and {known}",
            )
        return min(most, served[1])

    def ask(self, request: Message, kind: type[A], seconds: float | None = None) -> A:
        """A request's answer. ApiError for an API that is not served, Lost, WireError.

        `seconds` is for requests that the broker may let wait, such as a fetch.
        """
        return self._exchange(request, kind, self.version(request.API_KEY), seconds)

    def tell(self, request: Message) -> None:
        """Send a request that is not answered: a Produce without acknowledgements. ApiError, Lost."""
        version = self.version(request.API_KEY)
        with self._losing():
            self._send(request, version)

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="kwire", client_software_version="client")
        answer = self._exchange(request, ApiVersionsResponse, FIRST_VERSION)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
        if answer.error_code:
            raise WireError(f"ApiVersions is answered with error {answer.error_code}")
        return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def _exchange(self, request: Message, kind: type[A], version: int, seconds: float | None = None) -> A:
        with self._losing():
            self._socket.settimeout(self._timeout_seconds if seconds is None else seconds)
            self._send(request, version)
            size = int.from_bytes(self._read(4), "big", signed=True)
            if not 4 <= size <= MAX_ANSWER_BYTES:
                raise WireError(
                    f"{self.address} does not answer as Kafka does: name a listener that is PLAINTEXT"
                )
            correlation_id, answer = decode_response(kind, version, self._read(size))
        if correlation_id != self._asked:
            raise WireError(f"{self.address} answers request {correlation_id} instead of {self._asked}")
        return answer

    def _send(self, request: Message, version: int) -> None:
        self._asked += 1
        try:
            self._socket.sendall(encode_request(request, version, self._asked, self._client_id))
        except NotInVersion as error:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} is too old to be asked that ({error})",
            ) from error

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("closed the connection")
        return data

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """What a socket fails with, as Lost."""
        try:
            yield
        except OSError as error:
            raise Lost(f"{self.address}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error)).lower()
