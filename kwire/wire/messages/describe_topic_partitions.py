"""DescribeTopicPartitions v0. KIP-966: topics in pages."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest(Message):
    """A request to describe topics, starting at a cursor."""

    topics: list[TopicRequest] = field()
    response_partition_limit: Int32 = field(default=2000)
    cursor: RequestCursor | None = field(nullable="0+", default=None)


class TopicRequest(Message):
    name: Str = field()


class RequestCursor(Message):
    """The topic and partition to start with."""

    topic_name: Str = field()
    partition_index: Int32 = field()


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse(Message):
    """One page of topics, and the cursor of the next page."""

    throttle_time_ms: Int32 = field()
    topics: list[DescribeTopicPartitionsResponseTopic] = field()
    next_cursor: ResponseCursor | None = field(nullable="0+", default=None)


class DescribeTopicPartitionsResponseTopic(Message):
    """A topic and some or all of its partitions."""

    error_code: Int16 = field()
    name: Str | None = field(nullable="0+")
    topic_id: Uuid = field()
    is_internal: Bool = field()
    partitions: list[DescribeTopicPartitionsResponsePartition] = field()
    topic_authorized_operations: Int32 = field(default=-2147483648)


class ResponseCursor(Message):
    """The topic and partition to start the next request with."""

    topic_name: Str = field()
    partition_index: Int32 = field()


class DescribeTopicPartitionsResponsePartition(Message):
    """A partition's replicas, and its eligible leader replicas (KIP-966)."""

    error_code: Int16 = field()
    partition_index: Int32 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field(default=-1)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    eligible_leader_replicas: list[Int32] | None = field(nullable="0+", default=None)
    last_known_elr: list[Int32] | None = field(nullable="0+", default=None)
    offline_replicas: list[Int32] = field()
