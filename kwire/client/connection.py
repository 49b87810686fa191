"""One connection to a broker: a request at a time, each in the newest version that both sides speak."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, TypeVar

from kwire.client.errors import ClosedByPeer, Disconnected, SecurityMismatch, raise_for_code
from kwire.client.security import PLAINTEXT, Security
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, NotInVersion, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
TLS_ALERT: Final = 0x1503
"""What a listener with TLS begins to answer with who does not speak it: an alert, of TLS 1."""
REAUTHENTICATE_FRACTION: Final = 0.85
"""At which part of a session one says anew who one is, as Kafka's clients do at the earliest (KIP-368)."""
MIN_REAUTHENTICATE_SECONDS: Final = 1.1
"""And no sooner, where a session is short: brokers refuse it within a second of the last time."""
API_VERSIONS_VERSION: Final = 3
"""Of ApiVersions: whoever does not know it says in version 0 what it knows instead (KIP-511)."""

MAX_VERSIONS: Final[Mapping[int, int]] = {
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

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        timeout_seconds: float,
        security: Security = PLAINTEXT,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect, learn which versions the peer speaks, and say who one is where that is wanted.

        Lost; WireError where it is no broker, SecurityMismatch where it wants to be spoken to in another
        way; ApiError where it does not take who one says that one is.
        """
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._security = security
        self._now = now
        self._correlation_id = 0
        self._reauthenticate_at: float | None = None
        """When to say anew who one is, where a session has an end (KIP-368)."""
        with self._diagnosing(), self._translating_errors():
            self._socket = self._connect()
        self._stream = self._socket.makefile("rb")
        try:
            with self._diagnosing():
                self._ranges = self._negotiate()
            if security.credentials is not None:
                self._authenticate()
        except BaseException:
            self.close()
            raise
        self._has_response = False
        """Whether anything was answered by now."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        response_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._stream.close()
            self._socket.close()

    def version(self, api_key: int) -> int:
        """In which version a request is sent. ApiError where there is none that both sides speak."""
        api = API_VERSIONS[api_key]
        most = min(api.max_version, MAX_VERSIONS.get(api_key, api.max_version))
        served = self._ranges.get(api_key)
        if served is None or served[1] < api.min_version or served[0] > most:
            there = "not at all" if served is None else f"in versions {served[0]} to {served[1]}"
            known = f"{api.min_version} to {most} are known here"
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} answers {api.name} {there}, and {known}",
            )
        return min(most, served[1])

    def send(self, request: Message, response_type: type[A], seconds: float | None = None) -> A:
        """A request's answer. ApiError for an API that is not served, Lost, WireError.

        `seconds` is for requests that the broker may let wait, such as a fetch.
        """
        version = self._prepare(request)
        if self._has_response or self._security.credentials is not None:
            return self._exchange(request, response_type, version, seconds)
        with self._diagnosing():
            response = self._exchange(request, response_type, version, seconds)
        self._has_response = True
        return response

    def send_one_way(self, request: Message) -> None:
        """Send a request that is not answered: a Produce without acknowledgements. ApiError, Lost."""
        version = self._prepare(request)
        with self._translating_errors():
            self._send(request, version)

    def _prepare(self, request: Message) -> int:
        """The version to send a request in, once the session has not come to its end. ApiError, Lost."""
        version = self.version(request.API_KEY)
        if self._reauthenticate_at is not None and self._now() >= self._reauthenticate_at:
            self._authenticate()
        return version

    def _connect(self) -> socket.socket:
        """A socket on which one may speak. OSError."""
        sock = socket.create_connection((self._host, self._port), self._timeout_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._security.tls
        return sock if tls is None else tls.wrap_socket(sock, server_hostname=self._host)

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="kwire", client_software_version="client")
        response = self._exchange(request, ApiVersionsResponse, API_VERSIONS_VERSION)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
        if response.error_code:
            raise WireError(f"ApiVersions is answered with error {response.error_code}")
        return {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}

    def _authenticate(self) -> None:
        """Say who one is. ApiError where that is not believed, SecurityMismatch, Lost, WireError.

        KIP-43, KIP-152.
        """
        from random import SystemRandom

        from kwire.broker.security.mechanisms import sasl_client
        from kwire.broker.security.sasl import AuthenticationFailed

        credentials = self._security.credentials
        assert credentials is not None
        mechanism = credentials.mechanism
        chosen = self._request(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if chosen.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            plain = self._security._replace(credentials=None).protocol
            raise SecurityMismatch(
                f"{self.address} does not ask who one is: say security.protocol={plain} for this listener"
            )
        if chosen.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            known = " or ".join(chosen.mechanisms)
            raise SecurityMismatch(f"{self.address} does not take sasl.mechanism={mechanism}, but {known}")
        raise_for_code(chosen.error_code, None, f"sasl.mechanism={mechanism} at {self.address}")
        about = f"{'token' if credentials.is_token else 'user'} {credentials.username} at {self.address}"
        client = sasl_client(credentials, SystemRandom())
        try:
            said = client.evaluate(b"")
            while said is not None:
                response = self._request(SaslAuthenticateRequest(auth_bytes=said), SaslAuthenticateResponse)
                raise_for_code(response.error_code, response.error_message, about)
                said = None if client.is_complete else client.evaluate(bytes(response.auth_bytes))
        except AuthenticationFailed as error:
            raise SecurityMismatch(
                f"{self.address} has not shown that it knows the password: {error}"
            ) from error
        lifetime_ms = response.session_lifetime_ms
        if credentials.is_token and not lifetime_ms:
            # It is believed until the controller has removed it, and the next request ends the connection.
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED, about)
        after_seconds = max(REAUTHENTICATE_FRACTION * lifetime_ms / 1000, MIN_REAUTHENTICATE_SECONDS)
        self._reauthenticate_at = self._now() + after_seconds if lifetime_ms > 0 else None

    def _request(self, request: Message, response_type: type[A]) -> A:
        return self._exchange(request, response_type, self.version(request.API_KEY))

    def _exchange(
        self, request: Message, response_type: type[A], version: int, seconds: float | None = None
    ) -> A:
        with self._translating_errors():
            self._socket.settimeout(self._timeout_seconds if seconds is None else seconds)
            self._send(request, version)
            size = int.from_bytes(self._read(4), "big", signed=True)
            if size >> 16 == TLS_ALERT:
                raise ConnectionError("speaks TLS")
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise WireError(
                    f"{self.address} does not answer as Kafka does: name a listener of a broker's"
                )
            correlation_id, response = decode_response(response_type, version, self._read(size))
        if correlation_id != self._correlation_id:
            raise WireError(
                f"{self.address} answers request {correlation_id} instead of {self._correlation_id}"
            )
        return response

    def _send(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        try:
            self._socket.sendall(encode_request(request, version, self._correlation_id, self._client_id))
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
    def _diagnosing(self) -> Iterator[None]:
        """SecurityMismatch instead of Closed where the other side wants to be spoken to otherwise."""
        try:
            yield
        except ClosedByPeer as closed:
            from kwire.client.security_probe import find_mismatch

            mismatch = find_mismatch(self._host, self._port, self._security, self._timeout_seconds)
            if mismatch is not None:
                raise mismatch from closed
            raise

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """What a socket fails with, as Lost; SecurityMismatch where TLS says why."""
        try:
            yield
        except (ConnectionRefusedError, TimeoutError) as error:
            raise Disconnected(f"{self.address}: {_reason(error)}") from error
        except OSError as error:
            has_tls = self._security.tls is not None
            if has_tls:
                from kwire.client.tls import explain_handshake_error

                if mismatch := explain_handshake_error(error, self.address):
                    raise mismatch from error
            response_type = ClosedByPeer if has_tls or isinstance(error, ConnectionError) else Disconnected
            raise response_type(f"{self.address}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error)).lower()
