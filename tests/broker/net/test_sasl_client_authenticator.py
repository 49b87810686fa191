"""SASL authentication of a link: exchange, failures and reauthentication."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kwire.broker.config import ConfigError
from kwire.broker.net.peer_links import PeerLinks
from kwire.broker.security.sasl import AuthenticationFailed
from kwire.host.host import PeerAddress
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.metadata import MetadataResponse
from kwire.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from kwire.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.broker.net.test_peer_link import SERVED, PeerLinkHarness

SASL = {**SERVED, ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
AUTHENTICATION_FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)


class FakeMechanism:
    """A mechanism that sends `rounds` messages, with any challenge in between. `go away` makes it fail."""

    mechanism = "POLITE"

    def __init__(self, rounds: int = 2, *, ends: bool = True) -> None:
        self.rounds = rounds
        self.is_complete = False
        self._ends = ends

    def evaluate(self, challenge: bytes) -> bytes | None:
        if challenge == b"go away":
            raise AuthenticationFailed("that was not polite")
        self.rounds -= 1
        self.is_complete = self._ends and self.rounds <= 0
        return b"please" if self.rounds >= 0 else None


class SaslHarness(PeerLinkHarness):
    """A harness whose links must authenticate."""

    def __init__(self, make: Any = FakeMechanism) -> None:
        super().__init__()
        self.to_controller_flags: list[bool] = []

        def mechanism_for(to_controller: bool) -> Any:
            self.to_controller_flags.append(to_controller)
            return "", make

        self.links = PeerLinks(
            self.host, self._dial, client_id="me", max_idle_ms=10**7, peer_security=mechanism_for
        )

    @property
    def keys(self) -> list[tuple[int, int]]:
        """API key and version of all requests on the last transport."""
        return [(key, version) for key, version, _ in self.transport.headers]

    def challenge(self, text: bytes = b"thanks", session_ms: int = 0) -> None:
        self.transport.respond(-1, SaslAuthenticateResponse(auth_bytes=text, session_lifetime_ms=session_ms))

    def fail_authentication(self, message: str | None = "Authentication failed: who?") -> None:
        self.transport.respond(
            -1, SaslAuthenticateResponse(error_code=AUTHENTICATION_FAILED, error_message=message)
        )

    def respond_handshake(self, **answer: Any) -> None:
        self.transport.respond(-1, SaslHandshakeResponse(**{"mechanisms": ["POLITE"], **answer}))

    def connect(self) -> None:
        """Send a request and open the transport; the handshake request is sent."""
        self.request()
        self.transport.open(SASL)

    def authenticate(self, session_ms: int = 0) -> None:
        """Complete the authentication from the handshake request on."""
        self.respond_handshake()
        self.challenge(session_ms=session_ms)
        self.challenge(session_ms=session_ms)

    def connect_and_serve(self, session_ms: int = 0) -> None:
        """Connect, authenticate and respond to the first request."""
        self.connect()
        self.authenticate(session_ms)
        self.transport.respond(-1, MetadataResponse())


def test_authentication_precedes_requests() -> None:
    harness = SaslHarness()
    harness.connect()
    assert harness.keys == [(18, 4), (17, 1)]
    assert harness.transport.requests[-1].mechanism == "POLITE"
    harness.request()
    harness.respond_handshake()
    assert harness.transport.requests[-1].auth_bytes == b"please"
    harness.challenge()
    harness.challenge()
    assert harness.keys == [(18, 4), (17, 1), (36, 2), (36, 2), (3, 13), (3, 13)]
    harness.transport.respond(-2, MetadataResponse())
    harness.transport.respond(-1, MetadataResponse())
    assert harness.take_results() == ["MetadataResponse"] * 2
    harness.host.advance(10**6)
    harness.request()
    assert harness.keys[-1] == (3, 13), "the session does not expire"


def test_authentication_uses_the_version_of_an_older_node() -> None:
    harness = SaslHarness()
    harness.request()
    harness.transport.open({**SASL, ApiKey.SASL_AUTHENTICATE: (0, 0)})
    harness.authenticate()
    assert harness.keys[2:] == [(36, 0), (36, 0), (3, 13)]


def test_controller_and_broker_listeners_have_separate_credentials() -> None:
    harness = SaslHarness()
    harness.request()
    harness.request()
    harness.request(to=PeerAddress("c", 9093), to_controller=True)
    assert harness.to_controller_flags == [False, True]


def test_authentication_failure_is_logged_once_with_its_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    harness = SaslHarness()
    for purpose in ("test", "test", "other"):
        harness.request(purpose=purpose)
        harness.host.advance(1_300)
        harness.transport.open(SASL)
        harness.respond_handshake()
        harness.fail_authentication()
        assert harness.transport.is_closed
        harness.host.advance(100_000)
        assert len(harness.links) == 0, "what was results is remembered all the same"
    assert harness.take_results() == ["[::1]:9092: authentication failed: Authentication failed: who?"] * 3
    expected = "Connection to [::1]:9092 (test) failed authentication due to: Authentication failed: who?"
    assert [record.getMessage() for record in caplog.records] == [expected]
    harness.request()
    harness.host.advance(1_300)
    harness.transport.open(SASL)
    harness.respond_handshake()
    harness.fail_authentication(None)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["who?", "error 58"]


def test_authentication_failure_after_a_success_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    harness = SaslHarness()
    for is_accepted in (False, False, True, False, False):
        harness.connect()
        if is_accepted:
            harness.authenticate()
            harness.transport.events.closed("the peer closed the connection")
        else:
            harness.respond_handshake()
            harness.fail_authentication()
        harness.host.advance(100_000)
    expected = "Connection to [::1]:9092 (test) failed authentication due to: Authentication failed: who?"
    assert [record.getMessage() for record in caplog.records] == [expected] * 2


def test_reconnect_backoff_grows_with_authentication_failures() -> None:
    harness = SaslHarness()
    backoffs_ms = []
    for number in range(40):
        harness.request()
        before_ms = harness.host.monotonic_ms()
        while len(harness.transports) == number:
            harness.host.advance(1)
        backoffs_ms.append(harness.host.monotonic_ms() - before_ms)
        harness.transport.open(SASL)
        harness.respond_handshake()
        harness.fail_authentication()
    assert all(39 <= backoff_ms <= 60 for backoff_ms in backoffs_ms[1:5]), backoffs_ms
    assert min(backoffs_ms[-3:]) > 300, backoffs_ms


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (33, "Client SASL mechanism 'POLITE' not enabled in the server, enabled mechanisms are [A, B]"),
        (34, "Unexpected handshake request with client mechanism POLITE, enabled mechanisms are [A, B]"),
        (99, "Unknown error code 99, client mechanism is POLITE, enabled mechanisms are [A, B]"),
    ],
)
def test_handshake_error_message(code: int, expected: str) -> None:
    harness = SaslHarness()
    harness.connect()
    harness.respond_handshake(error_code=code, mechanisms=["A", "B"])
    assert harness.take_results() == [f"[::1]:9092: authentication failed: {expected}"]


def test_node_without_sasl_closes_the_connection() -> None:
    harness = SaslHarness()
    harness.request()
    harness.transport.open()
    assert harness.take_results() == ["[::1]:9092: authentication failed: SaslHandshake is not supported"]
    assert harness.transport.is_closed


def test_server_that_fails_mutual_authentication() -> None:
    harness = SaslHarness()
    harness.connect()
    harness.respond_handshake()
    harness.challenge(b"go away")
    assert harness.take_results() == ["[::1]:9092: authentication failed: that was not polite"]


def test_incomplete_exchange_is_a_failure() -> None:
    harness = SaslHarness(lambda: FakeMechanism(1, ends=False))
    harness.connect()
    harness.respond_handshake()
    harness.challenge()
    assert harness.take_results() == ["[::1]:9092: authentication failed: POLITE did not complete"]


def test_mechanism_that_ends_with_a_server_message() -> None:
    """In SCRAM, the last message is the server's. The client verifies it and sends no reply."""
    harness = SaslHarness(ServerFinalMechanism)
    harness.connect()
    harness.respond_handshake()
    harness.challenge()
    assert harness.keys[-1] == (3, 13)


