"""Validation of the batch of a leader append, and its conversion. Kafka's LogValidator.

The checks run in Kafka's order. The first is the format of the request's records (`check_produced`). Then
follow base offset, size, CRC, offset range and record count, control bit, sequence, and the records. Every
record is checked completely, and the maximum timestamp in the header is computed from the records
(docs/decisions/0002).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kwire.broker.storage.log.log_config import CLIENT, LOG_APPEND_TIME, AppendOrigin, LogConfig
from kwire.wire.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    Record,
    UnreadableBatch,
    build,
    crc_is_valid,
    decompress_records,
    read_header,
    records,
    stamp_append_time,
    stamp_max_timestamp,
)
from kwire.wire.compression import Codec, OutputTooLarge
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer
from kwire.wire.record_scan import MAX_REJECTED, Problem, RecordScan, Rejection, native_scan, scan

MIN_RECORD_BYTES: Final = 14
"""The minimum length field of a batch in any format: a v0 message without key and value."""

MAX_DECOMPRESSED_BYTES: Final = 100 * 1024 * 1024
"""The maximum size of a decompressed batch. It is the default maximum size of a request."""

MAX_RECORDS_IN_PYTHON: Final = 500_000
"""The maximum number of records in a batch that Python code scans or builds again. It takes some seconds."""

MIN_RECORD_IN_BATCH_BYTES: Final = 7
"""The size of a record without key, value and headers, including its length."""

FIRST_VERSION_WITH_ZSTD: Final = 7
ERRORS_SHOWN: Final = 3
MIN_INT64: Final = -(1 << 63)
MAX_INT64: Final = (1 << 63) - 1

_INT32 = Struct(">i")

CODEC_NAMES: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class RecordErrors(ApiError):
    """A batch that was rejected because of single records. KIP-467."""

    def __init__(
        self, code: ErrorCode, message: str, refused: list[tuple[int, str]], without_key: int = 0
    ) -> None:
        super().__init__(code, message)
        self.records = refused
        """The index and the reason of each invalid record."""
        self.without_key = without_key
        """The number of records that lack the key that a compacted topic requires."""


class InvalidOffsetOrSequence(ApiError):
    """A client's batch with an invalid range of offsets, sequence number, or control records."""


class ValidatedBatch(NamedTuple):
    """The bytes of a batch to append, and its header."""

    data: bytearray | memoryview
    header: BatchHeader


def leading_header(data: Buffer | None) -> BatchHeader | None:
    """Return the header of the first batch in a partition's Produce data, or None without a complete batch.

    As in Kafka, the headers of all partitions are read before the first append. Raises CORRUPT_MESSAGE for an
    impossible length or magic.
    """
    if data is None or len(data) < LOG_OVERHEAD_BYTES:
        return None
    if len(data) >= HEADER_BYTES:
        header = read_header(data)
        if header.magic == MAGIC and HEADER_BYTES <= header.size_bytes <= len(data):
            return header
    _whole_batch(data, 0)
    return None


def is_transactional(data: Buffer | None) -> bool:
    """Return whether the first batch in a partition's Produce data is transactional."""
    try:
        header = leading_header(data)
    except ApiError:
        return False
    return header is not None and header.is_transactional


def check_produced(data: Buffer | None, header: BatchHeader | None, api_version: int) -> memoryview:
    """Return the only batch that a Produce request may have for a partition, without bytes after it.

    Raises ApiError CORRUPT_MESSAGE, INVALID_RECORD or UNSUPPORTED_COMPRESSION_TYPE.
    """
    if header is None or data is None:
        size_bytes = None if data is None else _whole_batch(data, 0)
        if data is None or size_bytes is None:
            wanted = "must have at least one record batch per partition"
        elif data[MAGIC_AT] != MAGIC:
            wanted = "may only contain record batches with magic 2"
        else:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "A record batch is shorter than its header.")
        raise ApiError(ErrorCode.INVALID_RECORD, f"Produce requests with version {api_version} {wanted}.")
    if api_version < FIRST_VERSION_WITH_ZSTD and header.attributes & CODEC_MASK == Codec.ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {api_version} may not use ZStandard compression.",
        )
    size_bytes = header.size_bytes
    if len(data) > size_bytes and _whole_batch(data, size_bytes) is not None:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {api_version} must contain exactly one batch per partition.",
        )
    return memoryview(data)[:size_bytes]


def _whole_batch(data: Buffer, position: int) -> int | None:
    """Return the size of the batch (of any format) at `position`, or None if the batch is incomplete."""
    left_bytes = len(data) - position
    if left_bytes < LOG_OVERHEAD_BYTES:
        return None
    (length,) = _INT32.unpack_from(data, position + LENGTH_AT)
    if length < MIN_RECORD_BYTES:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"A record batch cannot have length {length}.")
    if left_bytes <= MAGIC_AT:
        return None
    magic = data[position + MAGIC_AT]
    if magic > MAGIC:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"There is no record batch with magic {magic}.")
    size_bytes = LOG_OVERHEAD_BYTES + int(length)
    return size_bytes if left_bytes >= size_bytes else None


