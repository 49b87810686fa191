"""Validation of produced batches: Kafka's error codes, and changes to accepted batches."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.broker.storage.log import validator
from kwire.broker.storage.log.log_config import AppendOrigin, LogConfig
from kwire.broker.storage.log.validator import (
    RecordErrors,
    ValidatedBatch,
    check_produced,
    leading_header,
    validate,
)
from kwire.wire.batch import (
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    Record,
    build,
    crc_is_valid,
    read_header,
    records,
    update_crc,
)
from kwire.wire.compression import Codec, compress
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.log_harness import NOW_MS, batch

HOUR_MS = 60 * 60 * 1000
CONFIG = LogConfig()
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
APPEND_TIME = LogConfig(message_timestamp_type="LogAppendTime")


def validate_batch(
    sent: memoryview | bytearray, config: LogConfig = CONFIG, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ValidatedBatch:
    return validate(sent, config, now_ms=NOW_MS, origin=origin, partition="t-0")


def error_of(
    sent: memoryview | bytearray, config: LogConfig = CONFIG, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ApiError:
    with pytest.raises(ApiError) as refused:
        validate_batch(sent, config, origin)
    return refused.value


def with_field(sent: memoryview, position: int, layout: str, *values: int) -> memoryview:
    """Return a batch with a changed header field and a matching CRC."""
    struct.pack_into(layout, sent, position, *values)
    update_crc(sent, 0, len(sent))
    return sent


def contents(validated: ValidatedBatch) -> list[Record]:
    header = validated.header
    assert header == read_header(validated.data)
    return list(records(validated.data, 0, header))


# --- what is taken


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_valid_batch_is_unchanged(codec: Codec) -> None:
    sent = batch(b"a", b"b" * 500, codec=codec)
    before = bytes(sent)
    taken = validate_batch(sent)
    assert bytes(taken.data) == before
    assert taken.header == read_header(taken.data)
    assert [record.value for record in contents(taken)] == [b"a", b"b" * 500]


@pytest.mark.parametrize("source", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_batches_are_recompressed_with_the_topics_codec(source: Codec, target: str) -> None:
    sent = build(
        [(NOW_MS, b"k", b"v" * 300, [("h", b"x"), ("n", None)]), (NOW_MS + 5, None, None, [])],
        codec=source,
        producer_id=7,
        producer_epoch=2,
        base_sequence=9,
    )
    before = [record[1:] for record in records(sent, 0, read_header(sent))]
    taken = validate_batch(sent, CONFIG._replace(compression_type=target))
    header = taken.header
    assert header.codec == (source if target == "producer" else validator.CODEC_NAMES[target])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 9)
    assert (header.base_timestamp, header.max_timestamp, header.last_offset_delta) == (NOW_MS, NOW_MS + 5, 1)
    assert [record[1:] for record in contents(taken)] == before


@pytest.mark.parametrize("source", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
@pytest.mark.parametrize("target", ["uncompressed", "lz4"])
def test_recompressed_batch_has_the_same_size_limit(source: Codec, target: str) -> None:
    value = random.Random(1).randbytes(500) if source is Codec.NONE else b"a" * 20_000
    sent = batch(value, codec=source)
    config = CONFIG._replace(compression_type=target)
    size_bytes = len(validate_batch(memoryview(bytearray(sent)), config).data)
    exact = config._replace(max_message_bytes=max(size_bytes, len(sent)))
    validate_batch(memoryview(bytearray(sent)), exact)
    if size_bytes > len(sent):
        below = config._replace(max_message_bytes=size_bytes - 1)
        assert error_of(memoryview(bytearray(sent)), below).code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
@pytest.mark.parametrize("compression_type", ["producer", "zstd"])
def test_log_append_time_replaces_all_timestamps(codec: Codec, compression_type: str) -> None:
    config = APPEND_TIME._replace(compression_type=compression_type)
    taken = validate_batch(batch(b"a", b"b", timestamp=5, codec=codec), config)
    header = taken.header
    assert (header.has_log_append_time, header.max_timestamp) == (True, NOW_MS)
    assert [record.timestamp for record in contents(taken)] == [NOW_MS, NOW_MS]


def test_log_append_time_flag_of_a_producer_is_cleared() -> None:
    sent = batch(b"a", timestamp=NOW_MS - 5)
    claimed = with_field(sent, 21, ">h", 8)
    taken = validate_batch(claimed)
    assert not taken.header.has_log_append_time
    assert [record.timestamp for record in contents(taken)] == [NOW_MS - 5]


def test_log_append_time_flag_is_rejected_for_log_append_time_topics() -> None:
    error = error_of(with_field(batch(b"a"), 21, ">h", 8), APPEND_TIME)
    assert error.code == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("claimed", [-1, 0, NOW_MS, 1 << 62])
def test_max_timestamp_is_computed_from_the_records(codec: Codec, claimed: int) -> None:
    sent = build([(NOW_MS + each, None, b"v", []) for each in (0, 500, -500)], codec=codec)
    struct.pack_into(">q", sent, 35, claimed)
    update_crc(sent, 0, len(sent))
    taken = validate_batch(sent)
    assert taken.header.max_timestamp == NOW_MS + 500
    assert crc_is_valid(taken.data, 0, taken.header)
    assert [record.timestamp for record in contents(taken)] == [NOW_MS, NOW_MS + 500, NOW_MS - 500]


def test_max_timestamp_in_the_header_does_not_pass_a_record_out_of_bounds() -> None:
    sent = build([(NOW_MS + 2 * HOUR_MS, None, b"v", [])])
    struct.pack_into(">q", sent, 35, NOW_MS)
    assert error_of(with_field(memoryview(sent), 35, ">q", NOW_MS)).code == ErrorCode.INVALID_TIMESTAMP


def test_unknown_attributes_are_cleared_with_the_max_timestamp() -> None:
    """As in Kafka, which keeps them in a batch that it does not change."""
    kept = validate_batch(with_field(batch(b"a"), 21, ">h", 0x4080))
    assert kept.header.attributes == 0x4080
    sent = with_field(batch(b"a"), 21, ">h", 0x4080)
    assert validate_batch(with_field(sent, 35, ">q", 5)).header.attributes == 0


def test_offset_deltas_of_uncompressed_records_are_not_checked() -> None:
    """Observed in Apache Kafka, as are the next two tests (interop/test_batch_validation.py)."""
    sent = with_offset_deltas(0, 5)
    assert [record.offset for record in contents(validate_batch(sent))] == [0, 5]


def test_offset_deltas_of_compressed_records_must_count_up() -> None:
    error = error_of(with_offset_deltas(0, 5, codec=Codec.GZIP))
    assert error.code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_recompression_renumbers_records() -> None:
    taken = validate_batch(with_offset_deltas(0, 5), CONFIG._replace(compression_type="zstd"))
    assert [record.offset for record in contents(taken)] == [0, 1]


def with_offset_deltas(*deltas: int, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch of records with these offset deltas, whose header claims that they count up from 0."""
    last = len(deltas) - 1
    return build([(NOW_MS, None, b"v", [])] * len(deltas), codec=codec, offset_deltas=[*deltas, last])


