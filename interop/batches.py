"""Record batches of magic 2, built by hand so that any field can be invalid."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import crc32c

BASE_TIMESTAMP = 1_700_000_000_000


@dataclass
class Record:
    """A record. An `offset_delta` of None stands for the index of the record in its batch."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_delta: int = 0
    offset_delta: int | None = None


@dataclass
class Batch:
    """A batch. A field that is None gets its correct value when the batch is encoded."""

    records: Sequence[Record] = field(default_factory=lambda: [Record()])
    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    base_timestamp: int = BASE_TIMESTAMP
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    records_count: int | None = None
    last_offset_delta: int | None = None
    crc: int | None = None
    length: int | None = None
    payload: bytes | None = None

    def encode(self) -> bytes:
        payload = self.payload
        if payload is None:
            payload = b"".join(encode_record(record, index) for index, record in enumerate(self.records))
            if self.attributes & 7 == 1:
                payload = gzip.compress(payload, mtime=0)
        count = len(self.records)
        newest = self.base_timestamp + max((record.timestamp_delta for record in self.records), default=0)
        covered = (
            struct.pack(
                ">hiqqqhii",
                self.attributes,
                count - 1 if self.last_offset_delta is None else self.last_offset_delta,
                self.base_timestamp,
                newest if self.max_timestamp is None else self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                count if self.records_count is None else self.records_count,
            )
            + payload
        )
        crc = crc32c.crc32c(covered) if self.crc is None else self.crc
        rest = struct.pack(">ibI", self.leader_epoch, self.magic, crc) + covered
        length = len(rest) if self.length is None else self.length
        return struct.pack(">qi", self.base_offset, length) + rest


def encode_record(record: Record, index: int) -> bytes:
    body = bytearray(b"\0")
    put_signed(body, record.timestamp_delta)
    put_signed(body, index if record.offset_delta is None else record.offset_delta)
    for blob in (record.key, record.value):
        put_signed(body, -1 if blob is None else len(blob))
        body += blob or b""
    put_signed(body, len(record.headers))
    for name, value in record.headers:
        put_signed(body, len(name.encode()))
        body += name.encode()
        put_signed(body, -1 if value is None else len(value))
        body += value or b""
    out = bytearray()
    put_signed(out, len(body))
    return bytes(out + body)


def put_signed(out: bytearray, value: int) -> None:
    """Append the value as a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def old_message_set(magic: int, value: bytes = b"old") -> bytes:
    """Return a message set of magic 0 or 1, as clients before 0.11 wrote them."""
    import zlib

    body = struct.pack(">bb", magic, 0)
    if magic == 1:
        body += struct.pack(">q", BASE_TIMESTAMP)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def walk(data: bytes) -> list[dict[str, int]]:
    """Return the header fields of each complete batch in the records of a Fetch response."""
    found, position = [], 0
    names = (
        "attributes",
        "last_offset_delta",
        "base_timestamp",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
    )
    while position + 61 <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        if position + 12 + length > len(data):
            break
        leader_epoch, magic, crc = struct.unpack_from(">ibI", data, position + 12)
        values = struct.unpack_from(">hiqqqhii", data, position + 21)
        covered = data[position + 21 : position + 12 + length]
        found.append(
            {
                "base_offset": base_offset,
                "length": length,
                "leader_epoch": leader_epoch,
                "magic": magic,
                "crc_is_right": int(crc32c.crc32c(covered) == crc),
                **dict(zip(names, values[:6], strict=True)),
                "base_sequence": values[6],
                "records_count": values[7],
            }
        )
        position += 12 + length
    return found
