"""The embedded consumer protocol: subscriptions and assignments in classic groups.

KIP-429 (v1), KIP-792 (v2), KIP-881 (v3).
"""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int32, Message, Str, field, message


@message(versions="0-3")
class ConsumerProtocolSubscription(Message):
    """A consumer's subscription and its owned partitions."""

    topics: list[Str] = field()
    user_data: Bytes | None = field(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field("1+", ignorable=True)
    generation_id: Int32 = field("2+", ignorable=True, default=-1)
    rack_id: Str | None = field("3+", nullable="3+", ignorable=True, default=None)


class TopicPartition(Message):
    """Partitions of one topic that the member owns (KIP-429)."""

    topic: Str = field("1+")
    partitions: list[Int32] = field("1+")


@message(versions="0-3")
class ConsumerProtocolAssignment(Message):
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = field()
    user_data: Bytes | None = field(nullable="0+", default=None)


class ConsumerProtocolAssignmentTopicPartition(Message):
    """Partitions of one topic that are assigned to the member."""

    topic: Str = field()
    partitions: list[Int32] = field()
