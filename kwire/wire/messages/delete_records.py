"""DeleteRecords v0–2. KIP-107."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic] = field()
    timeout_ms: Int32 = field()


class DeleteRecordsTopic(Message):
    name: Str = field()
    partitions: list[DeleteRecordsPartition] = field()


class DeleteRecordsPartition(Message):
    """The offset before which records are deleted; -1 means the high watermark."""

    partition_index: Int32 = field()
    offset: Int64 = field()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse(Message):
    throttle_time_ms: Int32 = field()
    topics: list[DeleteRecordsTopicResult] = field()


class DeleteRecordsTopicResult(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[DeleteRecordsPartitionResult] = field()


class DeleteRecordsPartitionResult(Message):
    """The log start offset after the deletion, or an error."""

    partition_index: Int32 = field()
    low_watermark: Int64 = field()
    error_code: Int16 = field()
