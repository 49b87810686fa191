"""The records of __consumer_offsets for consumer groups of the protocol of KIP-848."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bytes, Int8, Int32, Int64, Message, Str, field, message


@message(key=3, versions="0")
class ConsumerGroupMetadataKey(Message):
    """Which group."""

    group_id: Str = field()


@message(key=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    """A group's epoch, and a hash of the topics that it was decided upon (KIP-1101)."""

    epoch: Int32 = field()
    metadata_hash: Int64 = field(tag=0)


@message(key=4, versions="0")
class ConsumerGroupPartitionMetadataKey(Message):
    """Which group. Since KIP-1101 only its tombstones are written."""

    group_id: Str = field()


@message(key=4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Message):
    """The topics that a group had subscribed to, as they then were."""

    topics: list[TopicMetadata] = field()


class TopicMetadata(Message):
    """One topic as the group saw it."""

    topic_id: Uuid = field()
    topic_name: Str = field()
    num_partitions: Int32 = field()
    partition_metadata: list[PartitionMetadata] = field()


class PartitionMetadata(Message):
    """The racks that have a replica of a partition."""

    partition: Int32 = field()
    racks: list[Str] = field()


@message(key=5, versions="0")
class ConsumerGroupMemberMetadataKey(Message):
    """Which member of which group."""

    group_id: Str = field()
    member_id: Str = field()


@message(key=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
    """Who a member is, and what it subscribes to."""

    instance_id: Str | None = field(nullable="0+")
    rack_id: Str | None = field(nullable="0+")
    client_id: Str = field()
    client_host: Str = field()
    subscribed_topic_names: list[Str] = field()
    subscribed_topic_regex: Str | None = field(nullable="0+")
    rebalance_timeout_ms: Int32 = field(default=-1)
    server_assignor: Str | None = field(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(nullable="0+", tag=0)


class ClassicMemberMetadata(Message):
    """What is known besides of a member that still speaks the classic protocol."""

    session_timeout_ms: Int32 = field()
    supported_protocols: list[ClassicProtocol] = field()


class ClassicProtocol(Message):
    """An assignor that such a member knows, with its subscription."""

    name: Str = field()
    metadata: Bytes = field()


@message(key=6, versions="0")
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    """Which group."""

    group_id: Str = field()


@message(key=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The epoch of the group that the target assignment was made for."""

    assignment_epoch: Int32 = field()
    assignment_timestamp: Int64 = field(tag=0, ignorable=True)


@message(key=7, versions="0")
class ConsumerGroupTargetAssignmentMemberKey(Message):
    """Which member of which group."""

    group_id: Str = field()
    member_id: Str = field()


@message(key=7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """What a member is to have."""

    topic_partitions: list[TopicPartition] = field()


class TopicPartition(Message):
    """Partitions of one topic that a member is to have."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()


@message(key=8, versions="0")
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """Which member of which group."""

    group_id: Str = field()
    member_id: Str = field()


@message(key=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """What a member has, and how far it has come on the way to what it is to have."""

    member_epoch: Int32 = field()
    previous_member_epoch: Int32 = field()
    state: Int8 = field()
    assigned_partitions: list[TopicPartitions] = field()
    partitions_pending_revocation: list[TopicPartitions] = field()


class TopicPartitions(Message):
    """Partitions of one topic that a member has, and since which epochs."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


@message(key=16, versions="0")
class ConsumerGroupRegularExpressionKey(Message):
    """Which regular expression of which group."""

    group_id: Str = field()
    regular_expression: Str = field()


@message(key=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Message):
    """The topics that an expression was found to match, and in which version of the metadata."""

    topics: list[Str] = field()
    version: Int64 = field()
    timestamp: Int64 = field()
