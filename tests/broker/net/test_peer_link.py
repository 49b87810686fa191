"""One link to another node, over a transport that the test controls."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.net.peer_link import MAX_REQUESTS, TransportEvents
from kwire.broker.net.peer_links import MAX_LINKS, PeerLinks
from kwire.host.host import InternodeTime, PeerAddress, PeerUnreachable
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


class FakeTransport:
    """A connection that records requests and delivers responses."""

    def __init__(self, events: TransportEvents) -> None:
        self.events = events
        self.is_closed = False
        self.headers: list[tuple[int, int, int]] = []
        """API key, version and correlation id of each request."""
        self.requests: list[Any] = []

    def send(self, frame: bytes) -> None:
        assert not self.is_closed
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header, position = decode_request_header(memoryview(frame)[4:])
        self.headers.append((header.api_key, header.api_version, header.correlation_id))
        self.client_id = header.client_id
        self.requests.append(decode_request(header, memoryview(frame)[4:], position))

    def close(self) -> None:
        self.is_closed = True

    def respond(self, number: int, response: Message, version: int | None = None) -> None:
        """Respond to the request with index `number` among all requests of this connection."""
        api_key, asked_version, correlation_id = self.headers[number]
        pieces = encode_response(
            api_key, asked_version if version is None else version, correlation_id, response
        )
        self.events.received(memoryview(bytearray(b"".join(bytes(piece) for piece in pieces)))[4:])  # type: ignore[arg-type]

    def open(self, served: dict[ApiKey, tuple[int, int]] = SERVED) -> None:
        """Open the connection if necessary, and respond to ApiVersions."""
        if not self.headers:
            self.events.opened()
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in served.items()
        ]
        self.respond(-1, ApiVersionsResponse(api_keys=keys))


class PeerLinkHarness:
    """A host with its links, the transports that they opened, and the results of requests."""

    def __init__(self, max_idle_ms: int = 600_000) -> None:
        self.host = VirtualHost(seed=1)
        self.transports: list[FakeTransport] = []
        self.answers: list[Any] = []
        self.links = PeerLinks(
            self.host, self._dial, client_id="me", software_version="1.2", max_idle_ms=max_idle_ms
        )

    def _dial(self, to: PeerAddress, events: TransportEvents, listener: str) -> FakeTransport:
        transport = FakeTransport(events)
        self.transports.append(transport)
        return transport

    @property
    def transport(self) -> FakeTransport:
        return self.transports[-1]

    def request(self, request: Message | None = None, timeout_ms: int = 30_000, **more: Any) -> None:
        self.links.send(
            more.pop("to", TO),
            more.pop("purpose", "test"),
            request or MetadataRequest(),
            deadline_ms=self.host.internode_clock.monotonic_ms() + timeout_ms,
            on_response=self.answers.append,
            **more,
        )

    def take_results(self) -> list[str]:
        """Return the results since the last call."""
        self.host.run_pending()
        results = [
            str(one) if isinstance(one, PeerUnreachable) else type(one).__name__ for one in self.answers
        ]
        self.answers.clear()
        return results


def idle_link(**settings: Any) -> PeerLinkHarness:
    """Return a connected link without pending requests."""
    harness = PeerLinkHarness(**settings)
    harness.request()
    harness.transport.open()
    harness.transport.respond(1, MetadataResponse())
    assert harness.take_results() == ["MetadataResponse"]
    return harness


def test_api_versions_precedes_queued_requests_in_their_order() -> None:
    harness = PeerLinkHarness()
    harness.request(MetadataRequest(topics=None))
    harness.request(max_version=5)
    harness.transport.events.opened()
    (api_versions_request,) = harness.transport.requests
    assert (api_versions_request.client_software_name, api_versions_request.client_software_version) == (
        "kwire",
        "1.2",
    )
    assert harness.transport.client_id == "me-test"
    harness.transport.open()
    assert [(key, version) for key, version, _ in harness.transport.headers[-2:]] == [(3, 13), (3, 5)]
    assert harness.transport.requests[-2].topics is None
    assert harness.take_results() == []
    harness.transport.respond(-2, MetadataResponse())
    harness.transport.respond(-1, MetadataResponse())
    harness.request()
    assert harness.transport.headers[-1][2] == 4, "correlation ids continue"
    assert harness.take_results() == ["MetadataResponse"] * 2


@pytest.mark.parametrize(
    ("results", "requested_version"),
    [({ApiKey.API_VERSIONS: (0, 2)}, 2), ({}, 0), ({ApiKey.API_VERSIONS: (0, 9)}, 3)],
)
def test_api_versions_is_retried_in_a_supported_version(
    results: dict[ApiKey, tuple[int, int]], requested_version: int
) -> None:
    harness = PeerLinkHarness()
    harness.request()
    harness.transport.events.opened()
    keys = [
        ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in results.items()
    ]
    harness.transport.respond(0, ApiVersionsResponse(error_code=NO_SUCH_VERSION, api_keys=keys), version=0)
    assert harness.transport.headers[1][:2] == (18, requested_version)
    keys = [ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=3)]
    harness.transport.respond(1, ApiVersionsResponse(api_keys=keys))
    assert harness.transport.headers[2][:2] == (3, 3)


def test_repeated_api_versions_error_closes_the_connection() -> None:
    harness = PeerLinkHarness()
    harness.request()
    harness.transport.events.opened()
    for number in range(5):
        harness.transport.respond(number, ApiVersionsResponse(error_code=NO_SUCH_VERSION), version=0)
        if harness.transport.is_closed:
            break
    assert harness.take_results() == ["[::1]:9092: protocol error: ApiVersions returned error 35"]


def test_request_without_a_common_version_is_not_sent() -> None:
    harness = PeerLinkHarness()
    harness.request()
    harness.transport.open({ApiKey.METADATA: (12, 12)})
    harness.request(max_version=11)
    harness.request(MetadataRequest(topics=[]), to=TO)
    assert harness.take_results() == [
        "[::1]:9092: Metadata is supported in versions 12 to 12, but this node sends 0 to 11"
    ]
    assert [version for _, version, _ in harness.transport.headers] == [4, 12, 12]
    harness.request(MetadataRequest(topics=7))  # type: ignore[arg-type]
    assert harness.take_results() == ["[::1]:9092: Metadata cannot be encoded"]
    harness.transport.respond(1, MetadataResponse())
    harness.transport.respond(2, MetadataResponse())
    assert harness.take_results() == ["MetadataResponse"] * 2


def test_closed_connection_fails_its_pending_requests() -> None:
    harness = idle_link()
    harness.request()
    harness.request()
    harness.transport.events.closed("the peer closed the connection")
    assert harness.take_results() == ["[::1]:9092: the peer closed the connection"] * 2


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\2", bytes(60), b"\0\0\0\2" + b"\xff" * 60])
def test_invalid_frame_closes_the_connection(frame: bytes) -> None:
    harness = idle_link()
    harness.request()
    harness.request()
    harness.transport.events.received(memoryview(bytearray(frame)))
    assert harness.transport.is_closed
    results = harness.take_results()
    assert len(results) == 2
    assert all(text.startswith("[::1]:9092: protocol error: ") for text in results)


def test_response_without_a_request_closes_the_connection() -> None:
    harness = idle_link()
    harness.transport.events.received(memoryview(bytearray(8)))
    assert harness.transport.is_closed
    harness.host.advance(60)
    harness.request()
    assert len(harness.transports) == 2


def refuse_connections(harness: PeerLinkHarness, duration_ms: int) -> list[tuple[int, int]]:
    """Refuse every connection for a time. Return the start and the length of each backoff, in ms."""
    begin_ms = harness.host.monotonic_ms()
    backoffs_ms: list[tuple[int, int]] = []
    while True:
        harness.request()
        harness.transport.events.closed("connection refused")
        before_ms, transports = harness.host.monotonic_ms(), len(harness.transports)
        if before_ms - begin_ms >= duration_ms:
            return backoffs_ms
        harness.request()
        while len(harness.transports) == transports:
            harness.host.advance(1)
        backoffs_ms.append((before_ms - begin_ms, harness.host.monotonic_ms() - before_ms))


def test_reconnect_backoff_is_a_tenth_of_the_time_without_a_connection() -> None:
    harness = PeerLinkHarness()
    backoffs_ms = refuse_connections(harness, 20_000)
    for down_ms, backoff_ms in backoffs_ms:
        expected_ms = min(max(50, down_ms / 10), 1_000)
        assert 0.8 * expected_ms - 1 <= backoff_ms <= 1.2 * expected_ms + 1, down_ms
    assert len({backoff_ms for _, backoff_ms in backoffs_ms}) > 20, "the backoff has no jitter"
    assert set(harness.take_results()) == {"[::1]:9092: connection refused"}
    harness.request(timeout_ms=300)
    harness.host.advance(300)
    assert harness.take_results() == ["[::1]:9092: reconnect backoff after failure: connection refused"]
    harness.request()
    harness.host.advance(1_000)
    harness.transport.open()
    harness.transport.events.closed("the peer closed the connection")
    harness.take_results()
    harness.request()
    transports = len(harness.transports)
    harness.host.advance(60)
    assert len(harness.transports) == transports + 1, "the backoff was reset by the connection"


def test_request_of_the_other_node_ends_the_backoff() -> None:
    harness = PeerLinkHarness()
    refuse_connections(harness, 20_000)
    harness.request()
    transports = len(harness.transports)
    harness.host.advance(100)
    assert len(harness.transports) == transports
    harness.links.end_backoff(TO)
    harness.host.run_pending()
    harness.host.advance(0)
    assert len(harness.transports) == transports + 1


def test_backoff_after_a_failure_lasts_at_least_its_minimum() -> None:
    harness = PeerLinkHarness()
    refuse_connections(harness, 20_000)
    harness.request()
    transports = len(harness.transports)
    for _ in range(40):
        harness.links.end_backoff(TO)
        harness.host.advance(1)
    assert len(harness.transports) == transports
    harness.host.advance(10)
    assert len(harness.transports) == transports + 1


@pytest.mark.parametrize("is_ready", [False, True])
def test_request_of_the_other_node_has_no_effect_without_a_backoff(is_ready: bool) -> None:
    harness = PeerLinkHarness()
    harness.links.end_backoff(TO)
    harness.request()
    if is_ready:
        harness.transport.open()
    harness.links.end_backoff(TO)
    harness.host.advance(1)
    assert len(harness.transports) == 1
    assert not harness.transport.is_closed


def test_closed_link_without_requests_is_removed_after_its_backoff() -> None:
    harness = idle_link()
    harness.transport.events.closed("the peer closed the connection")
    assert len(harness.links) == 1
    harness.host.advance(60)
    assert len(harness.links) == 0
    assert harness.host.timers == 0


@pytest.mark.parametrize("opened", [False, True])
def test_connection_setup_timeout_and_request_timeouts(opened: bool) -> None:
    harness = PeerLinkHarness()
    harness.request(timeout_ms=2_000)
    harness.request(timeout_ms=60_000)
    if opened:
        harness.transport.events.opened()
    what = "ApiVersions" if opened else "connection setup"
    harness.host.advance(1_999)
    assert harness.take_results() == []
    harness.host.advance(1)
    assert harness.take_results() == [f"[::1]:9092: {what} timed out"]
    harness.host.advance(5_999)
    assert harness.take_results() == []
    harness.host.advance(4_000)
    assert harness.take_results() == [f"[::1]:9092: {what} timed out"]
    assert harness.transport.is_closed


def test_connection_setup_timeout_grows_with_failures() -> None:
    harness = PeerLinkHarness()
    times_s = []
    for number in range(4):
        harness.request(timeout_ms=100_000)
        while len(harness.transports) == number:
            harness.host.advance(10)
        before_ms = harness.host.monotonic_ms()
        while not harness.transport.is_closed:
            harness.host.advance(10)
        times_s.append((harness.host.monotonic_ms() - before_ms) / 1_000)
    expected = [10, 20, 30, 30]
    assert all(
        0.8 * least <= real <= 1.2 * least + 0.01 for least, real in zip(expected, times_s, strict=True)
    )
    assert harness.take_results() == ["[::1]:9092: connection setup timed out"] * 4


def test_each_request_has_its_own_timeout() -> None:
    harness = idle_link()
    for timeout_ms in (30_000, 998, 40_000):
        harness.request(timeout_ms=timeout_ms)
        harness.host.advance(498)
    assert harness.take_results() == []
    harness.host.advance(2)
    assert harness.take_results() == ["[::1]:9092: request timed out"] * 3
    assert harness.transport.is_closed
    harness.request()
    harness.host.advance(60)
    harness.transport.open()
    harness.transport.respond(-1, MetadataResponse())
    assert harness.take_results() == ["MetadataResponse"]


def test_one_timer_serves_all_request_deadlines() -> None:
    harness = idle_link()
    for _ in range(100):
        harness.request(timeout_ms=30_000)
        harness.transport.respond(-1, MetadataResponse())
        harness.host.advance(500)
    assert harness.take_results() == ["MetadataResponse"] * 100
    assert harness.host.timers == 1


def test_only_idle_connections_are_closed() -> None:
    harness = idle_link(max_idle_ms=1_000)
    harness.host.advance(700)
    harness.request(timeout_ms=5_000)
    harness.host.advance(3_000)
    harness.transport.respond(-1, MetadataResponse())
    harness.host.advance(999)
    assert not harness.transport.is_closed
    harness.host.advance(1)
    assert harness.transport.is_closed
    assert len(harness.links) == 0
    assert harness.host.timers == 0
    harness.request()
    harness.transport.open()
    assert harness.transport.headers[-1][0] == ApiKey.METADATA
    forever = idle_link(max_idle_ms=-1)
    forever.host.advance(10**10)
    assert not forever.transport.is_closed


def test_number_of_requests_and_links_is_limited() -> None:
    harness = idle_link()
    for _ in range(MAX_REQUESTS + 3):
        harness.request()
    assert harness.take_results() == [f"[::1]:9092: already pending: {MAX_REQUESTS} requests"] * 3
    for port in range(MAX_LINKS):
        harness.request(to=PeerAddress("many", port))
    assert len(harness.links) == MAX_LINKS
    assert harness.take_results() == [f"many:{MAX_LINKS - 1}: request not sent: too many connections"]


def test_stopping_node_closes_links_and_fails_requests() -> None:
    harness = idle_link()
    harness.request()
    harness.request(purpose="other")
    harness.links.close()
    assert all(transport.is_closed for transport in harness.transports)
    assert harness.take_results() == ["[::1]:9092: this node is stopping"] * 2
    harness.request()
    assert harness.take_results() == ["[::1]:9092: request not sent: this node is stopping"]
    assert harness.host.timers == 0


def test_failure_callback_may_send_again_at_once() -> None:
    harness = PeerLinkHarness()
    deadline_ms = InternodeTime(10**9)

    def again(answer: Any) -> None:
        harness.answers.append(answer)
        if len(harness.answers) < 3:
            harness.links.send(TO, "test", MetadataRequest(), deadline_ms=deadline_ms, on_response=again)

    harness.links.send(TO, "test", MetadataRequest(), deadline_ms=deadline_ms, on_response=again)
    harness.transport.events.closed("connection refused")
    for _ in range(2):
        harness.host.advance(130)
        harness.transport.events.closed("connection refused")
    harness.host.run_pending()
    assert len(harness.answers) == len(harness.transports) == 3
