"""Storage of pushed metrics: deltas are summed, other values replaced, and both are bounded and expire."""

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
INSTANCE_ID = Uuid(bytes(range(16)))
LATER_MS = 900_000


def point(name: str, value: float, kind: PointKind = PointKind.GAUGE, *, label: str = "") -> Point:
    return Point(name, (("topic", label),) if label else (), value, kind, kind is not PointKind.GAUGE)


def number(value: int) -> Uuid:
    return Uuid(value.to_bytes(16, "big"))


@pytest.fixture
def pushed_metrics() -> PushedMetrics:
    return PushedMetrics()


def values_of(pushed_metrics: PushedMetrics, instance_id: Uuid = INSTANCE_ID) -> dict[tuple[str, str], float]:
    return {
        (series.name, "".join(text for _, text in series.labels)): value
        for series, value in pushed_metrics.clients[instance_id].values.items()
    }


def test_deltas_are_summed_and_gauges_replaced(pushed_metrics: PushedMetrics) -> None:
    sent = "sent", ""
    pushed_metrics.take(
        INSTANCE_ID, CLIENT, [point("sent", 3, PointKind.DELTA), point("lag", 5)], until_ms=LATER_MS
    )
    pushed_metrics.take(
        INSTANCE_ID, CLIENT, [point("sent", 4, PointKind.DELTA), point("lag", 2)], until_ms=LATER_MS
    )
    assert values_of(pushed_metrics) == {sent: 7, ("lag", ""): 2}
    twice = [
        point("all", 9, PointKind.TOTAL),
        point("sent", 1, PointKind.DELTA),
        point("sent", 2, PointKind.DELTA),
    ]
    pushed_metrics.take(INSTANCE_ID, CLIENT, twice, until_ms=LATER_MS)
    assert values_of(pushed_metrics) == {sent: 10, ("all", ""): 9}


def test_series_that_are_not_pushed_again_are_removed(pushed_metrics: PushedMetrics) -> None:
    """A consumer that joins its group again and again has a new member id in each label."""
    for member in range(2 * MAX_SERIES_OF_CLIENT):
        pushed_metrics.take(
            INSTANCE_ID, CLIENT, [point("sent", 1, PointKind.DELTA, label=f"{member}")], until_ms=LATER_MS
        )
    assert values_of(pushed_metrics) == {("sent", f"{member}"): 1}
    assert pushed_metrics.dropped_points == 0
    pushed_metrics.take(INSTANCE_ID, CLIENT, [], until_ms=LATER_MS)
    assert not pushed_metrics.clients


def test_series_are_distinguished_by_labels(pushed_metrics: PushedMetrics) -> None:
    points = [point("lag", 1, label="a"), point("lag", 2, label="b"), point("lag", 3, label="a")]
    pushed_metrics.take(INSTANCE_ID, CLIENT, points, until_ms=LATER_MS)
    assert values_of(pushed_metrics) == {("lag", "a"): 3, ("lag", "b"): 2}


def test_a_malformed_push_changes_nothing(pushed_metrics: PushedMetrics) -> None:
    def broken() -> Iterator[Point]:
        yield point("sent", 4, PointKind.DELTA)
        raise WireError("cut")

    pushed_metrics.take(INSTANCE_ID, CLIENT, [point("sent", 3, PointKind.DELTA)], until_ms=LATER_MS)
    with pytest.raises(WireError):
        pushed_metrics.take(INSTANCE_ID, CLIENT, broken(), until_ms=LATER_MS)
    assert values_of(pushed_metrics) == {("sent", ""): 3}


def test_points_beyond_the_limit_are_dropped(pushed_metrics: PushedMetrics) -> None:
    def endless() -> Iterator[Point]:
        yield point("sent", 4, PointKind.DELTA)
        raise MetricsLimitExceeded("more")

    pushed_metrics.take(INSTANCE_ID, CLIENT, endless(), until_ms=LATER_MS)
    assert values_of(pushed_metrics) == {("sent", ""): 4}
    assert pushed_metrics.dropped_points == 1


def test_series_per_client_are_limited(pushed_metrics: PushedMetrics) -> None:
    wanted = MAX_SERIES_OF_CLIENT + 10
    pushed_metrics.take(
        INSTANCE_ID, CLIENT, [point(f"m{index}", 1) for index in range(wanted)], until_ms=LATER_MS
    )
    assert len(values_of(pushed_metrics)) == MAX_SERIES_OF_CLIENT
    assert pushed_metrics.dropped_points == 10
    sums = [point(f"s{index}", 1, PointKind.DELTA) for index in range(MAX_SERIES_OF_CLIENT)]
    for _ in range(2):
        pushed_metrics.take(INSTANCE_ID, CLIENT, sums, until_ms=LATER_MS)
    assert set(values_of(pushed_metrics).values()) == {2}
    pushed_metrics.take(INSTANCE_ID, CLIENT, [*sums, point("one more", 1)], until_ms=LATER_MS)
    assert set(values_of(pushed_metrics).values()) == {3}
    assert len(values_of(pushed_metrics)) == MAX_SERIES_OF_CLIENT
    assert pushed_metrics.dropped_points == 11


def test_series_of_all_clients_are_limited(pushed_metrics: PushedMetrics) -> None:
    each = [point(f"m{index}", 1) for index in range(MAX_SERIES_OF_CLIENT)]
    clients = MAX_SERIES // MAX_SERIES_OF_CLIENT
    for index in range(clients):
        pushed_metrics.take(number(index), CLIENT, each, until_ms=LATER_MS + index)
    pushed_metrics.take(INSTANCE_ID, CLIENT, [point("one more", 1)], until_ms=LATER_MS)
    assert INSTANCE_ID not in pushed_metrics.clients
    assert pushed_metrics.dropped_points == 1
    pushed_metrics.take(number(0), CLIENT, each[:-1], until_ms=LATER_MS)
    pushed_metrics.take(INSTANCE_ID, CLIENT, [point("one more", 1)], until_ms=LATER_MS + clients)
    assert len(values_of(pushed_metrics)) == 1
    pushed_metrics.expire(LATER_MS + 1)
    assert len(pushed_metrics.clients) == clients - 1
    pushed_metrics.take(number(0), CLIENT, each, until_ms=LATER_MS)
    assert len(values_of(pushed_metrics, number(0))) == MAX_SERIES_OF_CLIENT


def test_length_of_a_series_is_limited(pushed_metrics: PushedMetrics) -> None:
    name = "m" * (MAX_SERIES_LENGTH - len("topic") - 1)
    pushed_metrics.take(
        INSTANCE_ID, CLIENT, [point(name, 1, label="a"), point(name, 1, label="aa")], until_ms=LATER_MS
    )
    assert values_of(pushed_metrics) == {(name, "a"): 1}
    assert pushed_metrics.dropped_points == 1


def test_ended_clients_expire_after_a_minute(pushed_metrics: PushedMetrics) -> None:
    pushed_metrics.take(INSTANCE_ID, CLIENT, [point("m", 1)], until_ms=LATER_MS)
    pushed_metrics.take(number(1), CLIENT, [point("m", 1)], until_ms=LATER_MS)
    pushed_metrics.end_client(INSTANCE_ID, 1_000)
    pushed_metrics.end_client(number(2), 1_000)
    pushed_metrics.expire(1_000 + KEPT_AFTER_END_MS - 1)
    assert INSTANCE_ID in pushed_metrics.clients
    pushed_metrics.expire(1_000 + KEPT_AFTER_END_MS)
    assert list(pushed_metrics.clients) == [number(1)]
    pushed_metrics.expire(LATER_MS)
    assert not pushed_metrics.clients