HEADERS = {
    "header without a key": "04 01 01",
    "negative header count": "35",
    "header count beyond the record": "78",
    "header key of a negative length": "02 7b 00",
    "header key beyond the record": "02 64 61 62",
    "bytes after the headers": "00 00 00",
}


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("headers", HEADERS.values(), ids=list(HEADERS))
@pytest.mark.parametrize("producer_id", [-1, 7], ids=["plain", "idempotent"])
def test_malformed_headers_are_an_invalid_record(headers: str, codec: Codec, producer_id: int) -> None:
    record = bytes.fromhex("00 00 00 01 02 76") + bytes.fromhex(headers)
    payload = bytes([2 * len(record)]) + record
    sent = build(
        [(NOW_MS, None, b"v", [])], codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=0
    )
    sent = sent[:HEADER_BYTES] + compress(codec, payload)
    struct.pack_into(">i", sent, LENGTH_AT, len(sent) - LOG_OVERHEAD_BYTES)
    update_crc(sent, 0, len(sent))
    assert error_of(sent).code == ErrorCode.INVALID_RECORD


# --- what is refused whole


@pytest.mark.parametrize("size", [0, 1, 12, 60])
def test_batch_shorter_than_a_header_is_corrupt(size: int) -> None:
    assert error_of(batch(b"a")[:size]).code == ErrorCode.CORRUPT_MESSAGE


def test_a_wrong_crc_is_corrupt() -> None:
    whole = bytes(batch(b"value"))
    for position in range(17, len(whole)):
        garbled = bytearray(whole)
        garbled[position] ^= 1
        assert error_of(garbled).code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("difference", [-1, 1, 1000])
