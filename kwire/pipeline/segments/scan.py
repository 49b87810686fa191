"""Iteration over the batches of a partition while a broker writes, deletes and compacts its files."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.log.producer_snapshot import CorruptSnapshot
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.pipeline.segments.damage import Damage, SkipDamage
from kwire.pipeline.segments.files import PartitionLog, Segment, SegmentsError
from kwire.wire.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    crc_is_valid,
    read_header,
    records,
)
from kwire.wire.plural import plural

CHUNK_BYTES: Final = 1 << 20
SEGMENT_OFFSETS: Final = 1 << 31
"""The number of offsets that a segment can hold: its indexes store 32-bit offsets relative to its base."""


class CorruptSegment(SegmentsError):
    """Bytes in the middle of a log that are not a valid batch."""

    def __init__(self, path: Path, position: int, offset: int, what: str) -> None:
        super().__init__(f"{path} is corrupt at byte {position}, at or after offset {offset}: {what}")
        self.position = position
        self.offset = offset


class Chunk(NamedTuple):
    """Bytes of a segment, and the complete batches in them."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]
    position: int = 0
    """The position of the bytes in the file."""


class SegmentFile:
    """An open segment file. It stays readable after the broker deletes the file."""

    def __init__(self, segment: Segment) -> None:
        """Open the file. Raises FileNotFoundError."""
        self.path = segment.path
        self.base_offset = segment.base_offset
        self._descriptor = os.open(segment.path, os.O_RDONLY)

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """Read up to `size_bytes` bytes; fewer at the end of the file. Raises SegmentsError."""
        try:
            return os.pread(self._descriptor, size_bytes, position)
        except OSError as error:
            raise SegmentsError(f"{self.path} cannot be read at byte {position}: {error.strerror}") from None

    def chunks(self, position: int, end: int, *, is_active: bool, next_offset: int) -> Iterator[Chunk]:
        """Yield the batches between two positions. Raises CorruptSegment at an invalid or incomplete batch.

        If the segment is active, iteration stops there instead, because the broker is still writing the batch
        or was killed. `next_offset` is the lowest valid base offset of the first batch. Raises SegmentsError
        if the file cannot be read.
        """
        chunk_bytes = CHUNK_BYTES
        while position < end:
            wanted = min(chunk_bytes, end - position)
            data = self.read_at(position, wanted)
            chunk_bytes = CHUNK_BYTES
            batches: list[tuple[int, BatchHeader]] = []
            at, size = 0, len(data)
            why = ""
            while at + HEADER_BYTES <= size:
                header = read_header(data, at)
                why = header_error(header, next_offset, self.base_offset + SEGMENT_OFFSETS)
                if why:
                    break
                size_bytes = header.size_bytes
                if at + size_bytes > size:
                    if position + at + size_bytes <= end:
                        chunk_bytes = max(CHUNK_BYTES, size_bytes)
                    else:
                        why = f"a batch of {plural(size_bytes, 'byte')} is incomplete"
                    break
                batches.append((at, header))
                next_offset = header.last_offset + 1
                at += size_bytes
            if (
                not why
                and size - at < HEADER_BYTES
                and end - position - at < HEADER_BYTES
                and at < end - position
            ):
                why = f"a batch is incomplete after {plural(end - position - at, 'byte')}"
            if not why and size < wanted:
                why = "the file was truncated"
            if batches:
                yield Chunk(data, batches, position)
            if why:
                if is_active:
                    return
                raise CorruptSegment(self.path, position + at, next_offset, why)
            position += at


def header_error(header: BatchHeader, next_offset: int, limit_offset: int) -> str:
    """Describe what is wrong with a batch header. The result is empty if the header is valid.

    The offsets of the batch must be between `next_offset` and `limit_offset`.
    """
    if header.magic != MAGIC:
        return f"a batch has magic {header.magic}, not {MAGIC}"
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        return f"a batch has length {header.batch_length}"
    if header.base_offset < next_offset:
        return f"a batch has base offset {header.base_offset}, which is not larger than earlier offsets"
    if header.last_offset >= limit_offset:
        return f"a batch has last offset {header.last_offset}, beyond the offsets of this segment"
    if header.last_offset_delta < 0 or header.records_count < 0:
        return f"the batch at offset {header.base_offset} has a negative number of records"
    return ""


