"""The state machine of SASL authentication: accepted requests, responses and results in each state."""

from __future__ import annotations

import random

import pytest

from kwire.broker.api.security.sasl_authenticator import (
    TRANSITIONS,
    AuthenticatedPrincipal,
    CloseConnection,
    FailAuthentication,
    HandleApiVersions,
    SaslServerAuthenticator,
    SaslState,
    SendResponse,
    Step,
)
from kwire.broker.config.sasl import ListenerSasl
from kwire.broker.security.mechanisms import sasl_server
from kwire.broker.security.principal import ANONYMOUS, USER, Principal
from kwire.broker.security.sasl import AuthenticationFailed, AuthenticationResult, SaslServer
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode, WireError
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kwire.wire.registry import encode_request
from kwire.wire.schema import Message

ALICE, BOB = Principal(USER, "alice"), Principal(USER, "bob")
SECURITY = ListenerSasl(
    mechanisms=("SCRAM-SHA-256", "PLAIN"),
    plain_users={"alice": "secret", "bob": "other"},
    max_receive_bytes=524_288,
    max_reauth_ms={"PLAIN": 0, "SCRAM-SHA-256": 0},
)
NOW_MS = 1_700_000_000_000
RIGHT = b"\0alice\0secret"
WRONG = b"\0alice\0guessed"


class NoUsers:
    def scram_credential(self, mechanism: str, name: str) -> None:
        return None

    def token(self, mechanism: str, token_id: str) -> None:
        return None


class TwoStepMechanism:
    """A mechanism with two tokens, whose credential may expire. The token `bad` fails."""

    def __init__(self, expires_ms: int | None = None) -> None:
        self.expires_ms = expires_ms
        self.outcome: AuthenticationResult | None = None
        self._count = 0

    def evaluate(self, response: bytes) -> bytes:
        if response == b"bad":
            raise AuthenticationFailed("it is bad")
        self._count += 1
        if self._count == 2:
            self.outcome = AuthenticationResult(ALICE, self.expires_ms)
        return b"%d" % self._count


def make_authenticator(
    security: ListenerSasl = SECURITY,
    previous: AuthenticatedPrincipal | None = None,
    server: SaslServer | None = None,
) -> SaslServerAuthenticator:
    def server_of(mechanism: str) -> SaslServer:
        return server or sasl_server(mechanism, security, NoUsers(), random.Random(1))

    return SaslServerAuthenticator(security, server_of, previous)


def frame(version: int, request: Message) -> memoryview:
    return memoryview(bytearray(encode_request(request, version, 7, "me")))[4:]


def handshake_frame(version: int = 1, mechanism: str = "PLAIN") -> memoryview:
    return frame(version, SaslHandshakeRequest(mechanism=mechanism))


def token(auth_bytes: bytes, version: int = 2) -> memoryview:
    return frame(version, SaslAuthenticateRequest(auth_bytes=auth_bytes))


def handle(authenticator: SaslServerAuthenticator, auth_bytes: memoryview) -> Step:
    return authenticator.handle_frame(auth_bytes, NOW_MS)


def response_of(step: Step) -> SaslAuthenticateResponse:
    assert isinstance(step, SendResponse)
    assert isinstance(step.reply, SaslAuthenticateResponse)
    return step.reply


def failure_of(step: Step) -> SaslAuthenticateResponse:
    assert isinstance(step, FailAuthentication)
    assert isinstance(step.reply, SaslAuthenticateResponse)
    return step.reply


