"""From ranges of offsets to Arrow record batches in the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.batch import BatchHeader, CorruptBatch, crc_is_valid
from kwire.columns import HEADERS_TYPE, Columns, decode
from pipeline.segments.plan import Range
from pipeline.segments.scan import Chunk, CorruptSegment, chunks_between

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""How Kafka numbers the kinds of timestamps."""

_FIELDS: Final = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
SCHEMA: Final = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS: Final = pa.schema([*_FIELDS, pa.field("headers", HEADERS_TYPE)])

DECODE_BYTES: Final = 8 << 20
"""Compressed batches are decoded together up to about this size, decompressed; one may be larger."""


def read(range_: Range, *, headers: bool) -> Iterator[pa.RecordBatch]:
    """The records of a range. SegmentsError; CorruptSegment names the file, position and offset."""
    for chunk in chunks_between(range_.log, range_.start, range_.end):
        wanted = [(at, header) for at, header in chunk.batches if _is_wanted(range_, header)]
        for group in _groups(wanted):
            yield _record_batch(range_, _decoded(range_, chunk, group, headers=headers), group)


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


def _groups(batches: list[tuple[int, BatchHeader]]) -> Iterator[list[tuple[int, BatchHeader]]]:
    """Batches that are decoded together: fewer of those that may become much larger."""
    group: list[tuple[int, BatchHeader]] = []
    size_bytes = 0
    for at, header in batches:
        likely_bytes = header.size_bytes * (8 if header.attributes & 7 else 1)
        if group and size_bytes + likely_bytes > DECODE_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append((at, header))
        size_bytes += likely_bytes
    if group:
        yield group


def _decoded(range_: Range, chunk: Chunk, group: list[tuple[int, BatchHeader]], *, headers: bool) -> Columns:
    for at, header in group:
        if not crc_is_valid(chunk.data, at, header):
            raise _corrupt(range_, header, f"the CRC of the batch at offset {header.base_offset} is wrong")
    try:
        return decode(chunk.data, group, headers=headers)
    except CorruptBatch as error:
        raise _corrupt(range_, group[0][1], str(error)) from None


def _corrupt(range_: Range, header: BatchHeader, what: str) -> CorruptSegment:
    log = range_.log
    base = max(segment.base_offset for segment in log.segments() if segment.base_offset <= header.base_offset)
    return CorruptSegment(log.directory / f"{base:020d}.log", -1, header.base_offset, what)


def _record_batch(range_: Range, columns: Columns, group: list[tuple[int, BatchHeader]]) -> pa.RecordBatch:
    count = len(columns.offset)
    kinds = np.array([header.has_log_append_time for _, header in group], np.int32)
    arrays: list[Any] = [
        columns.key,
        columns.value,
        pa.repeat(pa.scalar(range_.topic), count),
        pa.repeat(pa.scalar(range_.partition, pa.int32()), count),
        pa.array(columns.offset),
        pa.array(columns.timestamp_ms * 1000, pa.int64()).view(pa.timestamp("us", tz="UTC")),
        pa.array(kinds[columns.batch]),
    ]
    if columns.headers is not None:
        arrays.append(columns.headers)
    schema = SCHEMA if columns.headers is None else SCHEMA_WITH_HEADERS
    found = pa.RecordBatch.from_arrays(arrays, schema=schema)
    first, last = group[0][1].base_offset, group[-1][1].last_offset
    if first >= range_.start and last < range_.end:
        return found
    inside = (columns.offset >= range_.start) & (columns.offset < range_.end)
    return found.filter(pa.array(inside))
