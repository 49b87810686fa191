"""DescribeQuorum v0–2. KIP-595, KIP-836 (fetch times, v1), KIP-853 (directories and endpoints, v2)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, Str, UInt16, field, message


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest(Message):
    topics: list[RequestTopicData] = field()


class RequestTopicData(Message):
    topic_name: Str = field()
    partitions: list[RequestPartitionData] = field()


class RequestPartitionData(Message):
    partition_index: Int32 = field()


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse(Message):
    """The leader, the voters and the observers of the metadata log."""

    error_code: Int16 = field()
    error_message: Str | None = field("2+", nullable="2+", ignorable=True)
    topics: list[ResponseTopicData] = field()
    nodes: list[QuorumNode] = field("2+")


class ResponseTopicData(Message):
    topic_name: Str = field()
    partitions: list[ResponsePartitionData] = field()


class QuorumNode(Message):
    node_id: Int32 = field("2+")
    listeners: list[Listener] = field("2+")


class ReplicaState(Message):
    """The log end offset and the fetch times of one replica."""

    replica_id: Int32 = field()
    replica_directory_id: Uuid = field("2+")
    log_end_offset: Int64 = field()
    last_fetch_timestamp: Int64 = field("1+", ignorable=True, default=-1)
    last_caught_up_timestamp: Int64 = field("1+", ignorable=True, default=-1)


class ResponsePartitionData(Message):
    partition_index: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field("2+", nullable="2+", ignorable=True)
    leader_id: Int32 = field()
    leader_epoch: Int32 = field()
    high_watermark: Int64 = field()
    current_voters: list[ReplicaState] = field()
    observers: list[ReplicaState] = field()


class Listener(Message):
    """The address of a node's listener."""

    name: Str = field("2+")
    host: Str = field("2+")
    port: UInt16 = field("2+")
