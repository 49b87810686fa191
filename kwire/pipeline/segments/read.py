"""Reading of offset ranges as Arrow record batches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.pipeline.segments.files import PartitionLog, SegmentsError
from kwire.pipeline.segments.plan import Range
from kwire.pipeline.segments.scan import Chunk, CorruptSegment, chunks_between
from kwire.wire.batch import BatchHeader, CorruptBatch, crc_is_valid
from kwire.wire.columns import HEADERS_TYPE, Batches, Columns, decode_parts

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Kafka's numbers for the timestamp types."""

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS_TYPE))
TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The Spark types of the columns in SCHEMA_WITH_HEADERS."""

_RECORD_COLUMNS: Final = frozenset({"key", "value", "timestamp", "headers"})
"""Columns that the reader can fill only by decoding each record."""

_MIN_CONSTANT_ROWS: Final = 1 << 14
"""The minimum number of rows for which a constant column is built."""

MAX_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000
"""Spark's latest timestamp, because Spark counts microseconds in 64 bits. The earliest is its negative."""

DECODE_BYTES: Final = 2 << 20
"""The maximum decompressed size of the batches that are decoded together, except for a single batch."""


def check_columns(types: Mapping[str, str]) -> list[str]:
    """Return the column names in a user's schema. Raises SegmentsError for an unknown column or a wrong type.

    `types` has the Spark type of each column.
    """
    for name, type_ in types.items():
        if name not in TYPES:
            raise SegmentsError(f"unknown column {name!r}; the columns are {', '.join(TYPES)}")
        if type_ != TYPES[name]:
            raise SegmentsError(f"the column {name!r} has type {TYPES[name]}, not {type_}")
    return list(types)


def read(
    range_: Range, *, headers: bool = False, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the records of a range, with the named columns. By default, these are the columns of SCHEMA.

    `headers` adds the headers to the default columns. Raises SegmentsError, or its subclass CorruptSegment
    with the file, position and offset in the message.
    """
    names = (SCHEMA_WITH_HEADERS if headers else SCHEMA).names if columns is None else list(columns)
    schema = pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in names])
    constants = _ConstantColumns()
    for chunk in chunks_between(range_.log, range_.start, range_.end):
        wanted = [(at, header) for at, header in chunk.batches if _is_wanted(range_, header)]
        for found, group in _decoded(range_, chunk, wanted, frozenset(names)):
            yield _record_batch(range_, found, group, schema, constants)


def _is_wanted(range_: Range, header: BatchHeader) -> bool:
    if header.is_control or not header.records_count:
        return False
    if not (range_.is_committed_only and header.is_transactional):
        return True
    return not any(
        entry.producer_id == header.producer_id
        and entry.first_offset <= header.base_offset <= entry.last_offset
        for entry in range_.aborted
    )


def _decoded(
    range_: Range, chunk: Chunk, wanted: Batches, names: frozenset[str]
) -> Iterator[tuple[Columns, Batches]]:
    for at, header in wanted:
        if not crc_is_valid(chunk.data, at, header):
            why = f"the batch at offset {header.base_offset} has a wrong CRC"
            raise _corrupt(range_, chunk.position + at, header, why)
    if not wanted:
        return
    if not names & _RECORD_COLUMNS and all(_is_dense(header) for _, header in wanted):
        yield _columns_from_headers(wanted), wanted
        return
    try:
        yield from decode_parts(chunk.data, wanted, max_bytes=DECODE_BYTES, fields=names)
    except CorruptBatch as error:
        at, header = wanted[0]
        raise _corrupt(range_, chunk.position + at, header, str(error)) from None


def _is_dense(header: BatchHeader) -> bool:
    """Return whether a batch has a record for each of its offsets, so that its records need no decoding."""
    return header.records_count == header.last_offset_delta + 1


def _columns_from_headers(batches: Batches) -> Columns:
    """Build columns from batch headers alone, without timestamps."""
    counts = np.array([header.records_count for _, header in batches], np.int64)
    first = np.array([header.base_offset for _, header in batches], np.int64)
    batch = np.repeat(np.arange(len(counts)), counts)
    offset = (first - np.cumsum(counts) + counts).take(batch) + np.arange(len(batch))
    return Columns(batch, offset, np.zeros(0, np.int64), None, None, None)


def _corrupt(range_: Range, position: int, header: BatchHeader, what: str) -> CorruptSegment:
    path = _segment_of(range_.log, header.base_offset)
    return CorruptSegment(path, position, header.base_offset, what)


def _segment_of(log: PartitionLog, offset: int) -> Path:
    base = max(segment.base_offset for segment in log.segments() if segment.base_offset <= offset)
    return log.directory / f"{base:020d}.log"


class _ConstantColumns:
    """Columns with the same value for all records, built once and sliced."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, Any], pa.Array] = {}

    def __call__(self, name: str, value: Any, count: int) -> pa.Array:
        made = self._made.get((name, value))
        if made is None or len(made) < count:
            made = pa.repeat(pa.scalar(value, SCHEMA.field(name).type), max(count, _MIN_CONSTANT_ROWS))
            self._made[name, value] = made
        return made[:count]


def _record_batch(
    range_: Range, columns: Columns, group: Batches, schema: pa.Schema, constants: _ConstantColumns
) -> pa.RecordBatch:
    count = len(columns.offset)
    arrays = [_array(range_, columns, group, name, count, constants) for name in schema.names]
    found = pa.RecordBatch.from_arrays(arrays, schema=schema)
    first, last = group[0][1].base_offset, group[-1][1].last_offset
    if first >= range_.start and last < range_.end:
        return found
    inside = (columns.offset >= range_.start) & (columns.offset < range_.end)
    return found.filter(pa.array(inside))


def _array(
    range_: Range, columns: Columns, group: Batches, name: str, count: int, constants: _ConstantColumns
) -> Any:
    match name:
        case "topic":
            return constants(name, range_.topic, count)
        case "partition":
            return constants(name, range_.partition, count)
        case "offset":
            return pa.array(columns.offset)
        case "timestamp":
            _check_times(range_, columns, group)
            return pa.array(columns.timestamp_ms * 1000, pa.int64()).view(pa.timestamp("us", tz="UTC"))
        case "timestampType":
            kinds = np.array([header.has_log_append_time for _, header in group], np.int32)
            if (kinds == kinds[0]).all():
                return constants(name, int(kinds[0]), count)
            return pa.array(kinds.take(columns.batch))
        case _:
            return getattr(columns, name)


def _check_times(range_: Range, columns: Columns, group: Batches) -> None:
    """Raise SegmentsError if Spark cannot represent the timestamp of a record in the range."""
    times_ms = columns.timestamp_ms
    if not len(times_ms) or -MAX_TIMESTAMP_MS <= times_ms.min() <= times_ms.max() <= MAX_TIMESTAMP_MS:
        return
    beyond = (times_ms < -MAX_TIMESTAMP_MS) | (times_ms > MAX_TIMESTAMP_MS)
    inside = (columns.offset >= range_.start) & (columns.offset < range_.end)
    for at in np.flatnonzero(beyond & inside)[:1].tolist():
        path = _segment_of(range_.log, group[int(columns.batch[at])][1].base_offset)
        raise SegmentsError(
            f"{path} has timestamp {times_ms[at]} ms at offset {columns.offset[at]} of "
            f"{range_.topic}-{range_.partition}, which is too large for Spark (is it in nanoseconds?): "
            f"exclude the offset or the column timestamp"
        )
