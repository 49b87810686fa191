"""SASL authentication of a connection, as a state machine without I/O. It is called with one frame at a time.

    SaslHandshake v1    names the mechanism; the client may send ApiVersions before it
    SaslAuthenticate    contains a token; as many requests as the mechanism needs
or, for clients before KIP-152,
    SaslHandshake v0    names the mechanism
    raw tokens          frames without a request or response header, in both directions

A re-authentication (KIP-368) starts with another SaslHandshake. Principal and mechanism must stay the same.

Authentication fails in three ways, which clients can distinguish, as in Apache Kafka's
SaslServerAuthenticator:
- `FailAuthentication`: the credentials are wrong, or the client sends another request instead of a token.
  After a delay the client gets an error response, if the protocol has one, and the connection is closed.
- `CloseConnection`: the connection is closed at once, without an error response.
- WireError: the client violates the protocol, or sends another request before it has chosen a mechanism. The
  connection is closed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from kwire.broker.api.request.error_responses import WITH_DEFAULT_MESSAGE, error_response
from kwire.broker.config.sasl import ListenerSasl
from kwire.broker.security.principal import Principal
from kwire.broker.security.sasl import AuthenticationFailed, AuthenticationResult, SaslServer
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import API_VERSIONS, RequestHeader, decode_request, decode_request_header
from kwire.wire.schema import Message

FIRST_HANDSHAKE_WITH_REQUESTS: Final = 1
"""The version of SaslHandshake from which on tokens are sent in SaslAuthenticate requests."""
FIRST_WITH_SESSIONS: Final = 1
"""The version of SaslAuthenticate from which on a client supports re-authentication."""

RAW_TOKEN_HEADER: Final = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None)
"""The header that stands for the missing header of a raw token."""


class SaslState(Enum):
    """The states of Kafka's SaslState, except for GSSAPI tokens of clients before KIP-43."""

    HANDSHAKE_OR_VERSIONS_REQUEST = "expecting SaslHandshake or ApiVersions"
    HANDSHAKE_REQUEST = "expecting SaslHandshake"
    REAUTH_PROCESS_HANDSHAKE = "expecting SaslHandshake for re-authentication"
    AUTHENTICATE = "expecting the tokens of the mechanism"
    REAUTH_BAD_MECHANISM = "re-authenticating with another mechanism, which fails"
    COMPLETE = "authenticated"
    FAILED = "authentication failed"


TRANSITIONS: Final[Mapping[SaslState, Mapping[ApiKey, SaslState]]] = {
    SaslState.HANDSHAKE_OR_VERSIONS_REQUEST: {
        ApiKey.API_VERSIONS: SaslState.HANDSHAKE_REQUEST,
        ApiKey.SASL_HANDSHAKE: SaslState.AUTHENTICATE,
    },
    SaslState.HANDSHAKE_REQUEST: {ApiKey.SASL_HANDSHAKE: SaslState.AUTHENTICATE},
    SaslState.REAUTH_PROCESS_HANDSHAKE: {ApiKey.SASL_HANDSHAKE: SaslState.AUTHENTICATE},
    SaslState.AUTHENTICATE: {ApiKey.SASL_AUTHENTICATE: SaslState.COMPLETE},
}
"""The state after each successful request. AUTHENTICATE accepts as many requests as the mechanism needs."""


class AuthenticatedPrincipal(NamedTuple):
    """The principal of an authenticated connection, and the mechanism that authenticated it."""

    principal: Principal
    mechanism: str


class SendResponse(NamedTuple):
    """The step to send a response and continue.

    A `reply` of bytes is a raw token, which is sent with only a size prefix.
    """

    header: RequestHeader
    reply: Message | bytes


class HandleApiVersions(NamedTuple):
    """The step to respond to an ApiVersions request.

    If the request is valid, the caller must then call `SaslServerAuthenticator.api_versions_handled`.
    """

    header: RequestHeader
    request: ApiVersionsRequest
    is_supported: bool


class FailAuthentication(NamedTuple):
    """The step to wait for the failure delay, send `reply` if it is not None, and close the connection."""

    header: RequestHeader
    reply: Message | None
    reason: str


