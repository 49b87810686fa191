"""Record batches, compared with kafka-python's, and malformed batches."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from crc32c import crc32c

from kwire.wire.batch import (
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    MAGIC_AT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    CorruptBatch,
    NewRecord,
    Record,
    batches,
    build,
    control_type,
    crc_is_valid,
    read_header,
    records,
    stamp,
    stamp_append_time,
    update_crc,
)
from kwire.wire.compression import Codec
from tests.wire import kafka_json

MOST = 1 << 20

RECORDS: list[NewRecord] = [
    (1_700_000_000_000, b"key", b"value" * 40, []),
    (1_700_000_000_007, None, b"value" * 40, [("h", b"x"), ("h", None), ("é", b"")]),
    (1_699_999_999_990, b"", b"", []),
    (1_700_000_000_005, b"tombstone", None, [("trace", bytes(200))]),
]


def kafka_python_module() -> Any:
    """Return kafka-python's batch module."""
    return kafka_json.reference("kafka.record.default_records")


def built_by_kafka_python(
    codec: Codec, new_records: list[NewRecord] = RECORDS, *, transactional: bool = False
) -> bytes:
    builder = kafka_python_module().DefaultRecordBatchBuilder(
        2, int(codec), transactional, 4711, 3, 99, 1 << 20
    )
    for offset, (timestamp, key, value, headers) in enumerate(new_records):
        assert builder.append(offset, timestamp, key, value, list(headers)) is not None
    return bytes(builder.build())


def read_by_kafka_python(batch: bytes) -> list[Record]:
    found = kafka_python_module().DefaultRecordBatch(batch)
    assert found.validate_crc()
    return [Record(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in found]


def expected(base_offset: int = 0, new_records: list[NewRecord] = RECORDS) -> list[Record]:
    return [
        Record(base_offset + number, timestamp, key, value, list(headers))
        for number, (timestamp, key, value, headers) in enumerate(new_records)
    ]


def test_crc_is_castagnoli() -> None:
    """The check value of CRC-32C in the catalog of CRC algorithms."""
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_kafka_python_are_read(codec: Codec) -> None:
    batch = built_by_kafka_python(codec)
    [(position, header)] = batches(batch)
    assert position == 0
    assert header == read_header(batch)
    assert header.codec is codec
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 3, 4)
    assert (header.magic, header.records_count, header.last_offset_delta) == (2, 4, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_007)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 3, 99)
    assert header.last_sequence == 102
    assert header.has_producer_id
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_log_append_time
    assert not header.has_delete_horizon
    assert crc_is_valid(batch, 0, header)
    assert list(records(batch, 0, header)) == expected()


def test_uncompressed_batch_equals_kafka_pythons() -> None:
    ours = build(RECORDS, producer_id=4711, producer_epoch=3, base_sequence=99, transactional=True)
    stamp(ours, 0, 0, 0)  # kafka-python writes leader epoch 0
    assert bytes(ours) == built_by_kafka_python(Codec.NONE, transactional=True)


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_python_reads_built_batches(codec: Codec) -> None:
    batch = build(RECORDS, base_offset=1000, codec=codec)
    header = read_header(batch)
    assert read_by_kafka_python(bytes(batch)) == expected(1000) == list(records(batch, 0, header))
    assert header.codec is codec
    assert header.producer_id == NO_PRODUCER_ID
    assert header.producer_epoch == NO_PRODUCER_EPOCH
    assert header.base_sequence == header.last_sequence == NO_SEQUENCE
    assert header.leader_epoch == -1
    assert not header.has_producer_id


def test_attributes() -> None:
    plain = read_header(build(RECORDS))
    assert plain.attributes == 0
    header = read_header(
        build(RECORDS, codec=Codec.ZSTD, transactional=True, control=True, log_append_time=5)
    )
    assert header.attributes == 4 + 8 + 16 + 32
    assert header.is_transactional
    assert header.is_control
    assert header.has_log_append_time
    assert plain._replace(attributes=0x40).has_delete_horizon
    for code in (5, 6, 7):
        with pytest.raises(CorruptBatch, match=f"compression codec {code}"):
            _ = plain._replace(attributes=code).codec


def test_sequences_wrap() -> None:
    header = read_header(build(RECORDS, producer_id=1, producer_epoch=0, base_sequence=0x7FFFFFFE))
    assert header.last_sequence == 1


def test_log_append_time_applies_to_every_record() -> None:
    batch = build(RECORDS, log_append_time=77)
    assert [record.timestamp for record in records(batch, 0, read_header(batch))] == [77] * 4
    assert [record.timestamp for record in read_by_kafka_python(bytes(batch))] == [77] * 4


