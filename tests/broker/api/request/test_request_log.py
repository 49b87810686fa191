"""The last requests of a node: which there are, and how they were answered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.request_log import CLIENT_BYTES, SLOTS, SLOTS_BYTES, RequestLog, client_bytes
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


def test_the_last_ones_are_there(requests: RequestLog) -> None:
    for number in range(SLOTS + 10):
        requests.finish(begin(requests, number), 20, 0.5)
    found = requests.all()
    assert [one.correlation_id for one in found] == list(range(10, SLOTS + 10))
    told = found[-1]
    assert (told.received_s, told.seconds, told.request_id) == (3.0, 0.5, f"7-{SLOTS + 9}")
    assert (told.client_id, told.peer_host) == ("shop", "::1")
    assert (told.size_bytes, told.response_bytes, told.api_key, told.api_version) == (10, 20, 0, 9)


def test_what_was_not_answered_is_told(requests: RequestLog) -> None:
    assert requests.all() == []
    waiting, finished = (begin(requests, number) for number in range(2))
    requests.finish(finished, 20, 0.5)
    first, second = requests.all()
    assert (first.correlation_id, first.seconds, first.response_bytes) == (0, None, 0)
    assert (second.correlation_id, second.seconds, second.response_bytes) == (1, 0.5, 20)
    # Its place is another's by the time it is answered.
    for number in range(2, SLOTS + 1):
        begin(requests, number)
    assert not requests.finish(waiting, 20, 0.5)
    assert [one.correlation_id for one in requests.all() if one.seconds is not None] == [1]


def test_others_who_have_asked_lately(requests: RequestLog) -> None:
    assert not requests.has_requests_of_others("console", 0.0)
    begin(requests, 1, "console")
    assert not requests.has_requests_of_others("console", 0.0)
    assert requests.has_requests_of_others("shop", 0.0)
    for other in (None, "shop", "console-2"):
        begin(requests, 2, other)
        assert requests.has_requests_of_others("console", 2.9)
        assert not requests.has_requests_of_others("console", 3.0)
    waited = RequestHeader(ApiKey.FETCH, 9, 3, "shop")
    requests.begin(waited, client_bytes("shop", "::1"), 7, 10, 1.0)  # for so long that its slot had gone
    assert requests.has_requests_of_others("console", 2.9)
    for number in range(SLOTS):
        assert requests.has_requests_of_others("console", 0.0)
        begin(requests, number, "console")
    assert not requests.has_requests_of_others("console", 0.0)


@pytest.mark.parametrize(
    ("client_id", "told"),
    [
        (None, None),
        ("", None),
        ("é" * 99, "é" * 32),
        ("x" + "é" * 99, "x" + "é" * 31 + "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_long_name_is_cut(requests: RequestLog, client_id: str | None, told: str | None) -> None:
    longest = "1111:2222:3333:4444:5555:6666:123.123.123.123"
    begin(requests, 1, client_id, longest)
    [found] = requests.all()
    assert (found.client_id, found.peer_host) == (told, longest)


def test_they_move_to_where_they_are_to_be_kept(requests: RequestLog) -> None:
    waiting = begin(requests, 1)
    kept = bytearray(b"x" * (SLOTS_BYTES + 20))
    requests.move_to(kept, 10)
    requests.finish(waiting, 20, 0.5)
    begin(requests, 2)
    assert (kept[:10], kept[-10:]) == (b"x" * 10, b"x" * 10)
    assert [(one.correlation_id, one.seconds) for one in requests.all()] == [(1, 0.5), (2, None)]
    requests.move_to_memory()
    before = bytes(kept)
    begin(requests, 3)
    assert [one.correlation_id for one in requests.all()] == [1, 2, 3]
    assert kept == before


def test_what_took_longer_than_all_the_others_is_told_last() -> None:
    now = [0.0]
    request_metrics = RequestMetrics(lambda: now[0])
    asker = SimpleNamespace(id=7, peer_host="::1")
    header = RequestHeader(ApiKey.PRODUCE, 9, 17, "slow")
    waiting = request_metrics.log.begin(header, client_bytes("slow", "::1"), 7, 10, 0.0)
    for number in range(SLOTS):
        request_metrics.log.finish(begin(request_metrics.log, number), 20, 0.1)
    now[0] = 30.0
    request_metrics.record(waiting, header, asker, 10, 20, 0.0, False)
    *_, before, told = request_metrics.log.all()
    assert (before.correlation_id, before.seconds) == (SLOTS - 1, 0.1)
    assert told == logged_request(header, asker, 10, 20, 0.0, 30.0)


def test_each_request_is_noted_with_its_own_client() -> None:
    request_metrics = RequestMetrics(lambda: 0.0)
    channel = Channel(
        7,
        peer_host="::1",
        listener="PLAINTEXT",
        on_ready=lambda channel: None,
        logger=NodeLogger("kwire.requests", ""),
        request_metrics=request_metrics,
    )
    names = ["a", None, "b", "b", "x" * 30_000, "b", "", "y" * 300, None]
    for number, name in enumerate(names):
        channel.open_slot(RequestHeader(ApiKey.PRODUCE, 9, number, name), 0, 10)
    told = [None if one is None else one[:CLIENT_BYTES] or None for one in names]
    assert [one.client_id for one in request_metrics.log.all()] == told