class CloseConnection(NamedTuple):
    """The step to close the connection at once, without a response."""

    header: RequestHeader
    reason: str


Step = SendResponse | HandleApiVersions | FailAuthentication | CloseConnection


class SaslServerAuthenticator:
    """One authentication or re-authentication of a connection."""

    def __init__(
        self,
        security: ListenerSasl,
        server_of: Callable[[str], SaslServer],
        previous: AuthenticatedPrincipal | None = None,
    ) -> None:
        """`server_of` returns the server side of a mechanism. `previous` is set for a re-authentication."""
        self.state = (
            SaslState.HANDSHAKE_OR_VERSIONS_REQUEST
            if previous is None
            else SaslState.REAUTH_PROCESS_HANDSHAKE
        )
        self.previous = previous
        self.supports_reauthentication = False
        """Whether the version of SaslAuthenticate shows that the client supports re-authentication."""
        self._security = security
        self._server_of = server_of
        self._server: SaslServer | None = None
        self._mechanism = ""
        self._uses_raw_tokens = False  # after SaslHandshake v0, tokens are sent without Kafka requests

    @property
    def expects_raw_tokens(self) -> bool:
        """Whether the next frame is a raw token."""
        return self.state is SaslState.AUTHENTICATE and self._uses_raw_tokens

    @property
    def established(self) -> AuthenticatedPrincipal | None:
        """The authenticated principal; None until the authentication is complete."""
        if self.state is not SaslState.COMPLETE or self._server is None or self._server.outcome is None:
            return None
        return AuthenticatedPrincipal(self._server.outcome.principal, self._mechanism)

    def handle_frame(self, frame: memoryview, now_ms: int) -> Step:
        """Handle a frame and return the step that the caller must take. `now_ms` is wall-clock time.

        Raises WireError if the client violates the protocol.
        """
        assert self.state not in (SaslState.COMPLETE, SaslState.FAILED)
        try:
            step = self._handle_frame(frame, now_ms)
        except WireError:
            self.state = SaslState.FAILED
            raise
        if isinstance(step, FailAuthentication | CloseConnection):
            self.state = SaslState.FAILED
        return step

    def fail(self, reason: str) -> FailAuthentication:
        """Fail the authentication because of a frame of invalid size."""
        self.state = SaslState.FAILED
        return FailAuthentication(RAW_TOKEN_HEADER, None, reason)

    def api_versions_handled(self) -> None:
        """Record that ApiVersions was handled, so that only SaslHandshake may follow."""
        self.state = TRANSITIONS[self.state][ApiKey.API_VERSIONS]

    def _handle_frame(self, frame: memoryview, now_ms: int) -> Step:
        if self.state is SaslState.REAUTH_BAD_MECHANISM:
            assert self.previous is not None
            reason = (
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{self.previous.mechanism}'"
            )
            return FailAuthentication(RAW_TOKEN_HEADER, None, reason)
        if self.expects_raw_tokens:
            return self._handle_raw_token(bytes(frame))
        if self.state is SaslState.AUTHENTICATE:
            return self._handle_authenticate(frame, now_ms)
        header, position = decode_request_header(frame)
        if header.api_key not in TRANSITIONS[self.state]:
            # As in Kafka, this is checked before the body is decoded: the client is not authenticated yet.
            raise WireError(f"{header} is not expected in a SASL handshake ({self.state.value})")
        if header.api_key == ApiKey.API_VERSIONS:
            is_supported = header.api_version in ApiVersionsRequest.VERSIONS
            request = decode_request(header, frame, position) if is_supported else ApiVersionsRequest()
            return HandleApiVersions(header, request, is_supported)
        return self._handshake(header, _request(header, frame, position))

    def _handshake(self, header: RequestHeader, request: SaslHandshakeRequest) -> Step:
        self._mechanism = mechanism = request.mechanism
        self._uses_raw_tokens = header.api_version < FIRST_HANDSHAKE_WITH_REQUESTS
        response = SaslHandshakeResponse(mechanisms=list(self._security.mechanisms))
        if mechanism not in self._security.mechanisms:
            reason = f"Unsupported SASL mechanism {mechanism}"
            if self.previous is not None:
                # As in Kafka, a client that re-authenticates gets no error response.
                return CloseConnection(header, reason)
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return FailAuthentication(header, response, reason)
        if self.previous is not None and mechanism != self.previous.mechanism:
            self.state = SaslState.REAUTH_BAD_MECHANISM
        else:
            self._server = self._server_of(mechanism)
            self.state = TRANSITIONS[self.state][ApiKey.SASL_HANDSHAKE]
        return SendResponse(header, response)

    def _handle_raw_token(self, token: bytes) -> Step:
        try:
            challenge = self._evaluate(token)
        except AuthenticationFailed as error:
            if error.client_message is None:
                return CloseConnection(RAW_TOKEN_HEADER, str(error))
            return FailAuthentication(RAW_TOKEN_HEADER, None, error.client_message)
        return SendResponse(RAW_TOKEN_HEADER, challenge)

    def _handle_authenticate(self, frame: memoryview, now_ms: int) -> Step:
        header, position = decode_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS and header.api_version not in ApiVersionsRequest.VERSIONS:
            return _unexpected_request(header._replace(api_version=0), ApiVersionsRequest())
        request = _request(header, frame, position)
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            return _unexpected_request(header, request)
        self.supports_reauthentication = (
            self.supports_reauthentication or header.api_version >= FIRST_WITH_SESSIONS
        )
        try:
            challenge = self._evaluate(bytes(request.auth_bytes))
        except AuthenticationFailed as error:
            again = "authentication" if self.previous is None else "re-authentication"
            message = error.client_message or (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
            )
            return FailAuthentication(header, response, str(error))
        lifetime_ms = self.lifetime_ms(now_ms) or 0
        return SendResponse(
            header, SaslAuthenticateResponse(auth_bytes=challenge, session_lifetime_ms=lifetime_ms)
        )

    def _evaluate(self, token: bytes) -> bytes:
        """Return the mechanism's response to a token. After the last token, complete the authentication.

        Raises AuthenticationFailed.
        """
        assert self._server is not None
        challenge = self._server.evaluate(token)
        outcome = self._server.outcome
        if outcome is not None:
            self._check_principal(outcome)
            self.state = TRANSITIONS[self.state][ApiKey.SASL_AUTHENTICATE]
        return challenge

    def _check_principal(self, outcome: AuthenticationResult) -> None:
        """Check that a re-authentication does not change the principal. Raises AuthenticationFailed."""
        before, now = None if self.previous is None else self.previous.principal, outcome.principal
        if before is not None and not before.is_same(now):
            message = (
                "Cannot change principals during re-authentication from "
                f"{before.type}.{before.name}: {now.type}.{now.name}"
            )
            raise AuthenticationFailed(message, message)

    def lifetime_ms(self, now_ms: int) -> int | None:
        """Return the lifetime of the new session in ms; None if it does not expire or has not begun."""
        outcome = None if self._server is None else self._server.outcome
        if outcome is None:
            return None
        ends: list[int] = []
        max_reauth_ms = self._security.max_reauth_ms.get(self._mechanism, 0)
        if max_reauth_ms > 0:
            ends.append(max_reauth_ms)
        if outcome.expires_ms is not None:
            ends.append(max(0, outcome.expires_ms - now_ms))
        return min(ends, default=None)


def _request(header: RequestHeader, frame: memoryview, position: int) -> Any:
    api = API_VERSIONS.get(header.api_key)
    if api is None or header.api_version not in api.request_class.VERSIONS:
        raise WireError(f"{header} is not known")
    return decode_request(header, frame, position)


def _unexpected_request(header: RequestHeader, request: Message) -> FailAuthentication:
    """Fail the authentication, because another request arrived instead of SaslAuthenticate."""
    key = ApiKey(header.api_key)
    reason = f"Unexpected Kafka request of type {key.name} during SASL authentication."
    refusal = ApiError(ErrorCode.ILLEGAL_SASL_STATE, None if key in WITH_DEFAULT_MESSAGE else reason)
    return FailAuthentication(header, error_response(key, header.api_version, request, refusal), reason)
