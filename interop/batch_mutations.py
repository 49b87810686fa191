"""Random batches, valid and damaged: records, the options of each codec, changed bytes and headers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import lz4.block
import lz4.frame
import snappy
import xxhash
import zstandard

from interop.batches import BASE_TIMESTAMP, Batch, Record, encode_record

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HOUR_MS = 3_600_000
NO_LIMIT_MS = 2**63 - 1
XERIAL_HEADER = b"\x82SNAPPY\0" + b"\0\0\0\1" + b"\0\0\0\1"
BYTES_WITH_MEANING = b"\x00\x01\x02\x7e\x7f\x80\x81\xfe\xff"


@dataclass(frozen=True)
class TopicConfig:
    """The configurations of a topic that its validation of batches depends on."""

    compression: str = "producer"
    timestamp_type: str = "CreateTime"
    before_max_ms: int = NO_LIMIT_MS
    after_max_ms: int = HOUR_MS
    compact: bool = False


def random_topic(random: Random) -> TopicConfig:
    """Return Kafka's default configurations or, half of the time, random ones."""
    if random.random() < 0.5:
        return TopicConfig()
    return TopicConfig(
        random.choice(["producer", "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
        random.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        random.choice([NO_LIMIT_MS, NO_LIMIT_MS, 60_000]),
        random.choice([HOUR_MS, NO_LIMIT_MS]),
        random.random() < 0.3,
    )


def random_batch(random: Random, codec: int) -> bytes:
    """Return a batch with a correct CRC. One in five has no fault."""
    records = [_record(random) for _ in range(random.choice([1, 1, 2, 3, 8, 30]))]
    fault = random.choice(["none", "records", "stream", "stream", "header"])
    plain = b"".join(encode_record(record, index) for index, record in enumerate(records))
    if fault == "records":
        plain = mutate(random, plain)
    payload = compress(random, codec, plain)
    if fault == "stream":
        payload = mutate(random, payload)
    batch = Batch(records, attributes=codec, payload=payload)
    if fault == "header":
        for name, value in random.sample(_header_faults(random, len(records)), random.choice([1, 1, 2])):
            setattr(batch, name, value)
        batch.attributes = batch.attributes & ~7 | codec
        if batch.max_timestamp is None:
            batch.max_timestamp = BASE_TIMESTAMP
    return batch.encode()


def _record(random: Random) -> Record:
    if random.random() < 0.3:
        return Record(b"v" * random.randrange(40))
    return Record(
        random.choice([None, b"", random.randbytes(random.randrange(200))]),
        random.choice([None, b"", b"key"]),
        [
            (random.choice(["", "a", "id", "ü"]), random.choice([None, b"", b"value"]))
            for _ in range(random.choice([0, 0, 1, 3]))
        ],
        random.choice([0, 0, 1, -1, 1000, -120_000, 2 * HOUR_MS]),
    )


def unusual_streams(random: Random) -> Iterator[tuple[str, bytes]]:
    """Yield names and batches whose compressed streams readers understand in different ways."""
    records = [Record(b"v" * 40), Record(b"w" * 40)]
    one, two = (encode_record(record, index) for index, record in enumerate(records))

    def batch(codec: int, payload: bytes, count: int = 2) -> bytes:
        return Batch(records[:count], attributes=codec, payload=payload).encode()

    def block(plain: bytes) -> bytes:
        packed = bytes(snappy.compress(plain))
        return len(packed).to_bytes(4, "big") + packed

    wrong_magic = b"\x82SNAPPY\1" + XERIAL_HEADER[8:]
    for rest in (b"", b"\0\0\0", bytes(4), b"\xff" * 4, block(b""), block(one), wrong_magic):
        payload = XERIAL_HEADER + block(one + two) + wrong_magic + rest
        yield f"snappy, wrong magic and {len(rest)} bytes at the end", batch(SNAPPY, payload)
    yield (
        "snappy, wrong magic in the middle",
        batch(SNAPPY, XERIAL_HEADER + block(one) + wrong_magic + block(two)),
    )
    for version in (-1, 0, 2):
        header = XERIAL_HEADER[:8] + version.to_bytes(4, "big", signed=True) + XERIAL_HEADER[12:]
        yield f"snappy, version {version} first", batch(SNAPPY, header + block(one + two))
        yield (
            f"snappy, version {version} later",
            batch(SNAPPY, XERIAL_HEADER + block(one) + header + block(two)),
        )
    for number in (150, 50_000):
        yield f"snappy, {number} headers", batch(SNAPPY, XERIAL_HEADER * number + block(one + two))
        empty = gzip.compress(b"", mtime=0) * number
        yield f"gzip, {number} empty members first", batch(GZIP, empty + gzip.compress(one + two))
        yield f"gzip, {number} empty members last", batch(GZIP, gzip.compress(one + two) + empty)
    header = b"\x1f\x8b\x08" + bytes(7)
    for size_bytes in (8212, 8220, 8224, 8232, 8240):
        value = random.randbytes(size_bytes - 60)
        plain = encode_record(Record(value), 0)
        packed = gzip.compress(plain, mtime=0)
        for rest in (header[:9], header, header + bytes(8)):
            payload = packed + rest
            yield (
                f"gzip, a member of {len(packed)} bytes and a header of {len(rest)}",
                Batch([Record(value)], attributes=GZIP, payload=payload).encode(),
            )

    def frame(*blocks: bytes) -> bytes:
        descriptor = b"\x60\x40"
        start = b"\x04\x22\x4d\x18" + descriptor + bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 255])
        packed = [lz4.block.compress(plain, store_size=False) for plain in blocks]
        return start + b"".join(len(each).to_bytes(4, "little") + each for each in packed) + bytes(4)

    yield "lz4, an empty block in the middle", batch(LZ4, frame(one, b"", two))
    yield "lz4, an empty block within a record", batch(LZ4, frame(one[:9], b"", one[9:] + two))
    yield "lz4, an empty block first", batch(LZ4, frame(b"", one + two))
    yield "lz4, an empty block and more records than declared", batch(LZ4, frame(one, b"", two), count=1)


