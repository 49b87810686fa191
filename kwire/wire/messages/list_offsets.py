"""ListOffsets v1–11.

KIP-79, KIP-207 (v5), KIP-734 (max timestamp, v7), KIP-405 (v8 and v9), KIP-1005 (v11).
"""

from __future__ import annotations

from typing import Final

from kwire.wire.schema import Int8, Int16, Int32, Int64, Message, Str, field, message

LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps that stand for the log end and for the log start."""


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest(Message):
    """A request for the offsets of timestamps, or for special offsets such as the log end offset."""

    replica_id: Int32 = field()
    isolation_level: Int8 = field("2+")
    topics: list[ListOffsetsTopic] = field()
    timeout_ms: Int32 = field("10+", ignorable=True)


class ListOffsetsTopic(Message):
    name: Str = field()
    partitions: list[ListOffsetsPartition] = field()


class ListOffsetsPartition(Message):
    """A partition and a timestamp; -1 means the log end, -2 the log start, -3 the largest timestamp."""

    partition_index: Int32 = field()
    current_leader_epoch: Int32 = field("4+", ignorable=True, default=-1)
    timestamp: Int64 = field()


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse(Message):
    throttle_time_ms: Int32 = field("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field()


class ListOffsetsTopicResponse(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[ListOffsetsPartitionResponse] = field()


class ListOffsetsPartitionResponse(Message):
    """The first offset with that timestamp or a later one. Offset and timestamp are -1 if there is none."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    timestamp: Int64 = field(default=-1)
    offset: Int64 = field(default=-1)
    leader_epoch: Int32 = field("4+", default=-1)
