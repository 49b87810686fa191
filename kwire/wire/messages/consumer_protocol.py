"""What consumers of a classic group write into its metadata and assignments. KIP-429 (v1), KIP-792 (v2),
KIP-881 (v3).
"""

from __future__ import annotations

from kwire.wire.schema import Bytes, Int32, Message, Str, field, message


@message(versions="0-3")
class ConsumerProtocolSubscription(Message):
    """What a consumer subscribes to, and what it owns now."""

    topics: list[Str] = field()
    user_data: Bytes | None = field(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field("1+", ignorable=True)
    generation_id: Int32 = field("2+", ignorable=True, default=-1)
    rack_id: Str | None = field("3+", nullable="3+", ignorable=True, default=None)


class TopicPartition(Message):
    """Partitions of a topic that the member owned until now (KIP-429)."""

    topic: Str = field("1+")
    partitions: list[Int32] = field("1+")


@message(versions="0-3")
class ConsumerProtocolAssignment(Message):
    """What a consumer is given."""

    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = field()
    user_data: Bytes | None = field(nullable="0+", default=None)


class ConsumerProtocolAssignmentTopicPartition(Message):
    """Partitions of a topic that the member is to read."""

    topic: Str = field()
    partitions: list[Int32] = field()
