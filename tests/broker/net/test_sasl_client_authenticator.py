"""A link shows who its node is: what is said, what becomes of a refusal, and when it is said anew."""

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
REFUSED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)


class Polite:
    """Says something `rounds` times, and expects thanks for all but the last."""

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


class Login(PeerLinkHarness):
    """A harness whose links have to log in."""

    def __init__(self, make: Any = Polite) -> None:
        super().__init__()
        self.kinds: list[bool] = []

        def logins(to_controller: bool) -> Any:
            self.kinds.append(to_controller)
            return make

        self.links = PeerLinks(
            self.host, self._dial, client_id="me", max_idle_ms=10**7, peer_authentication=logins
        )

    @property
    def keys(self) -> list[tuple[int, int]]:
        """API and version of all that was asked over the last line."""
        return [(key, version) for key, version, _ in self.line.asked]

    def challenge(self, text: bytes = b"thanks", session_ms: int = 0) -> None:
        self.line.answer(-1, SaslAuthenticateResponse(auth_bytes=text, session_lifetime_ms=session_ms))

    def refuse(self, message: str | None = "Authentication failed: who?") -> None:
        self.line.answer(-1, SaslAuthenticateResponse(error_code=REFUSED, error_message=message))

    def shake(self, **answer: Any) -> None:
        self.line.answer(-1, SaslHandshakeResponse(**{"mechanisms": ["POLITE"], **answer}))

    def connect(self) -> None:
        """Ask, and have a line open; the handshake is asked for."""
        self.ask()
        self.line.open(SASL)

    def log_in(self, session_ms: int = 0) -> None:
        """From a handshake that was asked for to the end."""
        self.shake()
        self.challenge(session_ms=session_ms)
        self.challenge(session_ms=session_ms)

    def serve(self, session_ms: int = 0) -> None:
        """From nothing to the first answer."""
        self.connect()
        self.log_in(session_ms)
        self.line.answer(-1, MetadataResponse())


def test_it_logs_in_before_anything_is_asked() -> None:
    harness = Login()
    harness.connect()
    assert harness.keys == [(18, 4), (17, 1)]
    assert harness.line.requests[-1].mechanism == "POLITE"
    harness.ask()
    harness.shake()
    assert harness.line.requests[-1].auth_bytes == b"please"
    harness.challenge()
    harness.challenge()
    assert harness.keys == [(18, 4), (17, 1), (36, 2), (36, 2), (3, 13), (3, 13)]
    harness.line.answer(-2, MetadataResponse())
    harness.line.answer(-1, MetadataResponse())
    assert harness.told() == ["MetadataResponse"] * 2
    harness.host.advance(10**6)
    harness.ask()
    assert harness.keys[-1] == (3, 13), "it holds for good"


def test_an_older_node_is_logged_in_to_with_what_it_knows() -> None:
    harness = Login()
    harness.ask()
    harness.line.open({**SASL, ApiKey.SASL_AUTHENTICATE: (0, 0)})
    harness.log_in()
    assert harness.keys[2:] == [(36, 0), (36, 0), (3, 13)]


def test_each_kind_of_listener_has_a_login_of_its_own() -> None:
    harness = Login()
    harness.ask()
    harness.ask()
    harness.ask(to=PeerAddress("c", 9093), to_controller=True)
    assert harness.kinds == [False, True]


def test_a_refusal_is_told_with_its_words_and_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    harness = Login()
    for purpose in ("test", "test", "other"):
        harness.ask(purpose=purpose)
        harness.host.advance(1_300)
        harness.line.open(SASL)
        harness.shake()
        harness.refuse()
        assert harness.line.is_closed
        harness.host.advance(100_000)
        assert len(harness.links) == 0, "what was told is remembered all the same"
    assert harness.told() == ["[::1]:9092: authentication failed: Authentication failed: who?"] * 3
    said = "<test to [::1]:9092> failed authentication due to: Authentication failed: who?"
    assert [record.getMessage() for record in caplog.records] == [said]
    harness.ask()
    harness.host.advance(1_300)
    harness.line.open(SASL)
    harness.shake()
    harness.refuse(None)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["who?", "error 58"]


def test_a_refusal_after_the_node_was_let_in_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    harness = Login()
    for is_let_in in (False, False, True, False, False):
        harness.connect()
        if is_let_in:
            harness.log_in()
            harness.line.hears.closed("the peer closed the connection")
        else:
            harness.shake()
            harness.refuse()
        harness.host.advance(100_000)
    said = "<test to [::1]:9092> failed authentication due to: Authentication failed: who?"
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_who_is_refused_rests_longer_each_time() -> None:
    harness = Login()
    rests = []
    for number in range(5):
        harness.ask()
        before_ms = harness.host.monotonic_ms()
        while len(harness.lines) == number:
            harness.host.advance(1)
        rests.append(harness.host.monotonic_ms() - before_ms)
        harness.line.open(SASL)
        harness.shake()
        harness.refuse()
    expected = [0, 50, 100, 200, 400]
    assert all(0.8 * rest <= real <= 1.2 * rest for rest, real in zip(expected, rests, strict=True)), rests


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (33, "Client SASL mechanism 'POLITE' not enabled in the server, enabled mechanisms are [A, B]"),
        (34, "Unexpected handshake request with client mechanism POLITE, enabled mechanisms are [A, B]"),
        (99, "Unknown error code 99, client mechanism is POLITE, enabled mechanisms are [A, B]"),
    ],
)
def test_a_mechanism_that_is_refused(code: int, said: str) -> None:
    harness = Login()
    harness.connect()
    harness.shake(error_code=code, mechanisms=["A", "B"])
    assert harness.told() == [f"[::1]:9092: authentication failed: {said}"]