def _header_faults(random: Random, count: int) -> list[tuple[str, Any]]:
    timestamps = [-1, -2, 0, BASE_TIMESTAMP, BASE_TIMESTAMP - 10**6, BASE_TIMESTAMP + 10**8, 2**62, -(2**62)]
    return [
        ("max_timestamp", random.choice(timestamps)),
        ("base_timestamp", random.choice(timestamps)),
        ("records_count", random.choice([0, -1, count - 1, count + 1])),
        ("last_offset_delta", random.choice([-1, 0, count, 2**31 - 1])),
        ("attributes", random.choice([8, 0x10, 0x20, 0x40, 0x80, 0x4000])),
        ("producer_id", 5),
    ]


def compress(random: Random, codec: int, plain: bytes) -> bytes:
    """Compress the bytes with random options of the codec, including some that no client uses."""
    if codec == GZIP:
        members = [plain] if random.random() < 0.8 else [plain[: len(plain) // 2], plain[len(plain) // 2 :]]
        return b"".join(_gzip(random, member) for member in members)
    if codec == SNAPPY:
        return _snappy(random, plain)
    if codec == LZ4:
        return bytes(
            lz4.frame.compress(
                plain,
                block_size=random.choice([lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX256KB]),
                block_linked=random.random() < 0.2,
                content_checksum=random.random() < 0.3,
                block_checksum=random.random() < 0.3,
                store_size=random.random() < 0.3,
            )
        )
    if codec == ZSTD:
        frames = [plain] if random.random() < 0.8 else [plain[:5], plain[5:]]
        options: dict[str, Any] = {
            "level": random.choice([1, 3, 9]),
            "write_checksum": random.random() < 0.3,
            "write_content_size": random.random() < 0.7,
        }
        return b"".join(zstandard.ZstdCompressor(**options).compress(frame) for frame in frames)
    return plain


def _gzip(random: Random, plain: bytes) -> bytes:
    compressor = zlib.compressobj(random.choice([1, 6, 9]), zlib.DEFLATED, -15)
    header = bytearray(b"\x1f\x8b\x08\0\0\0\0\0\0\xff")
    if random.random() < 0.3:
        header[3] = random.choice([0x04, 0x08, 0x10, 0x02, 0x1E])
        if header[3] & 0x04:
            header += b"\3\0abc"
        if header[3] & 0x08:
            header += b"name\0"
        if header[3] & 0x10:
            header += b"comment\0"
        if header[3] & 0x02:
            header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    body = compressor.compress(plain) + compressor.flush()
    return bytes(header) + body + zlib.crc32(plain).to_bytes(4, "little") + len(plain).to_bytes(4, "little")


def _snappy(random: Random, plain: bytes) -> bytes:
    if random.random() < 0.3:
        return bytes(snappy.compress(plain))
    size = random.choice([20, 1000, 32_768])
    stream = bytearray(XERIAL_HEADER)
    for at in range(0, len(plain), size):
        if random.random() < 0.05:
            version = random.choice([0, 1, 1, 2])
            stream += XERIAL_HEADER[:8] + version.to_bytes(4, "big") + XERIAL_HEADER[12:]
        block = snappy.compress(plain[at : at + size])
        stream += len(block).to_bytes(4, "big") + block
    return bytes(stream)


def mutate(random: Random, data: bytes) -> bytes:
    """Change, insert, remove, repeat or append a few bytes."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(8)
        if kind in (0, 1) and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 2 and at < len(changed):
            changed[at] = random.choice(BYTES_WITH_MEANING)
        elif kind == 3:
            changed[at:at] = random.randbytes(random.choice([1, 2, 4, 11]))
        elif kind == 4:
            del changed[at : at + random.choice([1, 2, 4, 11])]
        elif kind == 5:
            del changed[at:]
        elif kind == 6:
            header_only = b"\x1f\x8b\x08\x08\0\0\0\0\0\0" + b"n" * random.randrange(12) + b"\0"
            rest = random.randbytes(random.randrange(1, 40))
            changed += random.choice([b"\0", rest, bytes(changed), header_only])
        else:
            changed[at:at] = b"\xff" * random.choice([1, 4, 5, 9, 10])
    return bytes(changed)