@pytest.mark.parametrize("writable", [bytearray, lambda data: memoryview(bytearray(data))])
def test_stamping_in_place(writable: Any) -> None:
    """The CRC does not cover the base offset and the leader epoch."""
    batch = built_by_kafka_python(Codec.GZIP)
    buffer = writable(b"before" + batch + b"after")
    stamp(buffer, 6, 5_000_000_000, 12)
    header = read_header(buffer, 6)
    assert (header.base_offset, header.leader_epoch) == (5_000_000_000, 12)
    assert crc_is_valid(buffer, 6, header)
    assert bytes(buffer)[:6] == b"before"
    assert bytes(buffer)[-5:] == b"after"
    assert list(records(buffer, 6, header)) == expected(5_000_000_000)
    stamped = bytes(buffer)[6:-5]
    assert stamped[:8] == (5_000_000_000).to_bytes(8, "big")
    assert stamped[8:12] == batch[8:12]
    assert stamped[16:] == batch[16:]


def test_stamping_the_append_time() -> None:
    """The CRC covers the append time."""
    buffer = bytearray(b"x" + build(RECORDS, codec=Codec.LZ4))
    before = read_header(buffer, 1)
    after = stamp_append_time(buffer, 1, before, 99)
    assert after == read_header(buffer, 1)
    assert after.has_log_append_time
    assert after.codec is Codec.LZ4
    assert after.crc != before.crc
    assert crc_is_valid(buffer, 1, after)
    assert not crc_is_valid(buffer, 1, before)
    assert [record.timestamp for record in records(buffer, 1, after)] == [99] * 4


def test_any_change_after_the_crc_is_detected() -> None:
    batch = build(RECORDS)
    for position in range(CRC_AT + 4, len(batch)):
        batch[position] ^= 1
        assert not crc_is_valid(batch, 0, read_header(batch))
        batch[position] ^= 1
    assert crc_is_valid(batch, 0, read_header(batch))


def test_consecutive_batches() -> None:
    pieces = [build(RECORDS[:count], base_offset=10 * count) for count in (1, 2, 3)]
    whole = b"??" + b"".join(pieces) + b"!"
    found = list(batches(whole, 2, len(whole) - 1))
    assert [header.base_offset for _, header in found] == [10, 20, 30]
    assert [position for position, _ in found] == [2, 2 + len(pieces[0]), 2 + len(pieces[0]) + len(pieces[1])]
    assert list(batches(b"")) == []
    with pytest.raises(CorruptBatch, match="1 byte at"):
        list(batches(whole, 2))


def test_incomplete_batch() -> None:
    whole = build(RECORDS)
    for end in range(1, len(whole)):
        with pytest.raises(CorruptBatch):
            list(batches(whole[:end]))
        with pytest.raises(CorruptBatch):
            list(batches(whole, 0, end))


@pytest.mark.parametrize("length", [-0x80000000, -1, 0, 48, 0x7FFFFFFF])
def test_wrong_batch_length_is_corrupt(length: int) -> None:
    batch = build(RECORDS)
    struct.pack_into(">i", batch, LENGTH_AT, length)
    with pytest.raises(CorruptBatch, match="has length"):
        list(batches(batch))


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_magic_bytes_are_refused(magic: int) -> None:
    batch = build(RECORDS)
    struct.pack_into(">b", batch, MAGIC_AT, magic)
    with pytest.raises(CorruptBatch, match=f"magic {magic}"):
        list(batches(batch))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [-1, 0, 3, 5, 0x7FFFFFFF])
def test_wrong_record_count_is_corrupt(count: int, codec: Codec) -> None:
    batch = build(RECORDS, codec=codec)
    header = read_header(batch)._replace(records_count=count)
    with pytest.raises(CorruptBatch):
        list(records(batch, 0, header))


def test_many_records() -> None:
    """Enough records for multi-byte deltas and lengths."""
    choose = random.Random(3)
    many: list[NewRecord] = [
        (
            choose.randrange(1 << 45),
            choose.randbytes(choose.randrange(80)),
            bytes(choose.choice((0, 63, 64, 9000))),
            [],
        )
        for _ in range(300)
    ]
    batch = build(many, base_offset=1 << 40, codec=Codec.SNAPPY)
    header = read_header(batch)
    assert list(records(batch, 0, header)) == expected(1 << 40, many)
    assert header.max_timestamp == max(timestamp for timestamp, *_ in many)
    assert read_by_kafka_python(bytes(batch)) == expected(1 << 40, many)


