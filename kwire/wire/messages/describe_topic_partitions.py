"""DescribeTopicPartitions v0. KIP-966: topics in pages."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest(Message):
    """Describe topics, from a cursor on."""

    topics: list[TopicRequest] = field()
    response_partition_limit: Int32 = field(default=2000)
    cursor: RequestCursor | None = field(nullable="0+", default=None)


class TopicRequest(Message):
    """A topic by its name."""

    name: Str = field()


class RequestCursor(Message):
    """The topic and partition to begin with."""

    topic_name: Str = field()
    partition_index: Int32 = field()


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse(Message):
    """The topics of one page, and where the next begins."""

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
    """The topic and partition that the next request begins with."""

    topic_name: Str = field()
    partition_index: Int32 = field()


class DescribeTopicPartitionsResponsePartition(Message):
    """Where a partition is, and who may lead it (KIP-966)."""

    error_code: Int16 = field()
    partition_index: Int32 = field()
    leader_id: Int32 = field()
    leader_epoch: Int32 = field(default=-1)
    replica_nodes: list[Int32] = field()
    isr_nodes: list[Int32] = field()
    eligible_leader_replicas: list[Int32] | None = field(nullable="0+", default=None)
    last_known_elr: list[Int32] | None = field(nullable="0+", default=None)
    offline_replicas: list[Int32] = field()
