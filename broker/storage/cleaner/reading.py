"""Reading a segment batch by batch, from its beginning or, piece by piece, from its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from broker.storage.disk import DiskFile
from kwire.batch import (
    CONTROL_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    read_header,
)

Throttle = Callable[[int], None]
"""Told of every byte read or written; it waits where that was too fast."""
Read = tuple[bytes, int, BatchHeader]
"""Bytes that were read, where in them a batch begins, its header."""
Piece = tuple[int, int]
"""Neighbouring batches in a file: where the first one begins, and where the last one ends."""

NOT_PLAIN: Final = TRANSACTIONAL_MASK | CONTROL_MASK


def unhurried(size_bytes: int) -> None:
    """A throttle that never waits."""


def batches_in(file: DiskFile, end: int, read_bytes: int, throttle: Throttle = unhurried) -> Iterator[Read]:
    """The batches of a segment. CorruptBatch for what is not a whole batch of format 2."""
    position = 0
    chunk_bytes = read_bytes
    while position < end:
        data = file.read_at(position, min(chunk_bytes, end - position))
        throttle(len(data))
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


def plain_pieces(
    file: DiskFile, end: int, read_bytes: int, first_offset: int, throttle: Throttle = unhurried
) -> list[Piece] | None:
    """A segment's batches from `first_offset` on, in pieces to be read at once; only headers are read here.

    None where one is part of a transaction or ends one, or begins before that offset and ends behind it.
    CorruptBatch.
    """
    pieces: list[Piece] = []
    begin = position = 0
    batches = 0
    while position < end:
        head = file.read_at(position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise CorruptBatch(f"the batch at byte {position} is cut short")
        header = read_header(head)
        after = position + _size_of(header, position)
        if after > end:
            raise CorruptBatch(f"the batch at byte {position} is cut short")
        batches += 1
        if header.last_offset < first_offset:
            begin = after
        elif header.attributes & NOT_PLAIN or header.base_offset < first_offset:
            return None
        elif after - begin > read_bytes and position > begin:
            pieces.append((begin, position))
            begin = position
        position = after
    if position > begin:
        pieces.append((begin, position))
    throttle(batches * HEADER_BYTES)
    return pieces


def batches_backwards(file: DiskFile, piece: Piece) -> Iterator[Read]:
    """The batches of a piece, the last one first. CorruptBatch."""
    begin, end = piece
    data = file.read_at(begin, end - begin)
    found: list[Read] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        found.append((data, at, header))
        at += _size_of(header, begin + at)
    if at != end - begin or len(data) != at:
        raise CorruptBatch(f"what lies from byte {begin} to {end} are not whole batches")
    return reversed(found)


def _size_of(header: BatchHeader, position: int) -> int:
    size_bytes = LOG_OVERHEAD_BYTES + header.batch_length
    if header.magic != MAGIC or size_bytes < HEADER_BYTES:
        raise CorruptBatch(f"no batch of format {MAGIC} at byte {position}")
    return size_bytes
