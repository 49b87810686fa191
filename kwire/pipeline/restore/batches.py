"""From an archive's rows to record batches: bounded by size, with the gaps between offsets kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kwire.pipeline.archive.reading import Row
from kwire.pipeline.segments.read import LOG_APPEND_TIME
from kwire.wire.batch import NewRecord, build
from kwire.wire.compression import Codec

BATCH_BYTES: Final = 128 << 10
"""Of keys, values and headers, before compression: far below what brokers and consumers take at once."""
_RECORD_BYTES: Final = 16
"""About what a record costs beside what is in it."""
MAX_OFFSET_DELTA: Final = 0x7FFFFFFF
"""Offsets within a batch are written as 32-bit distances from its base offset."""
LEADER_EPOCH: Final = 0
"""That of every batch: the log begins with the first leader of its partition."""


class Limits(NamedTuple):
    """How batches are made."""

    codec: Codec = Codec.LZ4
    batch_bytes: int = BATCH_BYTES


def batches(rows: Iterable[Row], start: int, end: int, limits: Limits = Limits()) -> Iterator[bytearray]:  # noqa: B008
    """The batches of a log that begins at offset `start` and ends before `end`. ValueError.

    Rows come in the order of their offsets. Each batch begins where the one before has ended, whatever is
    missing between their records, and the last one reaches to the log's end: so the log that is made of them
    begins and ends where the old one did, though its first and last offsets were markers of transactions, or
    are compacted away.
    """
    pending: list[Row] = []
    size_bytes = 0
    base = start
    for row in rows:
        if not start <= row.offset < end or (pending and row.offset <= pending[-1].offset):
            raise ValueError(f"offset {row.offset} is not between {start} and {end}, or comes twice")
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
    """Whether a row can be in the batch that begins with another one."""
    if row.offset - base > MAX_OFFSET_DELTA or row.timestamp_type != first.timestamp_type:
        return False
    # A batch that the broker has stamped has one time for all of its records.
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
