"""ConsumerGroupHeartbeat v0–1. KIP-848; regular expressions (v1), KIP-1082 (member generates its id, v1)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Message):
    """A member's heartbeat, also to join or leave a group. A field is null if its value has not changed."""

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
    """The member's epoch, and the member's assignment if the assignment changed."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+", default=None)
    member_id: Str | None = field(nullable="0+", default=None)
    member_epoch: Int32 = field()
    heartbeat_interval_ms: Int32 = field()
    assignment: Assignment | None = field(nullable="0+", default=None)


class Assignment(Message):
    topic_partitions: list[ResponseTopicPartitions] = field()


class ResponseTopicPartitions(Message):
    """Partitions of one topic that are assigned to the member."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()
