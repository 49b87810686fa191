"""The machine of one authentication: what each state takes, what it answers, and how it ends."""

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


class Tokens:
    """A mechanism of two tokens, of which the second one ends at some time; `bad` fails it."""

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


def begun(
    security: ListenerSasl = SECURITY,
    previous: AuthenticatedPrincipal | None = None,
    server: SaslServer | None = None,
) -> SaslServerAuthenticator:
    def server_of(mechanism: str) -> SaslServer:
        return server or sasl_server(mechanism, security, NoUsers(), random.Random(1))

    return SaslServerAuthenticator(security, server_of, previous)


def frame(version: int, request: Message) -> memoryview:
    return memoryview(bytearray(encode_request(request, version, 7, "me")))[4:]


def shake(version: int = 1, mechanism: str = "PLAIN") -> memoryview:
    return frame(version, SaslHandshakeRequest(mechanism=mechanism))


def token(said: bytes, version: int = 2) -> memoryview:
    return frame(version, SaslAuthenticateRequest(auth_bytes=said))


def take(machine: SaslServerAuthenticator, said: memoryview) -> Step:
    return machine.handle_frame(said, NOW_MS)


def answered(step: Step) -> SaslAuthenticateResponse:
    assert isinstance(step, SendResponse)
    assert isinstance(step.reply, SaslAuthenticateResponse)
    return step.reply


def failed(step: Step) -> SaslAuthenticateResponse:
    assert isinstance(step, FailAuthentication)
    assert isinstance(step.reply, SaslAuthenticateResponse)
    return step.reply


@pytest.mark.parametrize("version", range(3))
def test_a_handshake_and_a_password(version: int) -> None:
    machine = begun()
    step = take(machine, shake())
    assert step == SendResponse(step.header, SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256", "PLAIN"]))
    assert machine.established is None
    answer = answered(take(machine, token(RIGHT, version)))
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, "", b"")
    assert machine.established == AuthenticatedPrincipal(ALICE, "PLAIN")
    assert machine.state is SaslState.COMPLETE
    assert machine.supports_reauthentication is (version > 0)
    assert machine.lifetime_ms(NOW_MS) is None


def test_bare_tokens_follow_the_first_version_of_a_handshake() -> None:
    machine = begun()
    take(machine, shake(0))
    assert machine.expects_raw_tokens
    step = take(machine, memoryview(RIGHT))
    assert isinstance(step, SendResponse)
    assert step.reply == b""
    assert machine.established == AuthenticatedPrincipal(ALICE, "PLAIN")
    assert not machine.supports_reauthentication


def test_a_wrong_password_is_told_or_not() -> None:
    machine = begun()
    take(machine, shake())
    answer = failed(take(machine, token(WRONG)))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: Invalid username or password"
    assert machine.state is SaslState.FAILED
    machine = begun()
    take(machine, shake(0))
    step = take(machine, memoryview(WRONG))
    assert isinstance(step, FailAuthentication)
    assert step.reply is None


def test_where_a_mechanism_tells_nothing_nothing_is_told() -> None:
    machine = begun(server=Tokens())
    take(machine, shake())
    answer = failed(take(machine, token(b"bad")))
    assert answer.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    machine = begun(server=Tokens())
    take(machine, shake(0))
    step = take(machine, memoryview(b"bad"))
    assert isinstance(step, CloseConnection)
    assert step.reason == "it is bad"


def test_a_mechanism_of_several_tokens() -> None:
    machine = begun(server=Tokens())
    take(machine, shake())
    assert answered(take(machine, token(b"one"))).auth_bytes == b"1"
    assert machine.established is None
    assert answered(take(machine, token(b"two"))).auth_bytes == b"2"
    assert machine.established is not None


def test_a_mechanism_that_is_not_enabled() -> None:
    for version in (0, 1):
        step = take(begun(), shake(version, "GSSAPI"))
        assert isinstance(step, FailAuthentication)
        assert step.reply == SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-256", "PLAIN"]
        )
        assert step.reason == "Unsupported SASL mechanism GSSAPI"


def test_versions_may_be_asked_for_once_before() -> None:
    machine = begun()
    step = take(machine, frame(0, ApiVersionsRequest()))
    assert isinstance(step, HandleApiVersions)
    assert step.is_supported
    machine.api_versions_handled()
    with pytest.raises(WireError, match="API 18 is not expected"):
        take(machine, frame(0, ApiVersionsRequest()))
    machine = begun()
    machine.handle_frame(frame(0, ApiVersionsRequest()), NOW_MS)
    machine.api_versions_handled()
    assert isinstance(take(machine, shake()), SendResponse)