class ServerFinalMechanism(FakeMechanism):
    def evaluate(self, challenge: bytes) -> bytes | None:
        self.is_complete = challenge == b"thanks"
        return None if self.is_complete else b"please"


def test_authentication_counts_against_the_connection_setup_timeout() -> None:
    harness = SaslHarness()
    harness.request(timeout_ms=1_000)
    harness.request(timeout_ms=60_000)
    harness.transport.open(SASL)
    harness.respond_handshake()
    harness.host.advance(12_000)
    assert harness.take_results() == ["[::1]:9092: authentication timed out"] * 2
    assert harness.transport.is_closed


# --- KIP-368


def time_to_reauthentication_ms(harness: SaslHarness) -> int:
    """Return the time until reauthentication under constant requests."""
    began_ms = harness.host.monotonic_ms()
    while harness.keys[-1][0] != ApiKey.SASL_HANDSHAKE:
        harness.host.advance(50)
        harness.request()
        if harness.keys[-1][0] == ApiKey.METADATA:
            harness.transport.respond(-1, MetadataResponse())
    return harness.host.monotonic_ms() - began_ms


def test_reauthentication_before_the_session_expires() -> None:
    harness = SaslHarness()
    harness.connect_and_serve(session_ms=10_000)
    taken_ms = []
    for _ in range(10):
        taken_ms.append(time_to_reauthentication_ms(harness))
        transport = harness.transport
        harness.authenticate(session_ms=10_000)
        assert harness.keys[-1] == (3, 13), "the waiting request is sent"
        harness.transport.respond(-1, MetadataResponse())
        assert harness.transport is transport
    assert all(8_500 <= taken <= 9_550 for taken in taken_ms)
    assert len(set(taken_ms)) > 3, "the backoff has no jitter"
    assert set(harness.take_results()) == {"MetadataResponse"}
    assert [key for key, _ in harness.keys].count(ApiKey.API_VERSIONS) == 1


