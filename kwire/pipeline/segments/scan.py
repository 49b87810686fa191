"""From batch to batch through a partition, whatever the broker does to its files meanwhile."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.log.producer_state import CorruptSnapshot, ProducerStateManager
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

CHUNK_BYTES: Final = 1 << 20
SEGMENT_OFFSETS: Final = 1 << 31
"""Offsets that a segment can hold: indexes write them as 32-bit distances from its base offset."""
_GONE: Final = (".deleted", ".swap")
"""What is appended to the names of files that the broker is about to delete, or has just put in place."""


class CorruptSegment(SegmentsError):
    """Bytes that are no batch, in the middle of a log."""

    def __init__(self, path: Path, position: int, offset: int, what: str) -> None:
        super().__init__(f"{path} is corrupt at byte {position}, at offset {offset} or after it: {what}")
        self.position = position
        self.offset = offset


class Chunk(NamedTuple):
    """Bytes of a segment with the whole batches in them."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]
    position: int = 0
    """Where in the file the bytes begin."""


class SegmentFile:
    """A segment that is open for reading, and stays readable when the broker deletes it."""

    def __init__(self, segment: Segment) -> None:
        """FileNotFoundError."""
        self.path = segment.path
        self.base_offset = segment.base_offset
        self._descriptor = os.open(segment.path, os.O_RDONLY)

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """Up to so many bytes; fewer at the end of the file. SegmentsError."""
        try:
            return os.pread(self._descriptor, size_bytes, position)
        except OSError as error:
            raise SegmentsError(f"{self.path} cannot be read at byte {position}: {error.strerror}") from None

    def chunks(self, position: int, end: int, *, is_active: bool, next_offset: int) -> Iterator[Chunk]:
        """The batches from `position` up to `end`. CorruptSegment.

        In the active segment a batch that is cut short ends it: the broker is writing it now, or was killed.
        `next_offset` is the least that the first batch may begin with, as offsets never go back.
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
                        why = f"a batch of {size_bytes} bytes is cut short"
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
                why = f"a batch is cut short after {end - position - at} bytes"
            if not why and size < wanted:
                why = "the file has become shorter"
            if batches:
                yield Chunk(data, batches, position)
            if why:
                if is_active:
                    return
                raise CorruptSegment(self.path, position + at, next_offset, why)
            position += at


def header_error(header: BatchHeader, next_offset: int, limit_offset: int) -> str:
    """What is wrong with the header of a batch whose offsets are to be between two others; nothing if not."""
    if header.magic != MAGIC:
        return f"a batch has format {header.magic}, not {MAGIC}"
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        return f"a batch has length {header.batch_length}"
    if header.base_offset < next_offset:
        return f"a batch begins at offset {header.base_offset}, which came before"
    if header.last_offset >= limit_offset:
        return f"a batch reaches to offset {header.last_offset}, which no segment like this holds"
    if header.last_offset_delta < 0 or header.records_count < 0:
        return f"the batch at offset {header.base_offset} has a negative number of records"
    return ""


def position_before(segment: Segment, file: SegmentFile, offset: int) -> int:
    """The position of a batch at or before `offset`: 0 where the index says nothing that is so."""
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
    """The batches that hold offsets from `start` on and below `end`. SegmentsError.

    Segments are looked for anew where one has gone, since the broker may have deleted or compacted it.
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
                raise SegmentsError(f"{segment.path} is listed, but not there") from None
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
            # In the active segment a batch that is cut short ends it: the broker is writing it now, or was
            # killed. Not if others follow.
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


# --- getting past damage: to the batch behind it, or one that the offset index points at


class LostOffsets(NamedTuple):
    """Offsets of a segment that cannot be read."""

    start_offset: int
    end_offset: int | None
    """None where nothing sound follows in the segment."""
    reason: str


def valid_chunks(
    segment: Segment, file: SegmentFile, position: int, end: int, next_offset: int
) -> Iterator[Chunk | LostOffsets]:
    """The batches from a position up to another that check out, and what lies between them that does not.

    `next_offset` is the least that the first batch may begin with. SegmentsError where the file cannot be
    read at all.
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
                    reason = f"since the CRC of the batch at byte {position} of {file.path} is wrong"
                    break
            else:
                return
        except CorruptSegment as error:
            position, reason = error.position, f"since {error}"
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
    """The first batch behind a wrong one that checks out, of those that can be found."""
    positions = segment.offset_index()[:, 1]
    candidates = positions[positions.searchsorted(wrong, side="right") :].tolist()
    head = file.read_at(wrong, HEADER_BYTES)
    if len(head) == HEADER_BYTES:
        # Its length may still be right.
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


# --- what a log comes to


def end_offset(partition: PartitionLog) -> int:
    """Where the log ends: behind its last whole batch. SegmentsError."""
    segments = partition.segments()
    if not segments:
        return 0
    last = segments[-1]
    end = last.base_offset
    file = SegmentFile(last)
    try:
        position = position_before(last, file, 1 << 62)
        for data, batches, _ in file.chunks(position, file.size_bytes, is_active=True, next_offset=end):
            # What was being written when the broker was killed may be whole by its length alone.
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
    """The last stable offset: every transaction with data before it has ended. `end` is the log's."""
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
    """The first offset from `start` on whose record is that late or later."""
    for data, batches, _ in chunks_between(partition, start, 1 << 62):
        for at, header in batches:
            if header.max_timestamp < timestamp_ms or header.is_control:
                continue
            for record in records(data, at, header):
                if record.timestamp >= timestamp_ms and record.offset >= start:
                    return record.offset
    return None
