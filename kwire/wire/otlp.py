"""A reader of OpenTelemetry's MetricsData, which Kafka clients push (KIP-714): gauges and sums.

The messages are those of opentelemetry/proto/metrics/v1/metrics.proto, which is stable. A protobuf library
would be the broker's largest dependency, and this reader needs only eight messages. It skips all other
fields, as protobuf requires. Among them are histograms and summaries, which neither the Java client nor
librdkafka sends.

A field's tag is its number times eight plus its wire type. A known field with an unexpected wire type is
skipped too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from kwire.wire.errors import WireError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_INT64: Final = struct.Struct("<q").unpack
_DOUBLE: Final = struct.Struct("<d").unpack
_DELTA: Final = 1
_NO_RECORDED_VALUE: Final = 1
MAX_LABELS: Final = 32
"""The maximum number of a point's labels. Clients send about ten at most.

The labels of a resource are copied to each of its points, so the limit on fields does not bound memory and
time.
"""


class PointKind(Enum):
    """The meaning of a point's value."""

    GAUGE = "gauge"
    """The value at the time of the measurement."""
    TOTAL = "total"
    """The sum since the client started counting (cumulative temporality)."""
    DELTA = "delta"
    """The sum since the client's previous push (delta temporality)."""


Label = tuple[str, str]
Labels = tuple[Label, ...]


class MetricsLimitExceeded(WireError):
    """The error if metrics exceed a limit of the reader."""


class Point(NamedTuple):
    """A data point: one value of a client's metric."""

    name: str
    labels: Labels
    """The attributes of the resource, followed by the attributes of the point."""
    value: float
    kind: PointKind
    is_monotonic: bool


def read_points(data: Buffer, *, max_fields: int) -> Iterator[Point]:
    """Yield the data points of a MetricsData.

    Raises WireError for malformed data. Raises MetricsLimitExceeded if there are more than `max_fields`
    fields, or if a point has more than MAX_LABELS labels. The points before the error are yielded.
    """
    message = _ProtobufReader(memoryview(data), max_fields)
    for tag, value in message.fields(message.span):
        if tag == _tag(1, _LENGTH):
            yield from _resource_points(message, value)


def _tag(number: int, kind: int) -> int:
    return number << 3 | kind


# The fields that are read: field number and wire type.
_FIRST: Final = _tag(1, _LENGTH)
_SECOND: Final = _tag(2, _LENGTH)
_GAUGE: Final = _tag(5, _LENGTH)
_SUM: Final = _tag(7, _LENGTH)
_TEMPORALITY: Final = _tag(2, _VARINT)
_IS_MONOTONIC: Final = _tag(3, _VARINT)
_AS_DOUBLE: Final = _tag(4, _FIXED64)
_AS_INT: Final = _tag(6, _FIXED64)
_ATTRIBUTE: Final = _tag(7, _LENGTH)
_FLAGS: Final = _tag(8, _VARINT)
_TEXT: Final = _tag(1, _LENGTH)
_TRUTH: Final = _tag(2, _VARINT)
_WHOLE_NUMBER: Final = _tag(3, _VARINT)
_NUMBER: Final = _tag(4, _FIXED64)

Span = tuple[int, int]


