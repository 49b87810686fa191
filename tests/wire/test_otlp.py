"""Client telemetry (OpenTelemetry metrics), compared with the protobuf library.

`otlp-*.bin` are decompressed pushes of Apache Kafka's console clients 4.3.1 and of confluent-kafka 2.16.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kwire.wire.errors import WireError
from kwire.wire.otlp import MAX_LABELS, MetricsLimitExceeded, Point, PointKind, read_points
from tests.wire.kafka_json import DATA

PUSHED = sorted(DATA.glob("otlp-*.bin"))
ENOUGH = 1_000_000
DELTA = 1


def read(data: bytes, max_fields: int = ENOUGH) -> list[Point]:
    return list(read_points(data, max_fields=max_fields))


def read_by_protobuf(data: bytes) -> list[Point]:
    """Read the points with the protobuf library."""
    return list(_points(MetricsData.FromString(data)))


def _points(data: Any) -> Iterator[Point]:
    for resource in data.resource_metrics:
        about = _labels(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                what = metric.WhichOneof("data")
                if what not in ("gauge", "sum"):
                    continue
                kind, is_monotonic = PointKind.GAUGE, False
                if what == "sum":
                    kind = PointKind.DELTA if metric.sum.aggregation_temporality == DELTA else PointKind.TOTAL
                    is_monotonic = metric.sum.is_monotonic
                for point in getattr(metric, what).data_points:
                    value = point.WhichOneof("value")
                    if value is not None and not point.flags & 1:
                        labels = about + _labels(point.attributes)
                        yield Point(metric.name, labels, getattr(point, value), kind, is_monotonic)


def _labels(attributes: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    found = []
    for one in attributes:
        what = one.value.WhichOneof("value")
        if what in ("string_value", "int_value", "double_value"):
            found.append((one.key, str(getattr(one.value, what))))
        elif what == "bool_value":
            found.append((one.key, str(one.value.bool_value).lower()))
    return tuple(found)


@pytest.mark.parametrize("path", PUSHED, ids=lambda path: path.stem)
def test_pushes_of_clients_match_protobuf(path: Any) -> None:
    data = path.read_bytes()
    points = read(data)
    assert repr(points) == repr(read_by_protobuf(data))  # NaN is not equal to NaN
    assert points
    assert all(point.name.startswith("org.apache.kafka.") for point in points)
    assert {point.kind for point in points} == {PointKind.GAUGE, PointKind.DELTA}
    assert all(point.is_monotonic for point in points if point.kind is PointKind.DELTA)


def test_data_has_pushes_of_the_named_clients() -> None:
    assert [path.stem for path in PUSHED] == [
        "otlp-java-consumer",
        "otlp-java-producer",
        "otlp-librdkafka-consumer",
    ]


def random_metrics(rng: random.Random) -> Any:
    """Return random metrics of every kind, with attributes of every type."""
    data = MetricsData()
    for _ in range(rng.randint(0, 3)):
        resource = data.resource_metrics.add(schema_url=rng.choice(["", "http://x"]))
        _fill(rng, resource.resource.attributes)
        for _ in range(rng.randint(0, 2)):
            scope = resource.scope_metrics.add()
            scope.scope.name = "s" * rng.randint(0, 200)
            for number in range(rng.randint(0, 4)):
                _make_metric(rng, scope.metrics.add(name=f"m{number}\u00e9", unit="ms", description="d"))
    return data


def _make_metric(rng: random.Random, metric: Any) -> None:
    kind = rng.choice(["gauge", "sum", "histogram", "exponential_histogram", "summary", ""])
    if kind == "histogram":
        metric.histogram.data_points.add(count=3, sum=1.5, bucket_counts=[1, 2], explicit_bounds=[0.5])
    elif kind == "exponential_histogram":
        metric.exponential_histogram.data_points.add(count=3, scale=-2)
    elif kind == "summary":
        metric.summary.data_points.add(count=3).quantile_values.add(quantile=0.5, value=2)
    elif kind:
        numbers = getattr(metric, kind)
        if kind == "sum":
            numbers.aggregation_temporality = rng.choice([0, 1, 2])
            numbers.is_monotonic = rng.random() < 0.5
        for _ in range(rng.randint(0, 3)):
            point = numbers.data_points.add(
                time_unix_nano=rng.getrandbits(63), flags=rng.choice([0, 0, 1, 2])
            )
            _fill(rng, point.attributes)
            value = rng.choice(["as_int", "as_double", ""])
            if value == "as_int":
                point.as_int = rng.getrandbits(64) - (1 << 63)
            elif value:
                point.as_double = rng.choice([0.0, -1.5, 1e300, float("inf")])


def _fill(rng: random.Random, attributes: Any) -> None:
    for number in range(rng.randint(0, 4)):
        value = attributes.add(key=f"k{number}").value
        kind = rng.choice(["string", "bool", "int", "double", "array", "kvlist", "bytes", ""])
        if kind == "string":
            value.string_value = "v\u20ac" * rng.randint(0, 3)
        elif kind == "bool":
            value.bool_value = rng.random() < 0.5
        elif kind == "int":
            value.int_value = rng.choice([0, -1, 5, -(1 << 63), (1 << 63) - 1])
        elif kind == "double":
            value.double_value = rng.choice([0.5, -0.0, 1e-300])
        elif kind == "array":
            value.array_value.values.add(string_value="x")
        elif kind == "kvlist":
            value.kvlist_value.values.add(key="k")
        elif kind == "bytes":
            value.bytes_value = b"\xff"


def test_random_pushes_match_protobuf() -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(300):
        data = random_metrics(rng).SerializeToString()
        points = read(data)
        assert points == read_by_protobuf(data)
        found += len(points)
    assert found > 150


def test_truncated_push_is_refused_as_by_protobuf() -> None:
    rng = random.Random(8)
    refused = 0
    for _ in range(20):
        whole = random_metrics(rng).SerializeToString()
        for size in range(len(whole)):
            try:
                expected = read_by_protobuf(whole[:size])
            except DecodeError:
                refused += 1
                with pytest.raises(WireError):
                    read(whole[:size])
            else:
                assert read(whole[:size]) == expected
    assert refused > 1_000


def test_changed_bytes_are_refused_or_read_as_by_protobuf() -> None:
    """Changed bytes raise WireError or give points, the same ones as protobuf if it accepts them."""
    rng = random.Random(9)
    whole = PUSHED[2].read_bytes()
    both = 0
    for _ in range(2_000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            points = read(bytes(data))
        except WireError:
            continue
        try:
            expected = read_by_protobuf(bytes(data))
        except DecodeError:
            continue  # in a field that kwire skips
        both += 1
        assert repr(points) == repr(expected)
    assert both > 100


def test_number_of_fields_is_limited() -> None:
    data = PUSHED[0].read_bytes()
    before: list[Point] = []
    with pytest.raises(MetricsLimitExceeded):
        before.extend(read_points(data, max_fields=500))
    assert repr(before) == repr(read(data)[: len(before)])
    assert before


@pytest.mark.parametrize("of_point", [0, 1])
def test_number_of_labels_is_limited(of_point: int) -> None:
    """The labels of a resource apply to each point, so their product is limited."""
    data = MetricsData()
    resource = data.resource_metrics.add()
    for number in range(MAX_LABELS - of_point):
        resource.resource.attributes.add(key=str(number)).value.string_value = ""
    (whole, extended) = resource.scope_metrics.add().metrics.add(name="a"), resource.scope_metrics.add()
    for metric in (whole, extended.metrics.add(name="b")):
        point = metric.gauge.data_points.add(as_int=1)
        for number in range(of_point):
            point.attributes.add(key=f"own {number}").value.string_value = ""
    assert read(data.SerializeToString()) == read_by_protobuf(data.SerializeToString())
    last = extended.metrics[0].gauge.data_points[0] if of_point else resource.resource
    last.attributes.add(key="one more").value.bool_value = True
    points = read_points(data.SerializeToString(), max_fields=ENOUGH)
    assert [next(points).name for _ in range(of_point)] == ["a"] * of_point
    with pytest.raises(MetricsLimitExceeded):
        next(points)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0b\x0c", "of wire type 3"),
        (b"\x0f", "of wire type 7"),
        (b"\xff" * 11, "longer than 64 bits"),
        (b"\x08", "end within a varint"),
        (b"\x0a\x05\x00", "exceeds the buffer"),
        (b"\x09\x00", "exceeds the buffer"),
        (b"\x0d\x00", "exceeds the buffer"),
    ],
)
def test_malformed_protobuf_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        read(data)


def test_invalid_utf_8_is_refused() -> None:
    data = bytes.fromhex("0a07 1205 1203 0a01 ff")
    with pytest.raises(DecodeError):
        read_by_protobuf(data)
    with pytest.raises(WireError, match="UTF-8"):
        read(data)
