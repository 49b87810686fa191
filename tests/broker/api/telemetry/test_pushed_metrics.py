"""What is kept of what clients push: sums added up, all else as it came last, bounded, and not for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kwire.broker.api.telemetry.client_instances import ClientMetadata
from kwire.broker.api.telemetry.pushed_metrics import (
    KEPT_AFTER_END_MS,
    MAX_SERIES,
    MAX_SERIES_LENGTH,
    MAX_SERIES_OF_CLIENT,
    PushedMetrics,
)
from kwire.wire.errors import WireError
from kwire.wire.otlp import MetricsLimitExceeded, Point, PointKind
from kwire.wire.primitives import Uuid

CLIENT = ClientMetadata("me", "interop", "1.0", "127.0.0.1", 50_000, 1)
ID = Uuid(bytes(range(16)))
LATER_MS = 900_000


def point(name: str, value: float, kind: PointKind = PointKind.GAUGE, *, label: str = "") -> Point:
    return Point(name, (("topic", label),) if label else (), value, kind, kind is not PointKind.GAUGE)


def number(value: int) -> Uuid:
    return Uuid(value.to_bytes(16, "big"))


@pytest.fixture
def received() -> PushedMetrics:
    return PushedMetrics()


def shown(received: PushedMetrics, instance_id: Uuid = ID) -> dict[tuple[str, str], float]:
    return {
        (series.name, "".join(text for _, text in series.labels)): value
        for series, value in received.clients[instance_id].values.items()
    }


def test_what_is_added_up_and_what_is_as_it_came_last(received: PushedMetrics) -> None:
    sent = "sent", ""
    received.take(ID, CLIENT, [point("sent", 3, PointKind.DELTA), point("lag", 5)], until_ms=LATER_MS)
    received.take(ID, CLIENT, [point("sent", 4, PointKind.DELTA), point("lag", 2)], until_ms=LATER_MS)
    assert shown(received) == {sent: 7, ("lag", ""): 2}
    twice = [
        point("all", 9, PointKind.TOTAL),
        point("sent", 1, PointKind.DELTA),
        point("sent", 2, PointKind.DELTA),
    ]
    received.take(ID, CLIENT, twice, until_ms=LATER_MS)
    assert shown(received) == {sent: 10, ("all", ""): 9}


def test_what_is_pushed_no_more_is_gone(received: PushedMetrics) -> None:
    """As of a consumer that joins its group anew, time and again, with the member's id in every label."""
    for member in range(2 * MAX_SERIES_OF_CLIENT):
        received.take(ID, CLIENT, [point("sent", 1, PointKind.DELTA, label=f"{member}")], until_ms=LATER_MS)
    assert shown(received) == {("sent", f"{member}"): 1}
    assert received.dropped_points == 0
    received.take(ID, CLIENT, [], until_ms=LATER_MS)
    assert not received.clients


def test_labels_tell_series_apart(received: PushedMetrics) -> None:
    points = [point("lag", 1, label="a"), point("lag", 2, label="b"), point("lag", 3, label="a")]
    received.take(ID, CLIENT, points, until_ms=LATER_MS)
    assert shown(received) == {("lag", "a"): 3, ("lag", "b"): 2}


def test_what_goes_wrong_changes_nothing(received: PushedMetrics) -> None:
    def broken() -> Iterator[Point]:
        yield point("sent", 4, PointKind.DELTA)
        raise WireError("cut")

    received.take(ID, CLIENT, [point("sent", 3, PointKind.DELTA)], until_ms=LATER_MS)
    with pytest.raises(WireError):
        received.take(ID, CLIENT, broken(), until_ms=LATER_MS)
    assert shown(received) == {("sent", ""): 3}


def test_what_is_too_much_is_left_off(received: PushedMetrics) -> None:
    def endless() -> Iterator[Point]:
        yield point("sent", 4, PointKind.DELTA)
        raise MetricsLimitExceeded("more")

    received.take(ID, CLIENT, endless(), until_ms=LATER_MS)
    assert shown(received) == {("sent", ""): 4}
    assert received.dropped_points == 1


def test_a_client_has_so_many_series(received: PushedMetrics) -> None:
    wanted = MAX_SERIES_OF_CLIENT + 10
    received.take(ID, CLIENT, [point(f"m{at}", 1) for at in range(wanted)], until_ms=LATER_MS)
    assert len(shown(received)) == MAX_SERIES_OF_CLIENT
    assert received.dropped_points == 10
    sums = [point(f"s{at}", 1, PointKind.DELTA) for at in range(MAX_SERIES_OF_CLIENT)]
    for _ in range(2):
        received.take(ID, CLIENT, sums, until_ms=LATER_MS)
    assert set(shown(received).values()) == {2}
    received.take(ID, CLIENT, [*sums, point("one more", 1)], until_ms=LATER_MS)
    assert set(shown(received).values()) == {3}
    assert len(shown(received)) == MAX_SERIES_OF_CLIENT
    assert received.dropped_points == 11


def test_all_clients_have_so_many_series(received: PushedMetrics) -> None:
    each = [point(f"m{at}", 1) for at in range(MAX_SERIES_OF_CLIENT)]
    clients = MAX_SERIES // MAX_SERIES_OF_CLIENT
    for at in range(clients):
        received.take(number(at), CLIENT, each, until_ms=LATER_MS + at)
    received.take(ID, CLIENT, [point("one more", 1)], until_ms=LATER_MS)
    assert ID not in received.clients
    assert received.dropped_points == 1
    received.take(number(0), CLIENT, each[:-1], until_ms=LATER_MS)
    received.take(ID, CLIENT, [point("one more", 1)], until_ms=LATER_MS + clients)
    assert len(shown(received)) == 1
    received.expire(LATER_MS + 1)
    assert len(received.clients) == clients - 1
    received.take(number(0), CLIENT, each, until_ms=LATER_MS)
    assert len(shown(received, number(0))) == MAX_SERIES_OF_CLIENT


def test_a_name_with_its_labels_is_so_long(received: PushedMetrics) -> None:
    name = "m" * (MAX_SERIES_LENGTH - len("topic") - 1)
    received.take(ID, CLIENT, [point(name, 1, label="a"), point(name, 1, label="aa")], until_ms=LATER_MS)
    assert shown(received) == {(name, "a"): 1}
    assert received.dropped_points == 1


def test_an_end_is_seen_for_a_minute_and_silence_until_it_is_due(received: PushedMetrics) -> None:
    received.take(ID, CLIENT, [point("m", 1)], until_ms=LATER_MS)
    received.take(number(1), CLIENT, [point("m", 1)], until_ms=LATER_MS)
    received.end_client(ID, 1_000)
    received.end_client(number(2), 1_000)
    received.expire(1_000 + KEPT_AFTER_END_MS - 1)
    assert ID in received.clients
    received.expire(1_000 + KEPT_AFTER_END_MS)
    assert list(received.clients) == [number(1)]
    received.expire(LATER_MS)
    assert not received.clients
