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
from tests.broker.net.test_peer_link import SERVED, Rig

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


class Login(Rig):
    """A rig whose links have to log in."""

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
    rig = Login()
    rig.connect()
    assert rig.keys == [(18, 4), (17, 1)]
    assert rig.line.requests[-1].mechanism == "POLITE"
    rig.ask()
    rig.shake()
    assert rig.line.requests[-1].auth_bytes == b"please"
    rig.challenge()
    rig.challenge()
    assert rig.keys == [(18, 4), (17, 1), (36, 2), (36, 2), (3, 13), (3, 13)]
    rig.line.answer(-2, MetadataResponse())
    rig.line.answer(-1, MetadataResponse())
    assert rig.told() == ["MetadataResponse"] * 2
    rig.host.advance(10**6)
    rig.ask()
    assert rig.keys[-1] == (3, 13), "it holds for good"


def test_an_older_node_is_logged_in_to_with_what_it_knows() -> None:
    rig = Login()
    rig.ask()
    rig.line.open({**SASL, ApiKey.SASL_AUTHENTICATE: (0, 0)})
    rig.log_in()
    assert rig.keys[2:] == [(36, 0), (36, 0), (3, 13)]


def test_each_kind_of_listener_has_a_login_of_its_own() -> None:
    rig = Login()
    rig.ask()
    rig.ask()
    rig.ask(to=PeerAddress("c", 9093), to_controller=True)
    assert rig.kinds == [False, True]


def test_a_refusal_is_told_with_its_words_and_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    rig = Login()
    for purpose in ("test", "test", "other"):
        rig.ask(purpose=purpose)
        rig.host.advance(1_300)
        rig.line.open(SASL)
        rig.shake()
        rig.refuse()
        assert rig.line.is_closed
        rig.host.advance(100_000)
        assert len(rig.links) == 0, "what was told is remembered all the same"
    assert rig.told() == ["[::1]:9092: authentication failed: Authentication failed: who?"] * 3
    said = "<test to [::1]:9092> failed authentication due to: Authentication failed: who?"
    assert [record.getMessage() for record in caplog.records] == [said]
    rig.ask()
    rig.host.advance(1_300)
    rig.line.open(SASL)
    rig.shake()
    rig.refuse(None)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["who?", "error 58"]


def test_a_refusal_after_the_node_was_let_in_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    rig = Login()
    for is_let_in in (False, False, True, False, False):
        rig.connect()
        if is_let_in:
            rig.log_in()
            rig.line.hears.closed("the peer closed the connection")
        else:
            rig.shake()
            rig.refuse()
        rig.host.advance(100_000)
    said = "<test to [::1]:9092> failed authentication due to: Authentication failed: who?"
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_who_is_refused_rests_longer_each_time() -> None:
    rig = Login()
    rests = []
    for number in range(5):
        rig.ask()
        before_ms = rig.host.monotonic_ms()
        while len(rig.lines) == number:
            rig.host.advance(1)
        rests.append(rig.host.monotonic_ms() - before_ms)
        rig.line.open(SASL)
        rig.shake()
        rig.refuse()
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
    rig = Login()
    rig.connect()
    rig.shake(error_code=code, mechanisms=["A", "B"])
    assert rig.told() == [f"[::1]:9092: authentication failed: {said}"]


def test_a_node_that_knows_no_sasl_is_left() -> None:
    rig = Login()
    rig.ask()
    rig.line.open()
    assert rig.told() == ["[::1]:9092: authentication failed: SaslHandshake is not supported"]
    assert rig.line.is_closed


def test_the_other_node_may_fail_to_show_who_it_is() -> None:
    rig = Login()
    rig.connect()
    rig.shake()
    rig.challenge(b"go away")
    assert rig.told() == ["[::1]:9092: authentication failed: that was not polite"]


def test_an_exchange_that_comes_to_no_end_is_a_failure() -> None:
    rig = Login(lambda: Polite(1, ends=False))
    rig.connect()
    rig.shake()
    rig.challenge()
    assert rig.told() == ["[::1]:9092: authentication failed: POLITE did not complete"]


def test_an_end_that_the_other_node_says_last() -> None:
    """As in SCRAM: what it says at the end is looked at, and nothing is said to it."""
    rig = Login(LastWord)
    rig.connect()
    rig.shake()
    rig.challenge()
    assert rig.keys[-1] == (3, 13)