def test_versions_that_are_refused_may_be_asked_for_again() -> None:
    machine = begun()
    unknown = memoryview(b"\0\x12\0\x63\0\0\0\7\xff\xff\0\0\0")
    for _ in range(2):
        step = take(machine, unknown)
        assert isinstance(step, HandleApiVersions)
        assert not step.is_supported
    assert isinstance(take(machine, shake()), SendResponse)


def test_before_a_handshake_nothing_else_is_taken() -> None:
    for said in (
        frame(9, MetadataRequest(topics=[])),
        token(RIGHT),
        memoryview(b""),
        memoryview(b"\x60\x82"),
    ):
        machine = begun()
        with pytest.raises(WireError):
            take(machine, said)
        assert machine.state is SaslState.FAILED


def test_among_the_tokens_everything_else_is_told_that_it_is_misplaced() -> None:
    machine = begun()
    take(machine, shake())
    step = take(machine, frame(4, HeartbeatRequest(group_id="g", member_id="m")))
    assert isinstance(step, FailAuthentication)
    assert step.reason == "Unexpected Kafka request of type HEARTBEAT during SASL authentication."
    assert getattr(step.reply, "error_code", None) == ErrorCode.ILLEGAL_SASL_STATE
    machine = begun()
    take(machine, shake())
    step = take(machine, memoryview(b"\0\x12\0\x63\0\0\0\7\xff\xff\0\0\0"))
    assert isinstance(step, FailAuthentication)
    assert step.header.api_version == 0, "the only one that whoever asks in a later one can read"


def test_frames_that_are_none_end_it_at_once_among_the_tokens() -> None:
    for said in (memoryview(b"\0"), memoryview(b"\x27\x0f\0\0\0\0\0\7\xff\xff"), token(RIGHT)[:-3]):
        machine = begun()
        take(machine, shake())
        with pytest.raises(WireError):
            take(machine, said)
        assert machine.state is SaslState.FAILED


def test_a_session_ends_when_the_listener_or_the_credential_says_so() -> None:
    def told(max_reauth_ms: int, expires_ms: int | None) -> tuple[int | None, int]:
        security = SECURITY._replace(max_reauth_ms={"PLAIN": max_reauth_ms})
        machine = begun(security, server=Tokens(expires_ms))
        take(machine, shake())
        assert answered(take(machine, token(b"one"))).session_lifetime_ms == 0
        answer = answered(take(machine, token(b"two")))
        return machine.lifetime_ms(NOW_MS), answer.session_lifetime_ms

    assert told(0, None) == (None, 0)
    assert told(5_000, None) == (5_000, 5_000)
    assert told(0, NOW_MS + 7_000) == (7_000, 7_000)
    assert told(5_000, NOW_MS + 7_000) == (5_000, 5_000)
    assert told(5_000, NOW_MS + 3_000) == (3_000, 3_000)
    assert told(5_000, NOW_MS - 1) == (0, 0), "what has ended is not below nothing"


def test_who_goes_on_has_to_be_who_he_was() -> None:
    before = AuthenticatedPrincipal(ALICE._replace(token_authenticated=True), "PLAIN")
    machine = begun(previous=before)
    take(machine, shake())
    assert answered(take(machine, token(RIGHT))).error_code == 0
    assert machine.established == AuthenticatedPrincipal(ALICE, "PLAIN")
    machine = begun(previous=before)
    take(machine, shake())
    answer = failed(take(machine, token(b"\0bob\0other")))
    assert answer.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert machine.established is None
    machine = begun(previous=before, server=Tokens())
    take(machine, shake())
    assert "during re-authentication due to" in (failed(take(machine, token(b"bad"))).error_message or "")


def test_who_goes_on_does_it_by_the_same_mechanism() -> None:
    machine = begun(previous=AuthenticatedPrincipal(ALICE, "PLAIN"))
    assert isinstance(take(machine, shake(mechanism="SCRAM-SHA-256")), SendResponse)
    step = take(machine, token(b"n,,n=alice,r=nonce"))
    assert isinstance(step, FailAuthentication)
    assert step.reply is None
    assert step.reason == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of "
        "mechanism 'PLAIN'"
    )
    assert isinstance(
        take(begun(previous=AuthenticatedPrincipal(ALICE, "PLAIN")), shake(mechanism="GSSAPI")),
        CloseConnection,
    )


def test_only_a_handshake_begins_it_again() -> None:
    with pytest.raises(WireError):
        take(begun(previous=AuthenticatedPrincipal(ANONYMOUS, "PLAIN")), frame(0, ApiVersionsRequest()))


def test_the_table_of_moves_ends_where_it_is_known_who_asks() -> None:
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
