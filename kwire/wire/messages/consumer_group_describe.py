"""ConsumerGroupDescribe v0–1. KIP-848, KIP-1099 (member type, v1)."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest(Message):
    group_ids: list[Str] = field()
    include_authorized_operations: Bool = field()


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = field()
    groups: list[DescribedGroup] = field()


class DescribedGroup(Message):
    """A group, or the error for it."""

    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+", default=None)
    group_id: Str = field()
    group_state: Str = field()
    group_epoch: Int32 = field()
    assignment_epoch: Int32 = field()
    assignor_name: Str = field()
    members: list[Member] = field()
    authorized_operations: Int32 = field(default=-2147483648)


class TopicPartitions(Message):
    topic_id: Uuid = field()
    topic_name: Str = field()
    partitions: list[Int32] = field()


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = field()


class Member(Message):
    """A member: its subscription, its assignment and its target assignment."""

    member_id: Str = field()
    instance_id: Str | None = field(nullable="0+", default=None)
    rack_id: Str | None = field(nullable="0+", default=None)
    member_epoch: Int32 = field()
    client_id: Str = field()
    client_host: Str = field()
    subscribed_topic_names: list[Str] = field()
    subscribed_topic_regex: Str | None = field(nullable="0+", default=None)
    assignment: Assignment = field()
    target_assignment: Assignment = field()
    member_type: Int8 = field("1+", ignorable=True, default=-1)
