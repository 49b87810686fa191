"""Record batches from the rows of an archive. They have a bounded size and preserve gaps between offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kwire.pipeline.archive.reading import Row
from kwire.pipeline.segments.read import LOG_APPEND_TIME
from kwire.wire.batch import NewRecord, build
from kwire.wire.compression import Codec

BATCH_BYTES: Final = 128 << 10
"""The target size of a batch before compression, far below the limits of brokers and consumers."""
_RECORD_BYTES: Final = 16
"""The approximate overhead of a record, in addition to its key, value and headers."""
MAX_OFFSET_DELTA: Final = 0x7FFFFFFF
"""A batch stores offsets as 32-bit deltas from its base offset."""
LEADER_EPOCH: Final = 0
"""The leader epoch of every batch. It is the epoch of a new partition's first leader."""


class Limits(NamedTuple):
    """The limits and the compression of batches."""

    codec: Codec = Codec.LZ4
    batch_bytes: int = BATCH_BYTES


def batches(rows: Iterable[Row], start: int, end: int, limits: Limits = Limits()) -> Iterator[bytearray]:  # noqa: B008
    """Yield the batches of a log that begins at offset `start` and ends before `end`.

    Each batch begins where the previous batch ends, even if there is a gap between their records. The last
    batch extends to `end`. So the log has the original start and end offsets, even if the records at these
    offsets were transaction markers or were compacted. Only a gap that exceeds MAX_OFFSET_DELTA remains
    between batches. Raises ValueError if rows are outside of these offsets or not in offset order.
    """
    pending: list[Row] = []
    size_bytes = 0
    base = start
    for row in rows:
        if not start <= row.offset < end or (pending and row.offset <= pending[-1].offset):
            raise ValueError(f"offset {row.offset} is not between {start} and {end}, or is a duplicate")
        if pending and (size_bytes >= limits.batch_bytes or not _fits_batch(pending[0], row, base)):
            yield _build_batch(pending, base, pending[-1].offset + 1, limits)
            base = pending[-1].offset + 1
            pending, size_bytes = [], 0
        if not pending and row.offset - base > MAX_OFFSET_DELTA:
            base = row.offset
        pending.append(row)
        size_bytes += _size_bytes(row)
    if pending:
        yield _build_batch(pending, base, min(end, base + MAX_OFFSET_DELTA + 1), limits)


def _fits_batch(first: Row, row: Row, base: int) -> bool:
    """Return whether a row can be in the batch that begins with `first`."""
    if row.offset - base > MAX_OFFSET_DELTA or row.timestamp_type != first.timestamp_type:
        return False
    # A batch with LogAppendTime has one timestamp for all of its records.
    return row.timestamp_type != LOG_APPEND_TIME or row.timestamp_ms == first.timestamp_ms


def _size_bytes(row: Row) -> int:
    size = _RECORD_BYTES + len(row.key or b"") + len(row.value or b"")
    if row.headers:
        size += sum(len(name) + len(content or b"") for name, content in row.headers)
    return size


def _build_batch(rows: list[Row], base: int, end: int, limits: Limits) -> bytearray:
    new: list[NewRecord] = [(row.timestamp_ms, row.key, row.value, row.headers) for row in rows]
    first = rows[0]
    return build(
        new,
        base_offset=base,
        codec=limits.codec,
        leader_epoch=LEADER_EPOCH,
        log_append_time=first.timestamp_ms if first.timestamp_type == LOG_APPEND_TIME else None,
        offset_deltas=[*(row.offset - base for row in rows), end - base - 1],
    )
