"""ListOffsets v1–11. KIP-79, KIP-207 (v5), KIP-734 (max timestamp, v7), KIP-405 (v8 and v9), KIP-1005
(v11).
"""

from __future__ import annotations

from kwire.schema import Int8, Int16, Int32, Int64, Message, Str, field, message


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest(Message):
    """Which offset a timestamp, or a place such as the end, stands for."""

    replica_id: Int32 = field()
    isolation_level: Int8 = field("2+")
    topics: list[ListOffsetsTopic] = field()
    timeout_ms: Int32 = field("10+", ignorable=True)


class ListOffsetsTopic(Message):
    """One list offsets topic."""

    name: Str = field()
    partitions: list[ListOffsetsPartition] = field()


class ListOffsetsPartition(Message):
    """One list offsets partition."""

    partition_index: Int32 = field()
    current_leader_epoch: Int32 = field("4+", ignorable=True, default=-1)
    timestamp: Int64 = field()


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse(Message):
    """The offset and timestamp that were found; -1 and -1 where none was."""

    throttle_time_ms: Int32 = field("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field()


class ListOffsetsTopicResponse(Message):
    """One list offsets topic response."""

    name: Str = field()
    partitions: list[ListOffsetsPartitionResponse] = field()


class ListOffsetsPartitionResponse(Message):
    """One list offsets partition response."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    timestamp: Int64 = field(default=-1)
    offset: Int64 = field(default=-1)
    leader_epoch: Int32 = field("4+", default=-1)