def test_wrong_batch_length_is_corrupt(difference: int) -> None:
    sent = batch(b"value")
    struct.pack_into(">i", sent, 8, len(sent) - 12 + difference)
    assert error_of(sent).code == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_beyond_max_message_bytes_is_too_large() -> None:
    sent = batch(bytes(100))
    config = CONFIG._replace(max_message_bytes=len(sent))
    validate_batch(sent, config)
    error = error_of(sent, CONFIG._replace(max_message_bytes=len(sent) - 1))
    assert error.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (0, ">q", 1),
        (23, ">i", -1),
        (23, ">i", 2),
        (57, ">i", 0),
        (57, ">i", -1),
        (57, ">i", 3),
        (21, ">h", 0x20),
        (43, ">q", 7),
    ],
    ids=[
        "base offset",
        "negative offset delta",
        "offset delta too large",
        "no records",
        "less than no records",
        "count too large",
        "control",
        "producer id without a sequence",
    ],
)
def test_inconsistent_header_is_an_invalid_record(position: int, layout: str, value: int) -> None:
    assert error_of(with_field(batch(b"a", b"b"), position, layout, value)).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
@pytest.mark.parametrize("count", [1, 3])
def test_wrong_record_count_is_an_invalid_record(codec: Codec, count: int) -> None:
    sent = with_field(batch(b"a", b"b", codec=codec), 57, ">i", count)
    assert error_of(with_field(sent, 23, ">i", count - 1)).code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("config", [CONFIG, COMPACTED, CONFIG._replace(compression_type="lz4")], ids=str)
@pytest.mark.parametrize("first_byte", [0x7F, 0x7E, 0x01, 0xFF], ids=hex)
def test_wrong_record_length_is_an_invalid_record(config: LogConfig, first_byte: int) -> None:
    assert (
        error_of(with_field(batch(b"a", b"b"), 61, ">B", first_byte), config).code == ErrorCode.INVALID_RECORD
    )


@pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name
)
def test_invalid_compressed_data_is_an_unknown_server_error(codec: Codec) -> None:
    """The error code of Apache Kafka, observed in interop/scenarios/raw_produce.py."""
    sent = with_field(batch(b"a" * 100, codec=codec), 61, ">q", 0x7777777777777777)
    assert error_of(sent).code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_unknown_codec_is_an_unknown_server_error() -> None:
    assert error_of(with_field(batch(b"a"), 21, ">h", 5)).code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name
)
@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["counted", "parsed"])
def test_batch_that_decompresses_beyond_the_limit_is_too_large(
    codec: Codec, config: LogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = batch(bytes(5000), codec=codec)
    monkeypatch.setattr(validator, "MAX_DECOMPRESSED_BYTES", 4000)
    assert error_of(sent, config).code == ErrorCode.MESSAGE_TOO_LARGE


def test_number_of_records_is_limited_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator, "MAX_RECORDS_IN_PYTHON", 1)
    monkeypatch.setattr(validator, "native_scan", None)
    validate_batch(batch(b"a"))
    assert error_of(batch(b"a", b"b")).code == ErrorCode.MESSAGE_TOO_LARGE


def test_number_of_records_is_limited_for_a_batch_with_another_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator, "MAX_RECORDS_IN_PYTHON", 1)
    config = LogConfig(compression_type="gzip")
    validate_batch(batch(b"a"), config)
    assert error_of(batch(b"a", b"b"), config).code == ErrorCode.MESSAGE_TOO_LARGE
    validate_batch(batch(b"a", b"b", codec=Codec.GZIP), config)


def test_batch_that_claims_more_records_than_fit_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator, "native_scan", None)
    count = 0x7FFFFFFF
    sent = with_field(with_field(batch(b"a"), 57, ">i", count), 23, ">i", count - 1)
    assert error_of(sent).code == ErrorCode.INVALID_RECORD


def test_a_coordinator_may_write_control_records() -> None:
    control = build([(NOW_MS, b"\0\0\0\1", bytes(6), [])], control=True)
    validate_batch(control, origin=AppendOrigin.COORDINATOR)
    assert error_of(control).code == ErrorCode.INVALID_RECORD


# --- what is refused for single records


def test_compacted_topic_rejects_records_without_a_key() -> None:
    sent = build([(NOW_MS, key, b"v", []) for key in (b"k", None, b"k", None)])
    error = error_of(sent, COMPACTED)
    assert isinstance(error, RecordErrors)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.records] == [1, 3]
    reason = "Compacted topic cannot accept message without key in topic partition t-0"
    assert error.records[0][1] == reason
    assert error.message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first "
        f"three errors at most: [RecordError(batchIndex=1, message='{reason}'), "
        f"RecordError(batchIndex=3, message='{reason}')]"
    )