def validate(
    batch: bytearray | memoryview,
    config: LogConfig,
    *,
    now_ms: int,
    origin: AppendOrigin,
    partition: str = "",
    header: BatchHeader | None = None,
) -> ValidatedBatch:
    """Validate a complete batch, and convert its timestamps and compression as the topic requires.

    `partition` is for error messages. `header` is the header of the batch, if the caller has already read it.
    Offsets are not assigned here. Raises ApiError CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD or
    INVALID_TIMESTAMP, and RecordErrors if single records are invalid.
    """
    if header is None:
        if len(batch) < HEADER_BYTES:
            raise _corrupt(partition)
        header = read_header(batch)
    from_client = origin is CLIENT
    if from_client and header.base_offset != 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"The base offset of a batch appended to {partition} must be 0, not {header.base_offset}.",
        )
    _check_size(header, config, partition)
    if header.size_bytes != len(batch) or not crc_is_valid(batch, 0, header):
        raise _corrupt(partition)
    if from_client:
        _check_client_batch(header, partition)
    elif origin is AppendOrigin.COORDINATOR and _is_unchanged_by(header, config):
        # This broker built the batch, so its records need no check. The CRC shows that they are unchanged.
        return ValidatedBatch(batch, header)
    try:
        return _check_records(batch, header, config, now_ms, partition)
    except CorruptBatch as error:
        if isinstance(error.__cause__, OutputTooLarge):
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, str(error.__cause__)) from None
        if isinstance(error, UnreadableBatch):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{error} (appended to {partition}).") from None
        raise ApiError(ErrorCode.INVALID_RECORD, f"{error} (appended to {partition}).") from None


def _corrupt(partition: str) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"A record batch appended to {partition} is corrupt.")


def _check_size(header: BatchHeader, config: LogConfig, partition: str) -> None:
    if header.size_bytes > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch appended to {partition} has {header.size_bytes} bytes, "
            f"more than the {config.max_message_bytes} that are allowed.",
        )


def _check_client_batch(header: BatchHeader, partition: str) -> None:
    count = header.records_count
    problem = None
    if header.last_offset_delta < 0:
        problem = f"an invalid offset range, up to {header.last_offset_delta}"
    elif count <= 0:
        problem = f"an invalid count of records, {count}"
    elif header.last_offset_delta != count - 1:
        problem = f"offsets up to {header.last_offset_delta} and a count of {plural(count, 'record')}"
    elif header.is_control:
        problem = "control records, which clients may not write"
    elif header.has_producer_id and header.base_sequence < 0:
        problem = f"producer id {header.producer_id} and the invalid sequence {header.base_sequence}"
    if problem is not None:
        raise InvalidOffsetOrSequence(
            ErrorCode.INVALID_RECORD, f"The batch appended to {partition} has {problem}."
        )


def _is_unchanged_by(header: BatchHeader, config: LogConfig) -> bool:
    """Return whether the topic's configuration requires no change of the batch."""
    codec = header.codec
    return (
        CODEC_NAMES.get(config.compression_type, codec) == codec
        and not header.has_log_append_time
        and config.message_timestamp_type != LOG_APPEND_TIME
    )


def _check_records(
    batch: bytearray | memoryview, header: BatchHeader, config: LogConfig, now_ms: int, partition: str
) -> ValidatedBatch:
    source = header.codec
    target = CODEC_NAMES.get(config.compression_type, source)
    if header.is_control and source == Codec.NONE:
        target = Codec.NONE
    payload = decompress_records(batch, 0, header, MAX_DECOMPRESSED_BYTES)
    count = min(header.records_count, len(payload) // MIN_RECORD_IN_BATCH_BYTES)
    if count > MAX_RECORDS_IN_PYTHON and (native_scan is None or target != source):
        work = "validates without its native code" if native_scan is None else "can compress again"
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch appended to {partition} has {plural(count, 'record')}, more than the "
            f"{MAX_RECORDS_IN_PYTHON} that kwire {work}.",
        )
    append_time = config.message_timestamp_type == LOG_APPEND_TIME
    if header.has_log_append_time:
        max_timestamp = _check_with_one_timestamp(payload, header, config, now_ms, partition)
    else:
        earliest, latest = (MIN_INT64, MAX_INT64) if append_time else _timestamp_bounds(config, now_ms)
        found = scan(payload, header.records_count, header.base_timestamp, earliest, latest, config.compact)
        if found.problem:
            raise _unreadable(found, source)
        if found.rejected_count:
            raise _rejected_records(found, config, now_ms, partition)
        if source == target != Codec.NONE and not found.is_sequential:
            # Kafka's validator tries to build the batch again here, from records without keys and values.
            raise UnreadableBatch("The offset deltas of compressed records must count up from 0")
        max_timestamp = found.max_timestamp
    if target != source:
        return _rebuild(batch, payload, header, config, target, now_ms if append_time else None, partition)
    if append_time:
        return ValidatedBatch(batch, stamp_append_time(batch, 0, header, now_ms))
    if header.has_log_append_time or header.max_timestamp != max_timestamp:
        return ValidatedBatch(batch, stamp_max_timestamp(batch, 0, header, max_timestamp))
    return ValidatedBatch(batch, header)


