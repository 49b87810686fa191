"""Validation of the batch of a leader append, and its conversion. Kafka's LogValidator.

The checks run in Kafka's order. The first is the format of the request's records (`check_produced`). Then
follow base offset, size, CRC, offset range and record count, control bit, sequence, and the records. Record
boundaries are always checked. Keys and timestamps are decoded only if the topic's configuration depends on
them (docs/decisions/0002).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kwire.broker.storage.log.log_config import CLIENT, LOG_APPEND_TIME, AppendOrigin, LogConfig
from kwire.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    CorruptBatch,
    UnreadableBatch,
    build,
    count_records,
    crc_is_valid,
    read_header,
    records,
    stamp_append_time,
    update_crc,
)
from kwire.wire.compression import Codec, OutputTooLarge
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Buffer

MIN_RECORD_BYTES: Final = 14
"""The minimum length field of a batch in any format: a v0 message without key and value."""

MAX_DECOMPRESSED_BYTES: Final = 100 * 1024 * 1024
"""The maximum size of a decompressed batch. It is the default maximum size of a request."""

FIRST_VERSION_WITH_ZSTD: Final = 7
ERRORS_SHOWN: Final = 3

_INT16 = Struct(">h")
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

    def __init__(self, code: ErrorCode, message: str, refused: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = refused
        """The index and the reason of each invalid record."""


class ValidatedBatch(NamedTuple):
    """The bytes of a batch to append, and its header."""

    data: bytearray | memoryview
    header: BatchHeader


def leading_header(data: Buffer | None) -> BatchHeader | None:
    """Return the header of the first batch in a partition's Produce data, or None without a complete batch.

    As in Kafka, this is checked for all partitions first. Raises CORRUPT_MESSAGE for an impossible length or
    magic.
    """
    if data is None or len(data) < LOG_OVERHEAD_BYTES:
        return None
    if len(data) >= HEADER_BYTES:
        header = read_header(data)
        if header.magic == MAGIC and HEADER_BYTES <= header.size_bytes <= len(data):
            return header
    _whole_batch(data, 0)
    return None


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
        problem = f"offsets up to {header.last_offset_delta} and a count of {count} records"
    elif header.is_control:
        problem = "control records, which clients may not write"
    elif header.has_producer_id and header.base_sequence < 0:
        problem = f"producer id {header.producer_id} and the invalid sequence {header.base_sequence}"
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_RECORD, f"The batch appended to {partition} has {problem}.")


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
    append_time = config.message_timestamp_type == LOG_APPEND_TIME
    if config.compact or target != source or _timestamps_matter(header, config, now_ms):
        found = list(records(batch, 0, header, max_bytes=MAX_DECOMPRESSED_BYTES))
        refused: list[tuple[int, str]] = []
        out_of_time = False
        for index, record in enumerate(found):
            if config.compact and record.key is None and not header.is_control:
                refused.append((index, f"Compacted topic cannot accept message without key in {partition}."))
            elif reason := _timestamp_error(record.timestamp, header, config, now_ms):
                out_of_time = True
                refused.append((index, reason))
        if refused:
            raise _record_errors(refused, out_of_time)
        if target != source:
            rebuilt = build(
                ((record.timestamp, record.key, record.value, record.headers) for record in found),
                codec=target,
                level=_level(config, target),
                log_append_time=now_ms if append_time else None,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
            )
            rebuilt_header = read_header(rebuilt)
            _check_size(rebuilt_header, config, partition)
            return ValidatedBatch(rebuilt, rebuilt_header)
    else:
        count = count_records(batch, 0, header, MAX_DECOMPRESSED_BYTES)
        if count != header.records_count:
            raise CorruptBatch(
                f"The header counts {header.records_count} records, and the batch has another number"
            )
    if append_time:
        return ValidatedBatch(batch, stamp_append_time(batch, 0, header, now_ms))
    if header.has_log_append_time:
        attributes = header.attributes & ~TIMESTAMP_TYPE_MASK
        _INT16.pack_into(batch, ATTRIBUTES_AT, attributes)
        header = header._replace(attributes=attributes, crc=update_crc(batch, 0, header.size_bytes))
    return ValidatedBatch(batch, header)


def _timestamps_matter(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Return whether a record's timestamp may be invalid. If so, all timestamps have to be decoded."""
    if config.message_timestamp_type == LOG_APPEND_TIME:
        return header.has_log_append_time
    return (
        header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        or header.base_timestamp - now_ms > config.message_timestamp_after_max_ms
        or config.message_timestamp_before_max_ms < now_ms
    )


def _timestamp_error(timestamp: int, header: BatchHeader, config: LogConfig, now_ms: int) -> str | None:
    if config.message_timestamp_type != LOG_APPEND_TIME and timestamp != NO_TIMESTAMP:
        earliest = now_ms - config.message_timestamp_before_max_ms
        latest = now_ms + config.message_timestamp_after_max_ms
        if earliest <= timestamp <= latest:
            return None
        return f"Timestamp {timestamp} is out of range: it should be within [{earliest}, {latest}]."
    if header.has_log_append_time:
        return "Producers may not set the timestamp type to LogAppendTime."
    return None


def _record_errors(refused: list[tuple[int, str]], out_of_time: bool) -> RecordErrors:
    if out_of_time:
        return RecordErrors(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            refused,
        )
    shown = "; ".join(f"record {index}: {reason}" for index, reason in refused[:ERRORS_SHOWN])
    return RecordErrors(
        ErrorCode.INVALID_RECORD,
        f"{len(refused)} records have been rejected, the first of them: {shown}",
        refused,
    )


def _level(config: LogConfig, codec: Codec) -> int | None:
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    if codec == Codec.ZSTD:
        return config.compression_zstd_level
    return None