@pytest.mark.parametrize(
    ("config", "offsets_ms", "refused"),
    [
        (CONFIG, [0, HOUR_MS], []),
        (CONFIG, [0, HOUR_MS + 1, 5], [1]),
        (CONFIG, [-1000 * HOUR_MS], []),
        (CONFIG._replace(message_timestamp_before_max_ms=HOUR_MS), [-HOUR_MS, 0], []),
        (CONFIG._replace(message_timestamp_before_max_ms=HOUR_MS), [0, -HOUR_MS - 1], [1]),
        (APPEND_TIME._replace(message_timestamp_before_max_ms=HOUR_MS), [-9 * HOUR_MS, 9 * HOUR_MS], []),
    ],
    ids=["just in time", "too late", "any past", "just old enough", "too old", "append time"],
)
def test_timestamps_out_of_bounds_are_rejected(
    config: LogConfig, offsets_ms: list[int], refused: list[int]
) -> None:
    sent = build([(NOW_MS + each, None, b"v", []) for each in offsets_ms])
    if not refused:
        validate_batch(sent, config)
        return
    error = error_of(sent, config)
    assert isinstance(error, RecordErrors)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.records] == refused


def test_records_without_a_timestamp_are_accepted() -> None:
    config = CONFIG._replace(message_timestamp_before_max_ms=HOUR_MS)
    validate_batch(build([(-1, None, b"v", [])]), config)


# --- what a request may carry


def produced(*parts: memoryview | bytes, version: int = 9) -> memoryview:
    data = memoryview(b"".join(bytes(part) for part in parts))
    return check_produced(data, leading_header(data), version)


def test_request_has_one_batch_per_partition() -> None:
    one = batch(b"a")
    assert produced(one) == one
    with pytest.raises(ApiError) as refused:
        produced(one, one)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_trailing_bytes_after_the_batch_are_dropped() -> None:
    one = batch(b"a")
    assert produced(one, b"rest") == one


@pytest.mark.parametrize(
    "data", [None, b"", bytes(11), bytes(batch(b"a"))[:-1]], ids=["null", "empty", "few", "truncated"]
)
def test_request_without_a_complete_batch_is_an_invalid_record(data: bytes | None) -> None:
    with pytest.raises(ApiError) as refused:
        check_produced(data, leading_header(data), 9)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def batch_with_byte(position: int, value: int) -> Callable[[], memoryview]:
    def make() -> memoryview:
        sent = batch(b"a")
        sent[position] = value
        return sent

    return make


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (batch_with_byte(16, 1), ErrorCode.INVALID_RECORD),
        (batch_with_byte(16, 3), ErrorCode.CORRUPT_MESSAGE),
        (batch_with_byte(8, 0xFF), ErrorCode.CORRUPT_MESSAGE),
        (batch_with_byte(11, 0), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["old magic", "later magic", "negative length", "zero length"],
)
def test_batch_of_another_format_is_rejected(make: Callable[[], memoryview], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        produced(make())
    assert refused.value.code == code


@pytest.mark.parametrize("version", [3, 6, 7, 13])
def test_zstandard_needs_version_7(version: int) -> None:
    sent = batch(b"a", codec=Codec.ZSTD)
    if version >= 7:
        assert produced(sent, version=version) == sent
        return
    with pytest.raises(ApiError) as refused:
        produced(sent, version=version)
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# --- whatever comes


@given(
    st.sampled_from(list(Codec)),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6),
    st.sampled_from([CONFIG, COMPACTED, APPEND_TIME, CONFIG._replace(compression_type="gzip")]),
    st.booleans(),
)
def test_random_bytes_are_rejected_or_accepted_unchanged(
    codec: Codec, edits: list[tuple[int, int]], config: LogConfig, resealed: bool
) -> None:
    sent = bytearray(batch(b"first", b"x" * 40, codec=codec))
    for position, value in edits:
        sent[position % len(sent)] = value
    if resealed:
        update_crc(sent, 0, len(sent))
    try:
        taken = validate_batch(sent, config)
    except ApiError:
        return
    header = taken.header
    assert header.size_bytes == len(taken.data)
    assert header.last_offset_delta == header.records_count - 1
