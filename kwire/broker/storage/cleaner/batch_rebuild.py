"""Rebuilding a batch without some of its records.

The rebuilt batch keeps its first and last offset, producer, sequence, leader epoch and codec, because clients
and followers rely on them. Records are copied unchanged, except if the batch gets a delete horizon. The
horizon replaces the base timestamp, so all timestamp deltas have to be written again (KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kwire.broker.storage.cleaner.record_keys import UINT32_MAX, UINT64_MAX, varint_rest
from kwire.broker.storage.log.log_config import LONG_MAX
from kwire.wire.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    crc_is_valid,
    update_crc,
)
from kwire.wire.compression import Codec, CompressionError, compress, decompress

Range = tuple[int, int]
"""The start and end positions of adjacent records."""

MAX_BATCH_BYTES: Final = 0x7FFFFFFF
_SIGN: Final = 1 << 63

REMOVED: Final = b""
"""The result that stands for a removed batch."""


def decompressed_records(data: bytes, at: int, header: BatchHeader) -> tuple[bytes, int, int]:
    """Return a buffer with the uncompressed records of a batch, and their start and end position in it.

    Raises CorruptBatch, also if the CRC is wrong.
    """
    end = at + header.size_bytes
    if not crc_is_valid(data, at, header):
        raise CorruptBatch(f"the batch at offset {header.base_offset} has a wrong CRC")
    if not header.attributes & CODEC_MASK:
        return data, at + HEADER_BYTES, end
    try:
        payload = bytes(
            decompress(header.codec, memoryview(data)[at + HEADER_BYTES : end], max_bytes=MAX_BATCH_BYTES)
        )
    except CompressionError as error:
        raise CorruptBatch(f"the batch at offset {header.base_offset} cannot be decompressed") from error
    return payload, 0, len(payload)


def last_index_of_each(keys: Sequence[bytes | None], wanted: set[bytes | None]) -> list[int]:
    """Return the last index of each wanted key, in ascending order."""
    found = [index for index, key in enumerate(keys) if key in wanted]
    if len(found) > len(wanted):
        found = sorted({keys[index]: index for index in found}.values())
    return found


def ranges_of(starts: list[int], chosen: list[int]) -> list[Range]:
    """Return the ranges of the records at the chosen indexes, with adjacent records joined.

    The last element of `starts` is the end of the last record.
    """
    ranges: list[Range] = []
    run_start = run_end = -1
    for index in chosen:
        start = starts[index]
        if start != run_end:
            if run_end >= 0:
                ranges.append((run_start, run_end))
            run_start = start
        run_end = starts[index + 1]
    if run_end >= 0:
        ranges.append((run_start, run_end))
    return ranges


def _unsigned(data: bytes, at: int, mask: int = UINT32_MAX) -> tuple[int, int]:
    value = data[at]
    return varint_rest(data, at + 1, value, mask) if value > 0x7F else (value, at + 1)


def _timestamps(data: bytes, ranges: list[Range], header: BatchHeader) -> Iterator[int]:
    """Yield the timestamp of each record in the ranges. As in Java, it wraps at 64 bits."""
    for start, end in ranges:
        at = start
        while at < end:
            length, at = _unsigned(data, at)
            zigzag, _ = _unsigned(data, at + 1, UINT64_MAX)
            yield _wrap(header.base_timestamp + ((zigzag >> 1) ^ -(zigzag & 1)))
            at += length >> 1


def _wrap(value: int) -> int:
    """Return the value as a signed 64-bit integer."""
    return ((value + _SIGN) & UINT64_MAX) - _SIGN


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _max_timestamp(data: bytes, ranges: list[Range], header: BatchHeader) -> int:
    """Return the greatest timestamp of the records in the ranges."""
    if header.has_log_append_time:
        return header.max_timestamp
    greatest = None
    least = 0
    for start, end in ranges:
        at = start
        while at < end:
            length = data[at]
            at += 1
            if length > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    length = length & 0x7F | byte << 7
                    at += 1
                else:
                    length, at = varint_rest(data, at, length)
            zigzag = data[at + 1]
            if zigzag > 0x7F:
                byte = data[at + 2]
                if byte < 0x80:
                    zigzag = zigzag & 0x7F | byte << 7
                else:
                    zigzag, _ = varint_rest(data, at + 2, zigzag, UINT64_MAX)
            at += length >> 1
            delta = (zigzag >> 1) ^ -(zigzag & 1)
            if greatest is None or delta > greatest:
                greatest = delta
            if delta < least:
                least = delta
    if greatest is None:
        return NO_TIMESTAMP
    if header.base_timestamp + greatest >= _SIGN or header.base_timestamp + least < -_SIGN:
        return max(_timestamps(data, ranges, header))
    return header.base_timestamp + greatest


def with_records(body: bytes, header: BatchHeader, count: int) -> bytearray:
    """Return a batch with the header fields of `header` and the `count` uncompressed records in `body`."""
    max_timestamp = _max_timestamp(body, [(0, len(body))], header)
    return _batch(body, header._replace(max_timestamp=max_timestamp), count)


def _batch(body: bytes, header: BatchHeader, count: int) -> bytearray:
    codec = header.codec
    payload = body if codec == Codec.NONE else compress(codec, body)
    out = bytearray(HEADER_BYTES)
    out += payload
    HEADER.pack_into(
        out, 0, *header._replace(batch_length=len(out) - LOG_OVERHEAD_BYTES, crc=0, records_count=count)
    )
    update_crc(out, 0, len(out))
    return out


def empty_batch(header: BatchHeader) -> bytearray:
    """Return a batch without records that has the offsets, producer and greatest timestamp of `header`."""
    return _batch(
        b"",
        header._replace(
            attributes=header.attributes & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK),
            base_timestamp=NO_TIMESTAMP,
        ),
        0,
    )


def with_delete_horizon(
    data: bytes, ranges: list[Range], header: BatchHeader, count: int, horizon_ms: int
) -> bytearray:
    """Return a batch with the `count` uncompressed records in `ranges` of `data`, and a delete horizon."""
    horizon_ms = min(horizon_ms, LONG_MAX)
    body = bytearray()
    for start, end in ranges:
        at = start
        while at < end:
            length, at = _unsigned(data, at)
            stop = at + (length >> 1)
            zigzag, rest = _unsigned(data, at + 1, UINT64_MAX)
            timestamp = (
                header.max_timestamp
                if header.has_log_append_time
                else header.base_timestamp + ((zigzag >> 1) ^ -(zigzag & 1))
            )
            delta = _wrap(timestamp - horizon_ms)
            record = data[at : at + 1] + _encoded((delta << 1) ^ (delta >> 63)) + data[rest:stop]
            body += _encoded(len(record) << 1)
            body += record
            at = stop
    max_timestamp = _max_timestamp(data, ranges, header)
    header = header._replace(
        attributes=header.attributes | DELETE_HORIZON_MASK,
        base_timestamp=horizon_ms,
        max_timestamp=max_timestamp,
    )
    return _batch(bytes(body), header, count)