@pytest.mark.parametrize("version", range(3))
def test_a_handshake_and_a_password_authenticate(version: int) -> None:
    authenticator = make_authenticator()
    step = handle(authenticator, handshake_frame())
    assert step == SendResponse(step.header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256", "PLAIN"]))
    assert authenticator.established is None
    response = response_of(handle(authenticator, token(RIGHT, version)))
    assert (response.error_code, response.error_message, response.auth_bytes) == (0, "", b"")
    assert authenticator.established == AuthenticatedPrincipal(ALICE, "PLAIN")
    assert authenticator.state is SaslState.COMPLETE
    assert authenticator.supports_reauthentication is (version > 0)
    assert authenticator.lifetime_ms(NOW_MS) is None


def test_raw_tokens_follow_handshake_v0() -> None:
    authenticator = make_authenticator()
    handle(authenticator, handshake_frame(0))
    assert authenticator.expects_raw_tokens
    step = handle(authenticator, memoryview(RIGHT))
    assert isinstance(step, SendResponse)
    assert step.reply == b""
    assert authenticator.established == AuthenticatedPrincipal(ALICE, "PLAIN")
    assert not authenticator.supports_reauthentication


def test_a_wrong_password_gets_an_error_only_after_handshake_v1() -> None:
    authenticator = make_authenticator()
    handle(authenticator, handshake_frame())
    response = failure_of(handle(authenticator, token(WRONG)))
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert authenticator.state is SaslState.FAILED
    authenticator = make_authenticator()
    handle(authenticator, handshake_frame(0))
    step = handle(authenticator, memoryview(WRONG))
    assert isinstance(step, FailAuthentication)
    assert step.reply is None


def test_without_a_client_message_the_error_is_generic() -> None:
    authenticator = make_authenticator(server=TwoStepMechanism())
    handle(authenticator, handshake_frame())
    response = failure_of(handle(authenticator, token(b"bad")))
    assert response.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    authenticator = make_authenticator(server=TwoStepMechanism())
    handle(authenticator, handshake_frame(0))
    step = handle(authenticator, memoryview(b"bad"))
    assert isinstance(step, CloseConnection)
    assert step.reason == "it is bad"


def test_a_mechanism_may_exchange_several_tokens() -> None:
    authenticator = make_authenticator(server=TwoStepMechanism())
    handle(authenticator, handshake_frame())
    assert response_of(handle(authenticator, token(b"one"))).auth_bytes == b"1"
    assert authenticator.established is None
    assert response_of(handle(authenticator, token(b"two"))).auth_bytes == b"2"
    assert authenticator.established is not None


def test_a_disabled_mechanism_is_refused_with_the_enabled_ones() -> None:
    for version in (0, 1):
        step = handle(make_authenticator(), handshake_frame(version, "GSSAPI"))
        assert isinstance(step, FailAuthentication)
        assert step.reply == SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-256", "PLAIN"]
        )
        assert step.reason == "Unsupported SASL mechanism GSSAPI"


def test_api_versions_is_accepted_once_before_the_handshake() -> None:
    authenticator = make_authenticator()
    step = handle(authenticator, frame(0, ApiVersionsRequest()))
    assert isinstance(step, HandleApiVersions)
    assert step.is_supported
    authenticator.api_versions_handled()
    with pytest.raises(WireError, match=r"ApiVersions v0 .* is not expected"):
        handle(authenticator, frame(0, ApiVersionsRequest()))
    authenticator = make_authenticator()
    authenticator.handle_frame(frame(0, ApiVersionsRequest()), NOW_MS)
    authenticator.api_versions_handled()
    assert isinstance(handle(authenticator, handshake_frame()), SendResponse)


def test_api_versions_can_be_repeated_after_an_unsupported_version() -> None:
    authenticator = make_authenticator()
    unknown = memoryview(b"\0\x12\0\x63\0\0\0\7\xff\xff\0\0\0")
    for _ in range(2):
        step = handle(authenticator, unknown)
        assert isinstance(step, HandleApiVersions)
        assert not step.is_supported
    assert isinstance(handle(authenticator, handshake_frame()), SendResponse)


def test_other_requests_before_the_handshake_are_wire_errors() -> None:
    for auth_bytes in (
        frame(9, MetadataRequest(topics=[])),
        token(RIGHT),
        memoryview(b""),
        memoryview(b"\x60\x82"),
    ):
        authenticator = make_authenticator()
        with pytest.raises(WireError):
            handle(authenticator, auth_bytes)
        assert authenticator.state is SaslState.FAILED


def test_other_requests_during_authentication_are_illegal() -> None:
    authenticator = make_authenticator()
    handle(authenticator, handshake_frame())
    step = handle(authenticator, frame(4, HeartbeatRequest(group_id="g", member_id="m")))
    assert isinstance(step, FailAuthentication)
    assert step.reason == "Unexpected Kafka request of type HEARTBEAT during SASL authentication."
    assert getattr(step.reply, "error_code", None) == ErrorCode.ILLEGAL_SASL_STATE
    authenticator = make_authenticator()
    handle(authenticator, handshake_frame())
    step = handle(authenticator, memoryview(b"\0\x12\0\x63\0\0\0\7\xff\xff\0\0\0"))
    assert isinstance(step, FailAuthentication)
    assert step.header.api_version == 0, "a client of a later version can decode only v0"