class LastWord(Polite):
    def evaluate(self, challenge: bytes) -> bytes | None:
        self.is_complete = challenge == b"thanks"
        return None if self.is_complete else b"please"


def test_logging_in_takes_no_longer_than_connecting_may() -> None:
    rig = Login()
    rig.ask(timeout_ms=1_000)
    rig.ask(timeout_ms=60_000)
    rig.line.open(SASL)
    rig.shake()
    rig.host.advance(12_000)
    assert rig.told() == ["[::1]:9092: authentication timed out"] * 2
    assert rig.line.is_closed


# --- KIP-368


def renewed_ms(rig: Login) -> int:
    """After how long the node logs in anew, where it asks all the time."""
    began_ms = rig.host.monotonic_ms()
    while rig.keys[-1][0] != ApiKey.SASL_HANDSHAKE:
        rig.host.advance(50)
        rig.ask()
        if rig.keys[-1][0] == ApiKey.METADATA:
            rig.line.answer(-1, MetadataResponse())
    return rig.host.monotonic_ms() - began_ms


def test_it_logs_in_anew_before_the_session_ends() -> None:
    rig = Login()
    rig.serve(session_ms=10_000)
    taken_ms = []
    for _ in range(10):
        taken_ms.append(renewed_ms(rig))
        line = rig.line
        rig.log_in(session_ms=10_000)
        assert rig.keys[-1] == (3, 13), "what waited is asked"
        rig.line.answer(-1, MetadataResponse())
        assert rig.line is line
    assert all(8_500 <= taken <= 9_550 for taken in taken_ms)
    assert len(set(taken_ms)) > 3, "no chance in it"
    assert set(rig.told()) == {"MetadataResponse"}
    assert [key for key, _ in rig.keys].count(ApiKey.API_VERSIONS) == 1


def test_what_is_under_way_ends_before_it_logs_in_anew() -> None:
    rig = Login()
    rig.connect()
    rig.log_in(session_ms=1_000)
    rig.host.advance(960)
    rig.ask()
    rig.ask()
    assert rig.keys[-1] == (3, 13)
    assert len(rig.keys) == 5, "nothing more is asked until the first is answered"
    rig.line.answer(-1, MetadataResponse())
    assert rig.keys[-1] == (17, 1)
    rig.log_in(session_ms=1_000)
    assert rig.keys[-2:] == [(3, 13)] * 2


def test_a_link_without_anything_to_ask_stays_as_it_is() -> None:
    rig = Login()
    rig.serve(session_ms=1_000)
    rig.host.advance(100_000)
    assert rig.keys[-1] == (3, 13)
    rig.ask()
    assert rig.keys[-1] == (17, 1)


def test_a_refusal_of_the_second_login_ends_the_connection() -> None:
    rig = Login()
    rig.serve(session_ms=1_000)
    rig.host.advance(1_000)
    rig.ask()
    rig.shake()
    rig.refuse()
    assert rig.told() == [
        "MetadataResponse",
        "[::1]:9092: authentication failed: Authentication failed: who?",
    ]
    rig.ask()
    rig.host.advance(100)
    assert len(rig.lines) == 2
    rig.line.open(SASL)
    rig.log_in()
    assert rig.keys[-1] == (3, 13)


def test_a_second_login_takes_no_longer_than_the_first() -> None:
    rig = Login()
    rig.serve(session_ms=1_000)
    rig.host.advance(100_000)
    rig.ask(timeout_ms=30_000)
    rig.host.advance(7_000)
    assert not rig.line.is_closed
    rig.host.advance(5_100)
    assert rig.told() == ["MetadataResponse", "[::1]:9092: authentication timed out"]
    assert rig.line.is_closed


def test_who_does_not_know_himself_is_told_why_and_leaves_no_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    rig = Login()
    faults = ["no text", "no text", "no name", ""]

    def logins(to_controller: bool) -> Any:
        if fault := faults.pop(0):
            raise ConfigError(fault)
        return Polite

    rig.links = PeerLinks(rig.host, rig._dial, client_id="me", peer_authentication=logins)
    for fault in ("no text", "no text", "no name"):
        rig.ask()
        assert rig.told() == [f"[::1]:9092: request not sent: {fault}"]
        assert len(rig.links) == 0
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no text", "no name"]
    rig.ask()
    assert len(rig.links) == 1
