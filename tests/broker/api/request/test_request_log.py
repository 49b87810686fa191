"""The log of the last requests of a node."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.request_log import (
    CLIENT_BYTES,
    SLOTS,
    SLOTS_BYTES,
    LoggedRequest,
    RequestLog,
    client_bytes,
)
from kwire.broker.api.request.request_metrics import RequestMetrics, logged_request
from kwire.host.loggers import NodeLogger
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader


def begin(requests: RequestLog, number: int, client_id: str | None = "shop", peer_host: str = "::1") -> int:
    header = RequestHeader(ApiKey.PRODUCE, 9, number, client_id)
    return requests.begin(header, client_bytes(client_id, peer_host), 7, 10, 3.0)


@pytest.fixture
def requests() -> RequestLog:
    return RequestLog()


def test_the_log_keeps_the_last_requests(requests: RequestLog) -> None:
    for number in range(SLOTS + 10):
        requests.finish(begin(requests, number), 20, 0.5)
    found = requests.all()
    assert [one.correlation_id for one in found] == list(range(10, SLOTS + 10))
    expected = found[-1]
    assert (expected.received_s, expected.seconds, expected.request_id) == (3.0, 0.5, f"7-{SLOTS + 9}")
    assert (expected.client_id, expected.peer_host) == ("shop", "::1")
    assert (expected.size_bytes, expected.response_bytes, expected.api_key, expected.api_version) == (
        10,
        20,
        0,
        9,
    )


def test_requests_without_a_response_are_listed(requests: RequestLog) -> None:
    assert requests.all() == []
    waiting, finished = (begin(requests, number) for number in range(2))
    requests.finish(finished, 20, 0.5)
    first, second = requests.all()
    assert (first.correlation_id, first.seconds, first.response_bytes) == (0, None, 0)
    assert (second.correlation_id, second.seconds, second.response_bytes) == (1, 0.5, 20)
    # Another request reuses its slot before it completes.
    for number in range(2, SLOTS + 1):
        begin(requests, number)
    assert not requests.finish(waiting, 20, 0.5)
    assert [one.correlation_id for one in requests.all() if one.seconds is not None] == [1]


def test_recent_requests_of_other_clients_are_detected(requests: RequestLog) -> None:
    assert not requests.has_requests_of_others("console", 0.0)
    begin(requests, 1, "console")
    assert not requests.has_requests_of_others("console", 0.0)
    assert requests.has_requests_of_others("shop", 0.0)
    for other in (None, "shop", "console-2"):
        begin(requests, 2, other)
        assert requests.has_requests_of_others("console", 2.9)
        assert not requests.has_requests_of_others("console", 3.0)
    old_request = RequestHeader(ApiKey.FETCH, 9, 3, "shop")
    requests.begin(
        old_request, client_bytes("shop", "::1"), 7, 10, 1.0
    )  # an older time than that of its slot
    assert requests.has_requests_of_others("console", 2.9)
    for number in range(SLOTS):
        assert requests.has_requests_of_others("console", 0.0)
        begin(requests, number, "console")
    assert not requests.has_requests_of_others("console", 0.0)


@pytest.mark.parametrize(
    ("client_id", "expected"),
    [
        (None, None),
        ("", None),
        ("é" * 99, "é" * 32),
        ("x" + "é" * 99, "x" + "é" * 31 + "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_long_client_id_is_truncated(
    requests: RequestLog, client_id: str | None, expected: str | None
) -> None:
    longest = "1111:2222:3333:4444:5555:6666:123.123.123.123"
    begin(requests, 1, client_id, longest)
    [found] = requests.all()
    assert (found.client_id, found.peer_host) == (expected, longest)


def test_the_log_moves_to_another_buffer(requests: RequestLog) -> None:
    waiting = begin(requests, 1)
    buffer = bytearray(b"x" * (SLOTS_BYTES + 20))
    requests.move_to(buffer, 10)
    requests.finish(waiting, 20, 0.5)
    begin(requests, 2)
    assert (bytes(buffer[:10]), bytes(buffer[-10:])) == (b"x" * 10, b"x" * 10)
    assert [(one.correlation_id, one.seconds) for one in requests.all()] == [(1, 0.5), (2, None)]
    requests.move_to_memory()
    before = bytes(buffer)
    begin(requests, 3)
    assert [one.correlation_id for one in requests.all()] == [1, 2, 3]
    assert buffer == before


def test_a_request_whose_slot_was_reused_is_listed_last() -> None:
    now = [0.0]
    request_metrics = RequestMetrics(lambda: now[0])
    channel = SimpleNamespace(id=7, peer_host="::1")
    header = RequestHeader(ApiKey.PRODUCE, 9, 17, "slow")
    waiting = request_metrics.log.begin(header, client_bytes("slow", "::1"), 7, 10, 0.0)
    for number in range(SLOTS):
        request_metrics.log.finish(begin(request_metrics.log, number), 20, 0.1)
    now[0] = 30.0
    request_metrics.record(waiting, header, channel, 10, 20, 0.0, None)
    *_, before, expected = request_metrics.log.all()
    assert (before.correlation_id, before.seconds) == (SLOTS - 1, 0.1)
    assert expected == logged_request(header, channel, 10, 20, 0.0, 30.0)


def channel_with(request_metrics: RequestMetrics) -> Channel:
    return Channel(
        7,
        peer_host="::1",
        listener="PLAINTEXT",
        on_ready=lambda channel: None,
        logger=NodeLogger("kwire.requests", ""),
        request_metrics=request_metrics,
    )


def test_each_request_is_recorded_with_its_client_id() -> None:
    request_metrics = RequestMetrics(lambda: 0.0)
    channel = channel_with(request_metrics)
    names = ["a", None, "b", "b", "x" * 30_000, "b", "", "y" * 300, None]
    for number, name in enumerate(names):
        channel.open_slot(RequestHeader(ApiKey.PRODUCE, 9, number, name), 0, 10)
    expected = [None if one is None else one[:CLIENT_BYTES] or None for one in names]
    assert [one.client_id for one in request_metrics.log.all()] == expected


def test_a_closed_connection_ends_the_times_of_its_requests_but_not_their_log_entries() -> None:
    now = [0.0]
    request_metrics = RequestMetrics(lambda: now[0])
    slow: list[LoggedRequest] = []
    request_metrics.watch_slow(2.0, slow.append)
    channel = channel_with(request_metrics)
    header = RequestHeader(ApiKey.PRODUCE, 9, 17, "me")
    context = channel.open_slot(header, 0, 10)
    now[0] = 1.0
    context.was_delayed()
    now[0] = 3.0
    channel.close()
    context.complete_without_reply()
    [times] = request_metrics.apis.values()
    assert (times.count, list(times.recent), list(times.recent_delays)) == (1, [3.0], [2.0])
    assert [one.seconds for one in slow] == [3.0]
    assert [one.seconds for one in request_metrics.log.all()] == [None]