def _rebuild(
    batch: bytearray | memoryview,
    payload: Buffer,
    header: BatchHeader,
    config: LogConfig,
    codec: Codec,
    log_append_time: int | None,
    partition: str,
) -> ValidatedBatch:
    """Build the batch again with another codec. The offset deltas then count up from 0.

    `payload` has the decompressed records. Raises UnreadableBatch for a batch that Kafka's
    MemoryRecordsBuilder does not build.
    """
    if header.is_transactional and not header.has_producer_id:
        raise UnreadableBatch("Cannot write transactional messages without a valid producer ID")
    if header.has_producer_id and header.producer_epoch == NO_PRODUCER_EPOCH:
        raise UnreadableBatch("Invalid negative producer epoch")
    rebuilt = build(
        (
            (_valid_timestamp(record), record.key, record.value, record.headers)
            for record in records(batch, 0, header, payload=payload)
        ),
        codec=codec,
        level=_level(config, codec),
        log_append_time=log_append_time,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )
    rebuilt_header = read_header(rebuilt)
    _check_size(rebuilt_header, config, partition)
    return ValidatedBatch(rebuilt, rebuilt_header)


def _valid_timestamp(record: Record) -> int:
    """Return the timestamp. Kafka builds no record with a negative timestamp other than NO_TIMESTAMP."""
    if record.timestamp < NO_TIMESTAMP:
        raise UnreadableBatch(f"Invalid negative timestamp {record.timestamp}")
    return record.timestamp


def _timestamp_bounds(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """Return the least and the greatest valid timestamp in ms."""
    return (
        max(now_ms - config.message_timestamp_before_max_ms, MIN_INT64),
        min(now_ms + config.message_timestamp_after_max_ms, MAX_INT64),
    )


def _check_with_one_timestamp(
    payload: Buffer, header: BatchHeader, config: LogConfig, now_ms: int, partition: str
) -> int:
    """Check a batch whose header gives all records its maximum timestamp. Return the timestamp.

    A producer may not set the timestamp type LogAppendTime. Kafka rejects it only if the topic has this type
    or if the batch has no timestamp; otherwise it accepts the batch and sets the type CreateTime.
    """
    found = scan(payload, header.records_count, 0, MIN_INT64, MAX_INT64, config.compact)
    if found.problem:
        raise _unreadable(found, header.codec)
    timestamp = header.max_timestamp
    earliest, latest = _timestamp_bounds(config, now_ms)
    is_valid = (
        config.message_timestamp_type != LOG_APPEND_TIME
        and timestamp != NO_TIMESTAMP
        and earliest <= timestamp <= latest
    )
    if not is_valid:
        without_key = {rejected[0] for rejected in found.rejected}
        rejected = [
            (
                index,
                int(Rejection.KEY_MISSING if index in without_key else Rejection.TIMESTAMP_OUT_OF_RANGE),
                timestamp,
                index,
            )
            for index in range(min(found.records_count, MAX_REJECTED))
        ]
        found = found._replace(
            rejected_count=found.records_count,
            has_wrong_timestamp=found.rejected_count < found.records_count,
            rejected=rejected,
        )
    if found.rejected_count:
        raise _rejected_records(found, config, now_ms, partition)
    return max(timestamp, NO_TIMESTAMP)


def _unreadable(found: RecordScan, codec: Codec) -> CorruptBatch:
    if found.problem == Problem.LENGTH_TOO_LONG and codec == Codec.NONE:
        return UnreadableBatch(found.problem_text)
    return CorruptBatch(found.problem_text)


def _rejected_records(found: RecordScan, config: LogConfig, now_ms: int, partition: str) -> RecordErrors:
    rejected = [
        (index, _rejection(reason, timestamp, offset, config, now_ms, partition))
        for index, reason, timestamp, offset in found.rejected
    ]
    if found.has_wrong_timestamp:
        without_key = sum(reason == Rejection.KEY_MISSING for _, reason, _, _ in found.rejected)
        return RecordErrors(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            rejected,
            without_key,
        )
    shown = ", ".join(
        f"RecordError(batchIndex={index}, message='{reason}')" for index, reason in rejected[:ERRORS_SHOWN]
    )
    return RecordErrors(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {found.rejected_count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        rejected,
        found.rejected_count,
    )


def _rejection(
    reason: int, timestamp: int, offset: int, config: LogConfig, now_ms: int, partition: str
) -> str:
    if reason == Rejection.KEY_MISSING:
        return f"Compacted topic cannot accept message without key in topic partition {partition}"
    if config.message_timestamp_type == LOG_APPEND_TIME or timestamp == NO_TIMESTAMP:
        return "Producers may not set the timestamp type to LogAppendTime."
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if latest > MAX_INT64:  # Kafka's text overflows
        latest -= 1 << 64
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. "
        f"The timestamp should be within [{earliest}, {latest}]"
    )


def _level(config: LogConfig, codec: Codec) -> int | None:
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    if codec == Codec.ZSTD:
        return config.compression_zstd_level
    return None