def test_invalid_batch_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build([])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_decompression_is_bounded(codec: Codec) -> None:
    batch = build([(0, None, bytes(MOST), [])], codec=codec)
    header = read_header(batch)
    with pytest.raises(CorruptBatch, match="does not decompress"):
        list(records(batch, 0, header, max_bytes=MOST // 2))
    damaged = batch[:HEADER_BYTES] + b"\x00" * (len(batch) - HEADER_BYTES)
    with pytest.raises(CorruptBatch, match="does not decompress"):
        list(records(damaged, 0, header, max_bytes=2 * MOST))


def with_payload(payload: bytes, count: int = 1) -> tuple[bytearray, BatchHeader]:
    """Return a batch with these bytes as records, and its header."""
    batch = build([(0, None, None, [])])[:HEADER_BYTES] + payload
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - 12)
    struct.pack_into(">i", batch, HEADER_BYTES - 4, count)
    update_crc(batch, 0, len(batch))
    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    return batch, header


GOOD = bytes.fromhex("0c 00 00 00 01 01 00")
"""A record of six bytes: attributes, deltas, null key, null value, no headers."""


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "00",  # an empty record
        "01",  # a negative length
        "0c 00 00 00 01 01",  # one byte short
        "0e 00 00 00 01 01 00",  # a length beyond the end
        "0e 00 00 00 01 01 00 00",  # a byte left in the record
        "0c 00 00 00 01 01 00 ff",  # a byte after the record
        "0c 00 00 00 02 01 00",  # a key that includes the value
        "0c 00 00 00 7e 01 00",  # a key beyond the record
        "0c 00 00 00 01 01 01",  # -1 headers
        "0c 00 00 00 01 01 7e",  # 63 headers
        "10 00 00 00 01 01 02 01 01",  # a header without a name
        "80 80 80 80 80 80 80 80 80 80 01",  # a varint that never ends
        "ff ff ff ff ff",
        "1e 00 ff ff ff ff ff ff ff ff ff 7f 00 01 01",  # a timestamp beyond 64 bits
        "0c 00 80 80 80 80 80",
    ],
)
def test_malformed_records_are_corrupt(payload: str) -> None:
    batch, header = with_payload(bytes.fromhex(payload))
    with pytest.raises(CorruptBatch):
        list(records(batch, 0, header))


@pytest.mark.parametrize(
    "payload",
    [
        "0c 00 00 00 03 05 00",  # lengths of -2 and -3 bytes
        "14 00 00 80 80 80 80 10 01 01 00",  # an offset delta with bits beyond 32
    ],
)
def test_varints_are_read_as_in_java(payload: str) -> None:
    batch, header = with_payload(bytes.fromhex(payload))
    assert list(records(batch, 0, header)) == [Record(0, 0, None, None, [])]


def test_timestamps_wrap_as_in_java() -> None:
    batch, header = with_payload(bytes.fromhex("0c 00 02 00 01 01 00"))
    [record] = records(batch, 0, header._replace(base_timestamp=(1 << 63) - 1))
    assert record.timestamp == -(1 << 63)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_from_an_offset(codec: Codec) -> None:
    """Reading from an offset equals filtering all records, also after compaction."""
    choose = random.Random(f"from {codec}")
    for number in range(150):
        count = choose.choice((1, 2, 20, 300))
        sizes = choose.choice(([0], [0, 1], [5, 63, 64, 200], range(100)))
        new = [(number, None, bytes(choose.choice(sizes)), [("h", None)]) for _ in range(count)]
        deltas = sorted(choose.sample(range(count + choose.choice((0, 0, 1, 40, 1000))), count))
        deltas.append(deltas[-1] + choose.choice((0, 0, 3)))
        batch = build(new, base_offset=1000, codec=codec, offset_deltas=deltas)
        header = read_header(batch)
        whole = list(records(batch, 0, header))
        for at in (0, 1000, 1001, *choose.choices(range(1000, header.next_offset + 2), k=10)):
            wanted = [record for record in whole if record.offset >= at]
            assert list(records(batch, 0, header, from_offset=at)) == wanted


@pytest.mark.parametrize("payload", ["0c 00 00 00 01 01 00 0c", "01", "ff ff ff ff ff", ""])
def test_skipped_records_are_validated(payload: str) -> None:
    batch, header = with_payload(bytes.fromhex(payload), 3)
    header = header._replace(last_offset_delta=2)
    for at in range(5):
        with pytest.raises(CorruptBatch):
            list(records(batch, 0, header, from_offset=at))
    packed = build(RECORDS, codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match="does not decompress"):
        list(records(packed, 0, read_header(packed), from_offset=3, max_bytes=5))


@pytest.mark.parametrize("codec", list(Codec))
def test_changed_batch_is_read_or_corrupt(codec: Codec) -> None:
    """A changed batch gives records or a corrupt message error."""
    choose = random.Random(f"batch {codec}")
    batch = build(RECORDS, codec=codec)
    for _ in range(1500):
        changed = bytearray(batch)
        for _ in range(choose.randint(1, 4)):
            changed[choose.randrange(len(changed))] = choose.randrange(256)
        try:
            for position, header in batches(changed):
                assert position + header.size_bytes <= len(changed)
                at = choose.choice((None, header.base_offset + 2))
                for record in records(changed, position, header, from_offset=at, max_bytes=MOST):
                    assert len(record.value or b"") <= MOST
        except CorruptBatch:
            continue


def test_control_records() -> None:
    batch = build([(0, struct.pack(">hh", 0, 1), b"\x00\x00\x00\x00\x00\x07", [])], control=True)
    [record] = records(batch, 0, read_header(batch))
    assert control_type(record) == (0, 1)
    for key in (None, b"", b"\x00\x00\x00"):
        with pytest.raises(CorruptBatch, match="has no type"):
            control_type(record._replace(key=key))