def test_pending_requests_complete_before_reauthentication() -> None:
    harness = SaslHarness()
    harness.connect()
    harness.authenticate(session_ms=1_000)
    harness.host.advance(960)
    harness.request()
    harness.request()
    assert harness.keys[-1] == (3, 13)
    assert len(harness.keys) == 5, "no more requests before the first response"
    harness.transport.respond(-1, MetadataResponse())
    assert harness.keys[-1] == (17, 1)
    harness.authenticate(session_ms=1_000)
    assert harness.keys[-2:] == [(3, 13)] * 2


def test_idle_link_reauthenticates_at_its_next_request() -> None:
    harness = SaslHarness()
    harness.connect_and_serve(session_ms=1_000)
    harness.host.advance(100_000)
    assert harness.keys[-1] == (3, 13)
    harness.request()
    assert harness.keys[-1] == (17, 1)


def test_failed_reauthentication_closes_the_connection() -> None:
    harness = SaslHarness()
    harness.connect_and_serve(session_ms=1_000)
    harness.host.advance(1_000)
    harness.request()
    harness.respond_handshake()
    harness.fail_authentication()
    assert harness.take_results() == [
        "MetadataResponse",
        "[::1]:9092: authentication failed: Authentication failed: who?",
    ]
    harness.request()
    harness.host.advance(100)
    assert len(harness.transports) == 2
    harness.transport.open(SASL)
    harness.authenticate()
    assert harness.keys[-1] == (3, 13)


def test_reauthentication_has_the_setup_timeout() -> None:
    harness = SaslHarness()
    harness.connect_and_serve(session_ms=1_000)
    harness.host.advance(100_000)
    harness.request(timeout_ms=30_000)
    harness.host.advance(7_000)
    assert not harness.transport.is_closed
    harness.host.advance(5_100)
    assert harness.take_results() == ["MetadataResponse", "[::1]:9092: authentication timed out"]
    assert harness.transport.is_closed


def test_invalid_credentials_fail_the_request_and_leave_no_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    harness = SaslHarness()
    faults = ["no text", "no text", "no name", ""]

    def mechanism_for(to_controller: bool) -> Any:
        if fault := faults.pop(0):
            raise ConfigError(fault)
        return "", FakeMechanism

    harness.links = PeerLinks(harness.host, harness._dial, client_id="me", peer_security=mechanism_for)
    for fault in ("no text", "no text", "no name"):
        harness.request()
        assert harness.take_results() == [f"[::1]:9092: request not sent: {fault}"]
        assert len(harness.links) == 0
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no text", "no name"]
    harness.request()
    assert len(harness.links) == 1
