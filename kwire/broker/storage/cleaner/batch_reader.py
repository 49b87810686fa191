"""Reading the batches of a segment forward or backward."""

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
"""Called with the size of every read and write in bytes. It sleeps to stay below a rate limit."""
ReadBatch = tuple[bytes, int, BatchHeader]
"""The bytes of a read, the position of a batch in them, and the header of the batch."""
FileRange = tuple[int, int]
"""The start and end positions of adjacent batches in a file."""

TRANSACTIONAL_OR_CONTROL: Final = TRANSACTIONAL_MASK | CONTROL_MASK

_HEADERS_BYTES: Final = 4096
"""The size of a read for headers: it returns one header of a large batch, or many of small batches."""
_HEAD = Struct(">qi4xb4xhi30xi")
"""Base offset, length, magic, attributes, last offset delta and record count of a batch header."""
_LENGTH = Struct(">i")


def no_throttle(size_bytes: int) -> None:
    """Do nothing: there is no rate limit."""


def batches_in(
    file: DiskFile, end: int, read_bytes: int, throttle: Throttle = no_throttle
) -> Iterator[ReadBatch]:
    """Yield the batches of a segment of `end` bytes, with reads of `read_bytes` or of one larger batch.

    Raises CorruptBatch if a batch is incomplete or not of magic 2.
    """
    position = 0
    chunk_bytes = read_bytes
    while position < end:
        wanted_bytes = min(chunk_bytes, end - position)
        data = file.read_at(position, wanted_bytes)
        throttle(len(data))
        if len(data) < wanted_bytes:
            raise CorruptBatch(f"the file ends at byte {position + len(data)}, expected {end}")
        chunk_bytes = read_bytes
        at, size = 0, len(data)
        while at + HEADER_BYTES <= size:
            header = read_header(data, at)
            size_bytes = _size_of(header, position + at)
            if at + size_bytes > size:
                if position + at + size_bytes > end:
                    raise CorruptBatch(f"the batch at byte {position + at} is truncated")
                chunk_bytes = max(read_bytes, size_bytes)
                break
            yield data, at, header
            at += size_bytes
        if not at and (size < HEADER_BYTES or chunk_bytes <= size):
            raise CorruptBatch(f"the batch at byte {position} is truncated")
        position += at


class PlainRanges(NamedTuple):
    """The batches of a segment from an offset on, as ranges that can each be read with one call."""

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
    """Divide the batches of a segment from `first_offset` on into ranges, reading little more than headers.

    A range has at most `read_bytes`, except for one larger batch. Return None if a batch is transactional or
    a control batch, contains `first_offset` in its middle, or does not follow the previous batch. Raises
    CorruptBatch.
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
                raise CorruptBatch(f"the batch at byte {position} is truncated")
        offset, length, magic, attributes, delta, count = _HEAD.unpack_from(data, at)
        after = position + LOG_OVERHEAD_BYTES + length
        if magic != MAGIC or length < HEADER_BYTES - LOG_OVERHEAD_BYTES or after > end:
            raise CorruptBatch(f"no complete batch with magic {MAGIC} at byte {position}")
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
    """Yield the batches of a range from the last one to the first. Raises CorruptBatch."""
    begin, end = file_range
    data = file.read_at(begin, end - begin)
    positions: list[int] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        positions.append(at)
        at += LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(data, at + LENGTH_AT)[0]
    if at != end - begin or len(data) != at:
        raise CorruptBatch(f"incomplete batches from byte {begin} to {end}")
    for position in reversed(positions):
        yield data, position, read_header(data, position)


def _size_of(header: BatchHeader, position: int) -> int:
    size_bytes = LOG_OVERHEAD_BYTES + header.batch_length
    if header.magic != MAGIC or size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"no batch with magic {MAGIC} at byte {position}")
    return size_bytes