def test_malformed_frames_during_authentication_are_wire_errors() -> None:
    for auth_bytes in (memoryview(b"\0"), memoryview(b"\x27\x0f\0\0\0\0\0\7\xff\xff"), token(RIGHT)[:-3]):
        authenticator = make_authenticator()
        handle(authenticator, handshake_frame())
        with pytest.raises(WireError):
            handle(authenticator, auth_bytes)
        assert authenticator.state is SaslState.FAILED


def test_session_lifetime_is_limited_by_listener_and_credential() -> None:
    def lifetimes(max_reauth_ms: int, expires_ms: int | None) -> tuple[int | None, int]:
        security = SECURITY._replace(max_reauth_ms={"PLAIN": max_reauth_ms})
        authenticator = make_authenticator(security, server=TwoStepMechanism(expires_ms))
        handle(authenticator, handshake_frame())
        assert response_of(handle(authenticator, token(b"one"))).session_lifetime_ms == 0
        response = response_of(handle(authenticator, token(b"two")))
        return authenticator.lifetime_ms(NOW_MS), response.session_lifetime_ms

    assert lifetimes(0, None) == (None, 0)
    assert lifetimes(5_000, None) == (5_000, 5_000)
    assert lifetimes(0, NOW_MS + 7_000) == (7_000, 7_000)
    assert lifetimes(5_000, NOW_MS + 7_000) == (5_000, 5_000)
    assert lifetimes(5_000, NOW_MS + 3_000) == (3_000, 3_000)
    assert lifetimes(5_000, NOW_MS - 1) == (0, 0), "the lifetime of an expired session is not negative"


def test_reauthentication_cannot_change_the_principal() -> None:
    before = AuthenticatedPrincipal(ALICE._replace(token_authenticated=True), "PLAIN")
    authenticator = make_authenticator(previous=before)
    handle(authenticator, handshake_frame())
    assert response_of(handle(authenticator, token(RIGHT))).error_code == 0
    assert authenticator.established == AuthenticatedPrincipal(ALICE, "PLAIN")
    authenticator = make_authenticator(previous=before)
    handle(authenticator, handshake_frame())
    response = failure_of(handle(authenticator, token(b"\0bob\0other")))
    assert response.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert authenticator.established is None
    authenticator = make_authenticator(previous=before, server=TwoStepMechanism())
    handle(authenticator, handshake_frame())
    assert "during re-authentication due to" in (
        failure_of(handle(authenticator, token(b"bad"))).error_message or ""
    )


def test_reauthentication_cannot_change_the_mechanism() -> None:
    authenticator = make_authenticator(previous=AuthenticatedPrincipal(ALICE, "PLAIN"))
    assert isinstance(handle(authenticator, handshake_frame(mechanism="SCRAM-SHA-256")), SendResponse)
    step = handle(authenticator, token(b"n,,n=alice,r=nonce"))
    assert isinstance(step, FailAuthentication)
    assert step.reply is None
    assert step.reason == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of "
        "mechanism 'PLAIN'"
    )
    assert isinstance(
        handle(
            make_authenticator(previous=AuthenticatedPrincipal(ALICE, "PLAIN")),
            handshake_frame(mechanism="GSSAPI"),
        ),
        CloseConnection,
    )


def test_reauthentication_starts_with_a_handshake() -> None:
    with pytest.raises(WireError):
        handle(
            make_authenticator(previous=AuthenticatedPrincipal(ANONYMOUS, "PLAIN")),
            frame(0, ApiVersionsRequest()),
        )


def test_only_authenticate_leads_to_complete() -> None:
    assert {state for state in SaslState if state not in TRANSITIONS} == {
        SaslState.REAUTH_BAD_MECHANISM,
        SaslState.COMPLETE,
        SaslState.FAILED,
    }
    assert [state for state, moves in TRANSITIONS.items() if SaslState.COMPLETE in moves.values()] == [
        SaslState.AUTHENTICATE
    ]
    assert all(
        ApiKey.SASL_HANDSHAKE in TRANSITIONS[state]
        for state in TRANSITIONS
        if state is not SaslState.AUTHENTICATE
    )
