"""ConsumerGroupHeartbeat v0–1. KIP-848; regular expressions (v1), KIP-1082 (the member makes its id, v1)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Message):
    """Join a consumer group, stay in it, or leave it; tell what changed, and null where nothing did."""

    group_id: Str = field()
    member_id: Str = field()
    member_epoch: Int32 = field()
    instance_id: Str | None = field(nullable="0+", default=None)
    rack_id: Str | None = field(nullable="0+", default=None)
    rebalance_timeout_ms: Int32 = field(default=-1)
    subscribed_topic_names: list[Str] | None = field(nullable="0+", default=None)
    subscribed_topic_regex: Str | None = field("1+", nullable="1+", default=None)
    server_assignor: Str | None = field(nullable="0+", default=None)
    topic_partitions: list[RequestTopicPartitions] | None = field(nullable="0+", default=None)


class RequestTopicPartitions(Message):
    """Partitions of one topic that the member owns."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(Message):
    """The member's epoch, and its assignment where it changed."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+", default=None)
    member_id: Str | None = field(nullable="0+", default=None)
    member_epoch: Int32 = field()
    heartbeat_interval_ms: Int32 = field()
    assignment: Assignment | None = field(nullable="0+", default=None)


class Assignment(Message):
    """What the member may use at once."""

    topic_partitions: list[ResponseTopicPartitions] = field()


class ResponseTopicPartitions(Message):
    """Partitions of one topic that the member is given."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()
