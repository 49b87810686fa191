"""Scanning the batches of a segment file, by their headers or with all bytes."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

from kwire.broker.storage.disk import DiskFile
from kwire.wire.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural

_LEAD = Struct(">qiib")
"""Base offset, length, leader epoch or CRC, magic. They are at the same position in every format."""
_PREFIX = Struct(">qiibIhiqq")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and max timestamp."""

_MIN_LEGACY_BYTES = LOG_OVERHEAD_BYTES + 14
FIRST_MAGIC_WITH_BATCHES = 2
_HEADERS_CHUNK_BYTES = 4096
_WHOLE_CHUNK_BYTES = 1 << 20


class BatchLocation(NamedTuple):
    """The position of a batch in a segment file, and the fields of its header that storage uses."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int

    @property
    def next_position(self) -> int:
        return self.position + self.size_bytes


class InvalidBatch(Exception):
    """Bytes at `position` that are not a complete, valid batch."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position


def scan_headers(file: DiskFile, position: int, end: int) -> Iterator[BatchLocation]:
    """Yield the batches from `position` to `end` by their headers. An incomplete last batch is omitted.

    The file must have been validated when it was written, because only lengths are checked here. Raises
    InvalidBatch for an impossible length.
    """
    chunk = b""
    chunk_position = position
    unpack_from = _PREFIX.unpack_from
    while position + HEADER_BYTES <= end:
        at = position - chunk_position
        if at + _PREFIX.size > len(chunk):
            chunk = file.read_at(position, min(_HEADERS_CHUNK_BYTES, end - position))
            chunk_position = position
            at = 0
            if len(chunk) < _PREFIX.size:
                return
        location = _location(position, unpack_from(chunk, at))
        if location.next_position > end:
            return
        yield location
        position = location.next_position


def _location(position: int, fields: tuple[int, ...]) -> BatchLocation:
    base_offset, length, leader_epoch, _, _, _, last_offset_delta, _, max_timestamp = fields
    if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise InvalidBatch(position, f"invalid batch length {length}")
    return BatchLocation(
        position,
        LOG_OVERHEAD_BYTES + length,
        base_offset,
        base_offset + last_offset_delta,
        max_timestamp,
        leader_epoch,
    )


class WholeBatch(NamedTuple):
    """A batch with its bytes, which start at `at` in `buffer`."""

    location: BatchLocation
    buffer: memoryview
    at: int


def scan_batches(file: DiskFile, position: int, end: int) -> Iterator[WholeBatch]:
    """Yield all batches from `position` to `end` with their bytes. The caller checks CRCs.

    Raises InvalidBatch at the first batch that is incomplete or not of magic 2. Raises LegacyFormat at a
    valid batch of an older format.
    """
    chunk = memoryview(b"")
    chunk_position = position
    while position < end:
        at = position - chunk_position
        if at + _PREFIX.size > len(chunk):
            chunk = _read_chunk(file, position, end, _WHOLE_CHUNK_BYTES)
            chunk_position = position
            at = 0
            if len(chunk) < _LEAD.size:
                raise InvalidBatch(position, f"too short for a batch: {plural(end - position, 'byte')}")
        _, length, _, magic = _LEAD.unpack_from(chunk, at)
        size_bytes = LOG_OVERHEAD_BYTES + length
        if size_bytes < _MIN_LEGACY_BYTES:
            raise InvalidBatch(position, f"invalid batch length {length}")
        if position + size_bytes > end:
            raise InvalidBatch(
                position,
                f"batch of {size_bytes} bytes exceeds the {plural(end - position, 'byte')} left",
            )
        if at + size_bytes > len(chunk):
            chunk = _read_chunk(file, position, end, max(size_bytes, _WHOLE_CHUNK_BYTES))
            chunk_position = position
            at = 0
            if len(chunk) < size_bytes:
                raise InvalidBatch(position, "unexpected end of file")
        if magic < FIRST_MAGIC_WITH_BATCHES:
            if _is_legacy(chunk[at : at + size_bytes], magic):
                raise LegacyFormat(f"a batch with magic {magic} at byte {position}")
            raise InvalidBatch(position, f"unsupported magic {magic}")
        if size_bytes < HEADER_BYTES:
            raise InvalidBatch(position, f"invalid batch length {length}")
        yield WholeBatch(_location(position, _PREFIX.unpack_from(chunk, at)), chunk, at)
        position += size_bytes


def _read_chunk(file: DiskFile, position: int, end: int, size: int) -> memoryview:
    return memoryview(file.read_at(position, min(size, end - position)))


class LegacyFormat(Exception):
    """A valid message set with magic 0 or 1. It must not be truncated as if it were corrupt."""


def _is_legacy(message: memoryview, magic: int) -> bool:
    """Return whether this is a valid message with magic 0 or 1, by its CRC-32."""
    return magic >= 0 and int.from_bytes(message[12:16], "big") == crc32(message[16:])