def position_before(segment: Segment, file: SegmentFile, offset: int) -> int:
    """Return the position of a batch at or before `offset`, or 0 if the index has no valid entry for it."""
    index = segment.offset_index()
    at = int(index[:, 0].searchsorted(offset, side="right"))
    if not at:
        return 0
    indexed, position = index[at - 1].tolist()
    head = file.read_at(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return 0
    header = read_header(head)
    base = segment.base_offset
    is_valid = (
        not header_error(header, base, base + SEGMENT_OFFSETS)
        and header.base_offset <= indexed <= header.last_offset
    )
    return position if is_valid else 0


def chunks_between(partition: PartitionLog, start: int, end: int) -> Iterator[Chunk]:
    """Yield the batches with offsets from `start` to before `end`, in chunks.

    If a segment has disappeared, lists the segments again, because the broker may have deleted or compacted
    it. Raises SegmentsError, or CorruptSegment unless the partition is set to skip corruption.
    """
    tries = 0
    while start < end:
        segments = partition.segments()
        bases = [segment.base_offset for segment in segments]
        number = max(0, bisect_right(bases, start) - 1)
        if not segments or bases[number] >= end:
            return
        segment = segments[number]
        after = bases[number + 1] if number + 1 < len(segments) else None
        try:
            file = SegmentFile(segment)
        except FileNotFoundError:
            tries += 1
            if tries > 10:
                raise SegmentsError(f"{segment.path} is listed but does not exist") from None
            continue
        try:
            position = position_before(segment, file, start)
            if partition.skipping is None:
                chunks = file.chunks(
                    position, file.size_bytes, is_active=False, next_offset=segment.base_offset
                )
            else:
                stop = end if after is None else min(after, end)
                chunks = _skip_damage(partition, partition.skipping, segment, file, position, (start, stop))
            for chunk in chunks:
                wanted = [
                    (at, header)
                    for at, header in chunk.batches
                    if header.last_offset >= start and header.base_offset < end
                ]
                if wanted:
                    start = max(start, wanted[-1][1].last_offset + 1)
                    yield chunk._replace(batches=wanted)
                if chunk.batches[-1][1].last_offset + 1 >= end:
                    return
        except CorruptSegment as error:
            # An incomplete batch at the end of the active segment is no corruption: the broker is still
            # writing it, or was killed. It is corruption if valid batches follow.
            torn = error.position
            if after is not None or next_valid_batch(segment, file, torn, file.size_bytes, error.offset):
                raise
        finally:
            file.close()
        if after is None:
            return
        start = max(start, after)


def _skip_damage(
    partition: PartitionLog,
    skipping: SkipDamage,
    segment: Segment,
    file: SegmentFile,
    position: int,
    span: tuple[int, int],
) -> Iterator[Chunk]:
    start, end = span
    for found in valid_chunks(segment, file, position, file.size_bytes, segment.base_offset):
        if isinstance(found, Chunk):
            yield found
            continue
        lost_from = max(found.start_offset, start)
        lost_to = end if found.end_offset is None else min(found.end_offset, end)
        if lost_from < lost_to:
            skipping.record(
                Damage(partition.topic, partition.partition, lost_from, lost_to, str(file.path), found.reason)
            )


# --- skipping corruption: continue at the next batch, or at a batch in the offset index


class LostOffsets(NamedTuple):
    """A range of a segment's offsets that cannot be read."""

    start_offset: int
    end_offset: int | None
    """None if no valid batch follows in the segment."""
    reason: str


def valid_chunks(
    segment: Segment, file: SegmentFile, position: int, end: int, next_offset: int
) -> Iterator[Chunk | LostOffsets]:
    """Yield the valid batches between two positions, and the offsets that are lost between them.

    `next_offset` is the lowest valid base offset of the first batch. Raises SegmentsError if the file cannot
    be read.
    """
    while position < end:
        reason = ""
        try:
            for chunk in file.chunks(position, end, is_active=False, next_offset=next_offset):
                valid = [(at, header) for at, header in _valid_batches(chunk)]
                if valid:
                    next_offset = valid[-1][1].last_offset + 1
                    yield chunk._replace(batches=valid)
                if len(valid) < len(chunk.batches):
                    at, header = chunk.batches[len(valid)]
                    position = chunk.position + at
                    reason = f"the batch at byte {position} of {file.path} has a wrong CRC"
                    break
            else:
                return
        except CorruptSegment as error:
            position, reason = error.position, str(error)
        found = next_valid_batch(segment, file, position, end, next_offset)
        if found is None:
            yield LostOffsets(next_offset, None, reason)
            return
        position, header = found
        yield LostOffsets(next_offset, header.base_offset, reason)
        next_offset = header.base_offset


def _valid_batches(chunk: Chunk) -> Iterator[tuple[int, BatchHeader]]:
    for at, header in chunk.batches:
        if not crc_is_valid(chunk.data, at, header):
            return
        yield at, header


def next_valid_batch(
    segment: Segment, file: SegmentFile, wrong: int, end: int, next_offset: int
) -> tuple[int, BatchHeader] | None:
    """Find the first valid batch after the invalid batch at position `wrong`, or return None.

    Candidates come from the length field of the invalid batch and from the offset index.
    """
    positions = segment.offset_index()[:, 1]
    candidates = positions[positions.searchsorted(wrong, side="right") :].tolist()
    head = file.read_at(wrong, HEADER_BYTES)
    if len(head) == HEADER_BYTES:
        # The length field of the invalid batch may be correct.
        candidates = sorted({wrong + max(1, read_header(head).size_bytes), *candidates})
    for position in candidates:
        header = _valid_header(file, position, end, next_offset)
        if header is not None:
            return position, header
    return None


def _valid_header(file: SegmentFile, position: int, end: int, next_offset: int) -> BatchHeader | None:
    if position + HEADER_BYTES > end:
        return None
    header = read_header(file.read_at(position, HEADER_BYTES))
    if (
        header_error(header, next_offset, file.base_offset + SEGMENT_OFFSETS)
        or position + header.size_bytes > end
    ):
        return None
    data = file.read_at(position, header.size_bytes)
    return header if len(data) == header.size_bytes and crc_is_valid(data, 0, header) else None


# --- offsets of a log: end, last stable, by timestamp


def end_offset(partition: PartitionLog) -> int:
    """Return the log end offset: the offset after the last complete batch. Raises SegmentsError."""
    segments = partition.segments()
    if not segments:
        return 0
    last = segments[-1]
    end = last.base_offset
    file = SegmentFile(last)
    try:
        position = position_before(last, file, 1 << 62)
        for data, batches, _ in file.chunks(position, file.size_bytes, is_active=True, next_offset=end):
            # Check the CRC, because a batch that was being written at a crash may be complete but wrong.
            for _, header in batches[:-1]:
                end = header.last_offset + 1
            at, header = batches[-1]
            if not crc_is_valid(data, at, header):
                break
            end = header.last_offset + 1
    finally:
        file.close()
    return end


def stable_offset(partition: PartitionLog, end: int) -> int:
    """Return the last stable offset: all transactions before this offset have ended.

    `end` is the log end offset. Raises SegmentsError.
    """
    now_ms = time.time_ns() // 1_000_000
    producers = ProducerStateManager(RealDisk(), str(partition.directory), partition=partition.name)
    start = partition.segments()[0].base_offset if partition.segments() else 0
    for offset, path in partition.snapshots():
        if start <= offset <= end:
            try:
                producers.load_snapshot(path.read_bytes(), offset, now_ms=now_ms)
            except (CorruptSnapshot, FileNotFoundError):
                continue
            start = offset
            break
    for data, batches, _ in chunks_between(partition, start, end):
        for at, header in batches:
            if header.has_producer_id:
                if header.is_control:
                    producers.update_from_marker(header, data, at)
                elif header.is_transactional:
                    producers.update(header)
    producers.on_high_watermark_updated(end)
    first = producers.first_unstable_offset
    return end if first is None else min(first, end)


def scan_for_timestamp(partition: PartitionLog, start: int, timestamp_ms: int) -> int | None:
    """Return the first offset from `start` on with a timestamp of at least `timestamp_ms`, or None."""
    for data, batches, _ in chunks_between(partition, start, 1 << 62):
        for at, header in batches:
            if header.max_timestamp < timestamp_ms or header.is_control:
                continue
            for record in records(data, at, header):
                if record.timestamp >= timestamp_ms and record.offset >= start:
                    return record.offset
    return None
