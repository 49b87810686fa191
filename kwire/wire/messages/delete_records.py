"""DeleteRecords v0–2. KIP-107."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Message):
    """Delete what lies before an offset of each partition."""

    topics: list[DeleteRecordsTopic] = field()
    timeout_ms: Int32 = field()


class DeleteRecordsTopic(Message):
    """Partitions of one topic."""

    name: Str = field()
    partitions: list[DeleteRecordsPartition] = field()


class DeleteRecordsPartition(Message):
    """The offset before which records go; -1 is the high watermark."""

    partition_index: Int32 = field()
    offset: Int64 = field()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse(Message):
    """The new log start offset of each partition."""

    throttle_time_ms: Int32 = field()
    topics: list[DeleteRecordsTopicResult] = field()


class DeleteRecordsTopicResult(Message):
    """Results of one topic's partitions."""

    name: Str = field()
    partitions: list[DeleteRecordsPartitionResult] = field()


class DeleteRecordsPartitionResult(Message):
    """Where the partition begins now, or why nothing was deleted."""

    partition_index: Int32 = field()
    low_watermark: Int64 = field()
    error_code: Int16 = field()
