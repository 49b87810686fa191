"""One link to another node, on a line that the test holds the other end of."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.net.peer_link import MAX_REQUESTS, TransportEvents
from kwire.broker.net.peer_links import MAX_LINKS, PeerLinks
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.registry import decode_request, decode_request_header, encode_response
from kwire.wire.schema import Message

TO = PeerAddress("::1", 9092)
SERVED = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 13)}
NO_SUCH_VERSION = int(ErrorCode.UNSUPPORTED_VERSION)


class ScriptedLine:
    """A connection: what was sent on it, and the means to answer."""

    def __init__(self, hears: TransportEvents) -> None:
        self.hears = hears
        self.is_closed = False
        self.asked: list[tuple[int, int, int]] = []
        """API, version and correlation id of each request."""
        self.requests: list[Any] = []

    def send(self, frame: bytes) -> None:
        assert not self.is_closed
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header, position = decode_request_header(memoryview(frame)[4:])
        self.asked.append((header.api_key, header.api_version, header.correlation_id))
        self.client_id = header.client_id
        self.requests.append(decode_request(header, memoryview(frame)[4:], position))

    def close(self) -> None:
        self.is_closed = True

    def answer(self, number: int, response: Message, version: int | None = None) -> None:
        """Answer the request of that number."""
        api_key, asked_version, correlation_id = self.asked[number]
        pieces = encode_response(
            api_key, asked_version if version is None else version, correlation_id, response
        )
        self.hears.received(memoryview(bytearray(b"".join(bytes(piece) for piece in pieces)))[4:])  # type: ignore[arg-type]

    def open(self, served: dict[ApiKey, tuple[int, int]] = SERVED) -> None:
        """Accept the connection, unless that is done, and tell the versions."""
        if not self.asked:
            self.hears.opened()
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in served.items()
        ]
        self.answer(-1, ApiVersionsResponse(api_keys=keys))


class PeerLinkHarness:
    """A host with its links, the lines that they have dialled, and what was answered."""

    def __init__(self, max_idle_ms: int = 600_000) -> None:
        self.host = VirtualHost(seed=1)
        self.lines: list[ScriptedLine] = []
        self.answers: list[Any] = []
        self.links = PeerLinks(
            self.host, self._dial, client_id="me", software_version=lambda: "1.2", max_idle_ms=max_idle_ms
        )

    def _dial(self, to: PeerAddress, hears: TransportEvents) -> ScriptedLine:
        line = ScriptedLine(hears)
        self.lines.append(line)
        return line

    @property
    def line(self) -> ScriptedLine:
        return self.lines[-1]

    def ask(self, request: Message | None = None, timeout_ms: int = 30_000, **more: Any) -> None:
        self.links.send(
            more.pop("to", TO),
            more.pop("purpose", "test"),
            request or MetadataRequest(),
            deadline_ms=self.host.monotonic_ms() + timeout_ms,
            on_response=self.answers.append,
            **more,
        )

    def told(self) -> list[str]:
        """What came of what was asked, since this was asked last."""
        self.host.run_pending()
        told = [str(one) if isinstance(one, PeerUnreachable) else type(one).__name__ for one in self.answers]
        self.answers.clear()
        return told


def ready(**settings: Any) -> PeerLinkHarness:
    """A link that is connected and has nothing to do."""
    harness = PeerLinkHarness(**settings)
    harness.ask()
    harness.line.open()
    harness.line.answer(1, MetadataResponse())
    assert harness.told() == ["MetadataResponse"]
    return harness


def test_it_says_who_it_is_and_asks_in_order_what_waited() -> None:
    harness = PeerLinkHarness()
    harness.ask(MetadataRequest(topics=None))
    harness.ask(max_version=5)
    harness.line.hears.opened()
    (question,) = harness.line.requests
    assert (question.client_software_name, question.client_software_version) == ("kwire", "1.2")
    assert harness.line.client_id == "me-test"
    harness.line.open()
    assert [(key, version) for key, version, _ in harness.line.asked[-2:]] == [(3, 13), (3, 5)]
    assert harness.line.requests[-2].topics is None
    assert harness.told() == []
    harness.line.answer(-2, MetadataResponse())
    harness.line.answer(-1, MetadataResponse())
    harness.ask()
    assert harness.line.asked[-1][2] == 4, "the correlation ids go on"
    assert harness.told() == ["MetadataResponse"] * 2


@pytest.mark.parametrize(
    ("told", "asked_again"), [({ApiKey.API_VERSIONS: (0, 2)}, 2), ({}, 0), ({ApiKey.API_VERSIONS: (0, 9)}, 3)]
)
def test_a_node_that_does_not_know_the_newest_question_is_asked_again(
    told: dict[ApiKey, tuple[int, int]], asked_again: int
) -> None:
    harness = PeerLinkHarness()
    harness.ask()
    harness.line.hears.opened()
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in told.items()]
    harness.line.answer(0, ApiVersionsResponse(error_code=NO_SUCH_VERSION, api_keys=keys), version=0)
    assert harness.line.asked[1][:2] == (18, asked_again)
    keys = [ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=3)]
    harness.line.answer(1, ApiVersionsResponse(api_keys=keys))
    assert harness.line.asked[2][:2] == (3, 3)


def test_a_node_that_does_not_tell_its_versions_is_left() -> None:
    harness = PeerLinkHarness()
    harness.ask()
    harness.line.hears.opened()
    for number in range(5):
        harness.line.answer(number, ApiVersionsResponse(error_code=NO_SUCH_VERSION), version=0)
        if harness.line.is_closed:
            break
    assert harness.told() == ["[::1]:9092: protocol error: ApiVersions returned error 35"]


def test_what_both_do_not_have_is_not_sent() -> None:
    harness = PeerLinkHarness()
    harness.ask()
    harness.line.open({ApiKey.METADATA: (12, 12)})
    harness.ask(max_version=11)
    harness.ask(MetadataRequest(topics=[]), to=TO)
    assert harness.told() == [
        "[::1]:9092: Metadata is supported in versions 12 to 12, but this node sends 0 to 11"
    ]
    assert [version for _, version, _ in harness.line.asked] == [4, 12, 12]
    harness.ask(MetadataRequest(topics=7))  # type: ignore[arg-type]
    assert harness.told() == ["[::1]:9092: Metadata cannot be encoded"]
    harness.line.answer(1, MetadataResponse())
    harness.line.answer(2, MetadataResponse())
    assert harness.told() == ["MetadataResponse"] * 2


def test_a_connection_that_ends_takes_with_it_what_was_asked() -> None:
    harness = ready()
    harness.ask()
    harness.ask()
    harness.line.hears.closed("the peer closed the connection")
    assert harness.told() == ["[::1]:9092: the peer closed the connection"] * 2


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\2", bytes(60), b"\0\0\0\2" + b"\xff" * 60])
def test_garbage_ends_the_connection(frame: bytes) -> None:
    harness = ready()
    harness.ask()
    harness.ask()
    harness.line.hears.received(memoryview(bytearray(frame)))
    assert harness.line.is_closed
    told = harness.told()
    assert len(told) == 2
    assert all(text.startswith("[::1]:9092: protocol error: ") for text in told)


def test_an_answer_to_nothing_ends_the_connection() -> None:
    harness = ready()
    harness.line.hears.received(memoryview(bytearray(8)))
    assert harness.line.is_closed
    harness.host.advance(60)
    harness.ask()
    assert len(harness.lines) == 2


def test_it_rests_longer_each_time_that_it_fails() -> None:
    harness = PeerLinkHarness()
    rests = []
    for number in range(8):
        harness.ask()
        before_ms = harness.host.monotonic_ms()
        while len(harness.lines) == number:
            harness.host.advance(1)
        rests.append(harness.host.monotonic_ms() - before_ms)
        harness.line.hears.closed("connection refused")
    expected = [0, 50, 100, 200, 400, 800, 1000, 1000]
    assert all(0.8 * rest <= real <= 1.2 * rest for rest, real in zip(expected, rests, strict=True)), rests
    assert len(set(rests[1:])) == 7, "no chance in it"
    assert harness.told() == ["[::1]:9092: connection refused"] * 8
    harness.ask(timeout_ms=300)
    harness.host.advance(300)
    assert harness.told() == ["[::1]:9092: reconnect backoff after failure: connection refused"]
    harness.ask()
    harness.host.advance(1_000)
    harness.line.open()
    harness.line.hears.closed("the peer closed the connection")
    harness.told()
    harness.ask()
    lines = len(harness.lines)
    harness.host.advance(60)
    assert len(harness.lines) == lines + 1, "it was connected, and rests no longer than the first time"


def test_a_link_that_rests_with_nothing_to_ask_is_forgotten() -> None:
    harness = ready()
    harness.line.hears.closed("the peer closed the connection")
    assert len(harness.links) == 1
    harness.host.advance(60)
    assert len(harness.links) == 0
    assert harness.host.timers == 0


@pytest.mark.parametrize("opened", [False, True])
def test_connecting_takes_no_longer_than_allowed(opened: bool) -> None:
    harness = PeerLinkHarness()
    harness.ask(timeout_ms=2_000)
    harness.ask(timeout_ms=60_000)
    if opened:
        harness.line.hears.opened()
    what = "ApiVersions" if opened else "connection setup"
    harness.host.advance(1_999)
    assert harness.told() == []
    harness.host.advance(1)
    assert harness.told() == [f"[::1]:9092: {what} timed out"]
    harness.host.advance(5_999)
    assert harness.told() == []
    harness.host.advance(4_000)
    assert harness.told() == [f"[::1]:9092: {what} timed out"]
    assert harness.line.is_closed


def test_connecting_takes_longer_each_time_that_it_took_too_long() -> None:
    harness = PeerLinkHarness()
    times_s = []
    for number in range(4):
        harness.ask(timeout_ms=100_000)
        while len(harness.lines) == number:
            harness.host.advance(10)
        before_ms = harness.host.monotonic_ms()
        while not harness.line.is_closed:
            harness.host.advance(10)
        times_s.append((harness.host.monotonic_ms() - before_ms) / 1_000)
    expected = [10, 20, 30, 30]
    assert all(
        0.8 * least <= real <= 1.2 * least + 0.01 for least, real in zip(expected, times_s, strict=True)
    )
    assert harness.told() == ["[::1]:9092: connection setup timed out"] * 4


def test_answers_may_take_as_long_as_each_allows() -> None:
    harness = ready()
    for timeout_ms in (30_000, 998, 40_000):
        harness.ask(timeout_ms=timeout_ms)
        harness.host.advance(498)
    assert harness.told() == []
    harness.host.advance(2)
    assert harness.told() == ["[::1]:9092: request timed out"] * 3
    assert harness.line.is_closed
    harness.ask()
    harness.host.advance(60)
    harness.line.open()
    harness.line.answer(-1, MetadataResponse())
    assert harness.told() == ["MetadataResponse"]


def test_deadlines_that_are_met_cost_no_timer_each() -> None:
    harness = ready()
    for _ in range(100):
        harness.ask(timeout_ms=30_000)
        harness.line.answer(-1, MetadataResponse())
        harness.host.advance(500)
    assert harness.told() == ["MetadataResponse"] * 100
    assert harness.host.timers == 1


def test_idle_connections_are_closed_and_others_are_not() -> None:
    harness = ready(max_idle_ms=1_000)
    harness.host.advance(700)
    harness.ask(timeout_ms=5_000)
    harness.host.advance(3_000)
    harness.line.answer(-1, MetadataResponse())
    harness.host.advance(999)
    assert not harness.line.is_closed
    harness.host.advance(1)
    assert harness.line.is_closed
    assert len(harness.links) == 0
    assert harness.host.timers == 0
    harness.ask()
    harness.line.open()
    assert harness.line.asked[-1][0] == ApiKey.METADATA
    forever = ready(max_idle_ms=-1)
    forever.host.advance(10**10)
    assert not forever.line.is_closed


def test_there_are_bounds() -> None:
    harness = ready()
    for _ in range(MAX_REQUESTS + 3):
        harness.ask()
    assert harness.told() == [f"[::1]:9092: {MAX_REQUESTS} requests are already pending"] * 3
    for port in range(MAX_LINKS):
        harness.ask(to=PeerAddress("many", port))
    assert len(harness.links) == MAX_LINKS
    assert harness.told() == [f"many:{MAX_LINKS - 1}: request not sent: too many connections"]


def test_a_node_that_stops_hangs_up_and_asks_nothing_more() -> None:
    harness = ready()
    harness.ask()
    harness.ask(purpose="other")
    harness.links.close()
    assert all(line.is_closed for line in harness.lines)
    assert harness.told() == ["[::1]:9092: this node is stopping"] * 2
    harness.ask()
    assert harness.told() == ["[::1]:9092: request not sent: this node is stopping"]
    assert harness.host.timers == 0


def test_whoever_is_told_may_ask_again_at_once() -> None:
    harness = PeerLinkHarness()

    def again(answer: Any) -> None:
        harness.answers.append(answer)
        if len(harness.answers) < 3:
            harness.links.send(TO, "test", MetadataRequest(), deadline_ms=10**9, on_response=again)

    harness.links.send(TO, "test", MetadataRequest(), deadline_ms=10**9, on_response=again)
    harness.line.hears.closed("connection refused")
    for _ in range(2):
        harness.host.advance(130)
        harness.line.hears.closed("connection refused")
    harness.host.run_pending()
    assert len(harness.answers) == len(harness.lines) == 3
