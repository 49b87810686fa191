"""A connection to a broker: one request at a time, in the latest version that both sides support."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, TypeVar

from kwire.client.errors import ClosedByPeer, Disconnected, SecurityMismatch, raise_for_code
from kwire.client.security import PLAINTEXT, Security
from kwire.host.system_socket import Socket, connect
from kwire.host.system_time import monotonic
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, NotInVersion, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message

MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
TLS_ALERT: Final = 0x1503
"""First bytes of a TLS 1 alert, with which a TLS listener responds to a plaintext request."""
REAUTHENTICATE_FRACTION: Final = 0.85
"""The fraction of a session after which to reauthenticate. Kafka's clients do so no earlier (KIP-368)."""
MIN_REAUTHENTICATE_SECONDS: Final = 1.1
"""The minimum time between authentications: brokers reject a second authentication within a second."""
API_VERSIONS_VERSION: Final = 3
"""Version of the first ApiVersions request; brokers without it respond in version 0 (KIP-511)."""

MAX_VERSIONS: Final[Mapping[int, int]] = {
    # Later versions replace topic names by topic ids (KIP-516).
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.DELETE_TOPICS: 5,
    # Later versions have several keys or groups per request (KIP-699, KIP-709); old brokers lack them.
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.OFFSET_FETCH: 7,
}
"""Latest versions that this client uses, where the protocol has later ones."""

A = TypeVar("A", bound=Message)


class Connection:
    """A connection to one broker, with one request in flight."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        timeout_seconds: float,
        security: Security = PLAINTEXT,
        *,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Connect, negotiate versions, and authenticate if there are credentials.

        Raises Disconnected, WireError for a peer that is not a broker, SecurityMismatch for a broker with
        other security settings, and ApiError if authentication fails.
        """
        self.address = f"{host}:{port}"
        self._host, self._port = host, port
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._security = security
        self._now = now
        self._correlation_id = 0
        self._reauthenticate_at: float | None = None
        """Time to reauthenticate, if the session expires (KIP-368)."""
        with self._diagnosing(), self._translating_errors():
            self._socket = self._connect()
        try:
            with self._diagnosing():
                self._ranges = self._negotiate()
            if security.credentials is not None:
                self._authenticate()
        except BaseException:
            self.close()
            raise
        self._has_response = False
        """Whether the broker has responded to a request after the handshake."""

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
            self._socket.close()

    def version(self, api_key: int) -> int:
        """Return the version for a request. Raises ApiError if client and broker have none in common."""
        api = API_VERSIONS[api_key]
        most = min(api.max_version, MAX_VERSIONS.get(api_key, api.max_version))
        served = self._ranges.get(api_key)
        if served is None or served[1] < api.min_version or served[0] > most:
            fault = (
                f"does not support {api.name}"
                if served is None
                else f"supports {api.name} versions {served[0]} to {served[1]}, and this client supports "
                f"versions {api.min_version} to {most}"
            )
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"the broker at {self.address} {fault}")
        return min(most, served[1])

    def send(self, request: Message, response_type: type[A], seconds: float | None = None) -> A:
        """Send a request and return the response.

        `seconds` overrides the timeout, for requests such as Fetch for which the broker may wait. Raises
        ApiError for an API that the broker does not support, Disconnected, WireError.
        """
        version = self._prepare(request)
        if self._has_response or self._security.credentials is not None:
            return self._exchange(request, response_type, version, seconds)
        with self._diagnosing():
            response = self._exchange(request, response_type, version, seconds)
        self._has_response = True
        return response

    def send_one_way(self, request: Message) -> None:
        """Send a request without a response, a Produce with acks=0. Raises ApiError, Disconnected."""
        version = self._prepare(request)
        with self._translating_errors():
            self._send(request, version)

    def _prepare(self, request: Message) -> int:
        """Return the version of a request, and reauthenticate if necessary. Raises ApiError, Disconnected."""
        version = self.version(request.API_KEY)
        if self._reauthenticate_at is not None and self._now() >= self._reauthenticate_at:
            self._authenticate()
        return version

    def _connect(self) -> Socket:
        """Open the socket, with TLS if configured. Raises OSError."""
        sock = connect(self._host, self._port, self._timeout_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._security.tls
        if tls is None:
            return sock
        return tls.wrap_socket(socket.socket(fileno=sock.detach()), server_hostname=self._host)

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name="kwire", client_software_version="client")
        response = self._exchange(request, ApiVersionsResponse, API_VERSIONS_VERSION)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, 0)
        if response.error_code:
            raise WireError(f"ApiVersions failed with error {response.error_code}")
        return {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}

    def _authenticate(self) -> None:
        """Authenticate with SASL (KIP-43, KIP-152).

        Raises ApiError if the broker rejects the credentials, SecurityMismatch, Disconnected, WireError.
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
                f"{self.address} requires no authentication: use security.protocol={plain}"
            )
        if chosen.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            known = " or ".join(chosen.mechanisms)
            raise SecurityMismatch(f"{self.address} does not support sasl.mechanism={mechanism}, but {known}")
        raise_for_code(chosen.error_code, None, f"sasl.mechanism={mechanism} at {self.address}")
        about = f"{'token' if credentials.is_token else 'user'} {credentials.username} at {self.address}"
        client = sasl_client(credentials, SystemRandom())
        try:
            auth_message = client.evaluate(b"")
            while auth_message is not None:
                response = self._request(
                    SaslAuthenticateRequest(auth_bytes=auth_message), SaslAuthenticateResponse
                )
                raise_for_code(response.error_code, response.error_message, about)
                auth_message = None if client.is_complete else client.evaluate(bytes(response.auth_bytes))
        except AuthenticationFailed as error:
            raise SecurityMismatch(
                f"{self.address} has not proved that it knows the password: {error}"
            ) from error
        lifetime_ms = response.session_lifetime_ms
        if credentials.is_token and not lifetime_ms:
            # The token has expired: the broker closes the connection at the next request.
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
                raise ConnectionError("the listener requires TLS")
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise WireError(
                    f"{self.address} does not respond like a Kafka broker: use the address of a listener"
                )
            correlation_id, response = decode_response(response_type, version, self._read(size))
        if correlation_id != self._correlation_id:
            raise WireError(
                f"{self.address} responded to request {correlation_id} instead of {self._correlation_id}"
            )
        return response

    def _send(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        try:
            self._socket.sendall(encode_request(request, version, self._correlation_id, self._client_id))
        except NotInVersion as error:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} is too old for this request ({error})",
            ) from error

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise ConnectionError("closed the connection")
            rest = rest[count:]
        return bytes(data)

    @contextmanager
    def _diagnosing(self) -> Iterator[None]:
        """Replace ClosedByPeer with SecurityMismatch if a probe finds the reason."""
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
        """Replace socket errors with Disconnected, or with SecurityMismatch if TLS reports why."""
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
            error_type = ClosedByPeer if has_tls or isinstance(error, ConnectionError) else Disconnected
            raise error_type(f"{self.address}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror or str(error)).lower()
