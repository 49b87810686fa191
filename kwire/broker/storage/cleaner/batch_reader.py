"""Reading a segment batch by batch, from its beginning or, piece by piece, from its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from kwire.broker.storage.disk import DiskFile
from kwire.wire.batch import (
    CONTROL_MASK,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    read_header,
)
from kwire.wire.named_tuple import NamedTuple

Throttle = Callable[[int], None]
"""Told of every byte read or written; it waits where that was too fast."""
ReadBatch = tuple[bytes, int, BatchHeader]
"""Bytes that were read, where in them a batch begins, its header."""
FileRange = tuple[int, int]
"""Neighbouring batches in a file: where the first one begins, and where the last one ends."""

TRANSACTIONAL_OR_CONTROL: Final = TRANSACTIONAL_MASK | CONTROL_MASK

_HEADERS_BYTES: Final = 4096
"""What is read for the sake of headers at once: one of a large batch, or those of many small ones."""
_HEAD = Struct(">qi4xb4xhi30xi")
"""Of a batch's header: base offset, length, magic, attributes, last offset delta, count of records."""
_LENGTH = Struct(">i")


def no_throttle(size_bytes: int) -> None:
    """A throttle that never waits."""


def batches_in(
    file: DiskFile, end: int, read_bytes: int, throttle: Throttle = no_throttle
) -> Iterator[ReadBatch]:
    """The batches of a segment. CorruptBatch for what is not a whole batch of format 2."""
    position = 0
    chunk_bytes = read_bytes
    while position < end:
        wanted_bytes = min(chunk_bytes, end - position)
        data = file.read_at(position, wanted_bytes)
        throttle(len(data))
        if len(data) < wanted_bytes:
            raise CorruptBatch(f"the file ends at byte {position + len(data)}, and not at {end}")
        chunk_bytes = read_bytes
        at, size = 0, len(data)
        while at + HEADER_BYTES <= size:
            header = read_header(data, at)
            size_bytes = _size_of(header, position + at)
            if at + size_bytes > size:
                if position + at + size_bytes > end:
                    raise CorruptBatch(f"the batch at byte {position + at} is cut short")
                chunk_bytes = max(read_bytes, size_bytes)
                break
            yield data, at, header
            at += size_bytes
        if not at and (size < HEADER_BYTES or chunk_bytes <= size):
            raise CorruptBatch(f"the batch at byte {position} is cut short")
        position += at


class PlainRanges(NamedTuple):
    """A segment's batches from some offset on, in pieces that are to be read at once."""

    file_ranges: list[FileRange]
    batches: int
    records: int
    end_offset: int
    """The offset after the last batch."""


def plain_ranges(
    file: DiskFile,
    base_offset: int,
    end: int,
    read_bytes: int,
    first_offset: int,
    throttle: Throttle = no_throttle,
) -> PlainRanges | None:
    """Divide what a segment, of this base, has from `first_offset` on; hardly more than headers is read.

    None where a batch is part of a transaction or ends one, lies on both sides of that offset, or does not
    follow the one before. CorruptBatch.
    """
    file_ranges: list[FileRange] = []
    begin = position = 0
    batches = total_records = 0
    next_offset = base_offset
    data, data_at = b"", 0
    while position < end:
        at = position - data_at
        if at + HEADER_BYTES > len(data):
            data, data_at, at = file.read_at(position, min(_HEADERS_BYTES, end - position)), position, 0
            throttle(len(data))
            if len(data) < HEADER_BYTES:
                raise CorruptBatch(f"the batch at byte {position} is cut short")
        offset, length, magic, attributes, delta, count = _HEAD.unpack_from(data, at)
        after = position + LOG_OVERHEAD_BYTES + length
        if magic != MAGIC or length < HEADER_BYTES - LOG_OVERHEAD_BYTES or after > end:
            raise CorruptBatch(f"no whole batch of format {MAGIC} at byte {position}")
        if offset < next_offset or delta < 0:
            return None
        next_offset = offset + delta + 1
        if next_offset <= first_offset:
            begin = after
        elif attributes & TRANSACTIONAL_OR_CONTROL or offset < first_offset:
            return None
        else:
            batches += 1
            total_records += count
            if after - begin > read_bytes and position > begin:
                file_ranges.append((begin, position))
                begin = position
        position = after
    if position > begin:
        file_ranges.append((begin, position))
    return PlainRanges(file_ranges, batches, total_records, next_offset)


def batches_backward(file: DiskFile, file_range: FileRange) -> Iterator[ReadBatch]:
    """The batches of a piece, the last one first. CorruptBatch."""
    begin, end = file_range
    data = file.read_at(begin, end - begin)
    places: list[int] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        places.append(at)
        at += LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(data, at + LENGTH_AT)[0]
    if at != end - begin or len(data) != at:
        raise CorruptBatch(f"what lies from byte {begin} to {end} are not whole batches")
    for place in reversed(places):
        yield data, place, read_header(data, place)


def _size_of(header: BatchHeader, position: int) -> int:
    size_bytes = LOG_OVERHEAD_BYTES + header.batch_length
    if header.magic != MAGIC or size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"no batch of format {MAGIC} at byte {position}")
    return size_bytes