def test_a_node_that_knows_no_sasl_is_left() -> None:
    harness = Login()
    harness.ask()
    harness.line.open()
    assert harness.told() == ["[::1]:9092: authentication failed: SaslHandshake is not supported"]
    assert harness.line.is_closed


def test_the_other_node_may_fail_to_show_who_it_is() -> None:
    harness = Login()
    harness.connect()
    harness.shake()
    harness.challenge(b"go away")
    assert harness.told() == ["[::1]:9092: authentication failed: that was not polite"]


def test_an_exchange_that_comes_to_no_end_is_a_failure() -> None:
    harness = Login(lambda: Polite(1, ends=False))
    harness.connect()
    harness.shake()
    harness.challenge()
    assert harness.told() == ["[::1]:9092: authentication failed: POLITE did not complete"]


def test_an_end_that_the_other_node_says_last() -> None:
    """As in SCRAM: what it says at the end is looked at, and nothing is said to it."""
    harness = Login(LastWord)
    harness.connect()
    harness.shake()
    harness.challenge()
    assert harness.keys[-1] == (3, 13)


class LastWord(Polite):
    def evaluate(self, challenge: bytes) -> bytes | None:
        self.is_complete = challenge == b"thanks"
        return None if self.is_complete else b"please"


def test_logging_in_takes_no_longer_than_connecting_may() -> None:
    harness = Login()
    harness.ask(timeout_ms=1_000)
    harness.ask(timeout_ms=60_000)
    harness.line.open(SASL)
    harness.shake()
    harness.host.advance(12_000)
    assert harness.told() == ["[::1]:9092: authentication timed out"] * 2
    assert harness.line.is_closed


# --- KIP-368


def renewed_ms(harness: Login) -> int:
    """After how long the node logs in anew, where it asks all the time."""
    began_ms = harness.host.monotonic_ms()
    while harness.keys[-1][0] != ApiKey.SASL_HANDSHAKE:
        harness.host.advance(50)
        harness.ask()
        if harness.keys[-1][0] == ApiKey.METADATA:
            harness.line.answer(-1, MetadataResponse())
    return harness.host.monotonic_ms() - began_ms


def test_it_logs_in_anew_before_the_session_ends() -> None:
    harness = Login()
    harness.serve(session_ms=10_000)
    taken_ms = []
    for _ in range(10):
        taken_ms.append(renewed_ms(harness))
        line = harness.line
        harness.log_in(session_ms=10_000)
        assert harness.keys[-1] == (3, 13), "what waited is asked"
        harness.line.answer(-1, MetadataResponse())
        assert harness.line is line
    assert all(8_500 <= taken <= 9_550 for taken in taken_ms)
    assert len(set(taken_ms)) > 3, "no chance in it"
    assert set(harness.told()) == {"MetadataResponse"}
    assert [key for key, _ in harness.keys].count(ApiKey.API_VERSIONS) == 1


def test_what_is_under_way_ends_before_it_logs_in_anew() -> None:
    harness = Login()
    harness.connect()
    harness.log_in(session_ms=1_000)
    harness.host.advance(960)
    harness.ask()
    harness.ask()
    assert harness.keys[-1] == (3, 13)
    assert len(harness.keys) == 5, "nothing more is asked until the first is answered"
    harness.line.answer(-1, MetadataResponse())
    assert harness.keys[-1] == (17, 1)
    harness.log_in(session_ms=1_000)
    assert harness.keys[-2:] == [(3, 13)] * 2


def test_a_link_without_anything_to_ask_stays_as_it_is() -> None:
    harness = Login()
    harness.serve(session_ms=1_000)
    harness.host.advance(100_000)
    assert harness.keys[-1] == (3, 13)
    harness.ask()
    assert harness.keys[-1] == (17, 1)


def test_a_refusal_of_the_second_login_ends_the_connection() -> None:
    harness = Login()
    harness.serve(session_ms=1_000)
    harness.host.advance(1_000)
    harness.ask()
    harness.shake()
    harness.refuse()
    assert harness.told() == [
        "MetadataResponse",
        "[::1]:9092: authentication failed: Authentication failed: who?",
    ]
    harness.ask()
    harness.host.advance(100)
    assert len(harness.lines) == 2
    harness.line.open(SASL)
    harness.log_in()
    assert harness.keys[-1] == (3, 13)


def test_a_second_login_takes_no_longer_than_the_first() -> None:
    harness = Login()
    harness.serve(session_ms=1_000)
    harness.host.advance(100_000)
    harness.ask(timeout_ms=30_000)
    harness.host.advance(7_000)
    assert not harness.line.is_closed
    harness.host.advance(5_100)
    assert harness.told() == ["MetadataResponse", "[::1]:9092: authentication timed out"]
    assert harness.line.is_closed


def test_who_does_not_know_himself_is_told_why_and_leaves_no_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    harness = Login()
    faults = ["no text", "no text", "no name", ""]

    def logins(to_controller: bool) -> Any:
        if fault := faults.pop(0):
            raise ConfigError(fault)
        return Polite

    harness.links = PeerLinks(harness.host, harness._dial, client_id="me", peer_authentication=logins)
    for fault in ("no text", "no text", "no name"):
        harness.ask()
        assert harness.told() == [f"[::1]:9092: request not sent: {fault}"]
        assert len(harness.links) == 0
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no text", "no name"]
    harness.ask()
    assert len(harness.links) == 1