class _ProtobufReader:
    """A reader of protobuf messages in a buffer, with a limit on the number of fields."""

    def __init__(self, data: memoryview, max_fields: int) -> None:
        self._data = data
        self._left = max_fields
        self.span: Span = 0, len(data)

    def fields(self, span: Span) -> Iterator[tuple[int, Span]]:
        """Yield the tag of each field and the span of its value. Raises WireError.

        For a varint, the pair has the value and the position after it, instead of a span.
        """
        position, end = span
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise MetricsLimitExceeded("the metrics have too many fields")
            tag, position = self._varint(position, end)
            kind = tag & 7
            if kind == _VARINT:
                value, position = self._varint(position, end)
                yield tag, (value, position)
                continue
            if kind == _LENGTH:
                size, position = self._varint(position, end)
            elif kind == _FIXED64:
                size = 8
            elif kind == _FIXED32:
                size = 4
            else:
                raise WireError(f"the metrics have a field of wire type {kind} at byte {position}")
            if size > end - position:
                raise WireError(
                    f"a field of {plural(size, 'byte')} at byte {position} exceeds the buffer, which ends at "
                    f"byte {end}"
                )
            yield tag, (position, position + size)
            position += size

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        data, value = self._data, 0
        for shift in range(0, 70, 7):
            if position >= end:
                raise WireError(f"the metrics end within a varint at byte {position}")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, position
        raise WireError(f"the varint that ends at byte {position} is longer than 64 bits")

    def text(self, span: Span) -> str:
        try:
            return str(self._data[span[0] : span[1]], "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"the text at byte {span[0]} is not UTF-8") from error

    def double(self, span: Span) -> float:
        value: float = _DOUBLE(self._data[span[0] : span[1]])[0]
        return value

    def int64(self, span: Span) -> int:
        value: int = _INT64(self._data[span[0] : span[1]])[0]
        return value


def _resource_points(message: _ProtobufReader, span: Span) -> Iterator[Point]:
    """Yield the points of a ResourceMetrics."""
    labels: list[Label] = []
    scopes = []
    for tag, value in message.fields(span):
        if tag == _FIRST:
            for part, where in message.fields(value):
                if part == _FIRST:
                    _add_attribute(message, where, labels)
        elif tag == _SECOND:
            scopes.append(value)
    for scope in scopes:
        for tag, value in message.fields(scope):
            if tag == _SECOND:
                yield from _metric_points(message, value, labels)


def _metric_points(message: _ProtobufReader, span: Span, labels: Sequence[Label]) -> Iterator[Point]:
    """Yield the points of a Metric."""
    name = ""
    found: Span | None = None
    is_sum = False
    for tag, value in message.fields(span):
        if tag == _FIRST:
            name = message.text(value)
        elif tag in (_GAUGE, _SUM):
            found, is_sum = value, tag == _SUM
    if found is None:
        return
    kind = PointKind.TOTAL if is_sum else PointKind.GAUGE
    is_monotonic, points = False, []
    for tag, value in message.fields(found):
        if tag == _FIRST:
            points.append(value)
        elif is_sum and tag == _TEMPORALITY:
            kind = PointKind.DELTA if value[0] == _DELTA else PointKind.TOTAL  # also if it is unspecified
        elif is_sum and tag == _IS_MONOTONIC:
            is_monotonic = bool(value[0])
    for point in points:
        number: float | None = None
        has_value = True
        own = list(labels)
        for tag, value in message.fields(point):
            if tag == _AS_DOUBLE:
                number = message.double(value)
            elif tag == _AS_INT:
                number = message.int64(value)
            elif tag == _ATTRIBUTE:
                _add_attribute(message, value, own)
            elif tag == _FLAGS:
                has_value = not value[0] & _NO_RECORDED_VALUE
        if number is not None and has_value:
            yield Point(name, tuple(own), number, kind, is_monotonic)


def _add_attribute(message: _ProtobufReader, span: Span, labels: list[Label]) -> None:
    """Append the attribute in a KeyValue to `labels`, unless its value is a list, a map or bytes.

    Raises WireError for malformed data, and MetricsLimitExceeded for more than MAX_LABELS labels.
    """
    key, text = "", None
    for tag, value in message.fields(span):
        if tag == _FIRST:
            key = message.text(value)
        elif tag == _SECOND:
            text = _any_value(message, value)
    if text is None:
        return
    if len(labels) == MAX_LABELS:
        raise MetricsLimitExceeded(f"a point has more than {MAX_LABELS} labels")
    labels.append((key, text))


def _any_value(message: _ProtobufReader, span: Span) -> str | None:
    text = None
    for tag, value in message.fields(span):
        if tag == _TEXT:
            text = message.text(value)
        elif tag == _TRUTH:
            text = "true" if value[0] else "false"
        elif tag == _WHOLE_NUMBER:
            text = str(value[0] - (1 << 64) if value[0] >> 63 else value[0])
        elif tag == _NUMBER:
            text = str(message.double(value))
    return text
