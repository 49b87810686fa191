"""Records of __consumer_offsets for consumer groups. KIP-848."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bytes, Int8, Int32, Int64, Message, Str, field, message


@message(key=3, versions="0")
class ConsumerGroupMetadataKey(Message):
    group_id: Str = field()


@message(key=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue(Message):
    """A group's epoch, and the hash of the subscribed topics' metadata in that epoch (KIP-1101)."""

    epoch: Int32 = field()
    metadata_hash: Int64 = field(tag=0)


@message(key=4, versions="0")
class ConsumerGroupPartitionMetadataKey(Message):
    """The key of a group's subscribed topics. Since KIP-1101, only tombstones are written with it."""

    group_id: Str = field()


@message(key=4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Message):
    """The metadata of a group's subscribed topics, as written before KIP-1101."""

    topics: list[TopicMetadata] = field()


class TopicMetadata(Message):
    topic_id: Uuid = field()
    topic_name: Str = field()
    num_partitions: Int32 = field()
    partition_metadata: list[PartitionMetadata] = field()


class PartitionMetadata(Message):
    """The racks of a partition's replicas."""

    partition: Int32 = field()
    racks: list[Str] = field()


@message(key=5, versions="0")
class ConsumerGroupMemberMetadataKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Message):
    """A member's client and its subscription."""

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
    """Additional state of a member that uses the classic protocol."""

    session_timeout_ms: Int32 = field()
    supported_protocols: list[ClassicProtocol] = field()


class ClassicProtocol(Message):
    """An assignor that the member supports, with its subscription."""

    name: Str = field()
    metadata: Bytes = field()


@message(key=6, versions="0")
class ConsumerGroupTargetAssignmentMetadataKey(Message):
    group_id: Str = field()


@message(key=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """The epoch of the target assignment."""

    assignment_epoch: Int32 = field()
    assignment_timestamp: Int64 = field(tag=0, ignorable=True)


@message(key=7, versions="0")
class ConsumerGroupTargetAssignmentMemberKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """The target assignment of a member."""

    topic_partitions: list[TopicPartition] = field()


class TopicPartition(Message):
    """Partitions of one topic in an assignment."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()


@message(key=8, versions="0")
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """A member's current assignment, and its progress towards the target assignment."""

    member_epoch: Int32 = field()
    previous_member_epoch: Int32 = field()
    state: Int8 = field()
    assigned_partitions: list[TopicPartitions] = field()
    partitions_pending_revocation: list[TopicPartitions] = field()


class TopicPartitions(Message):
    """Partitions of one topic, and the epochs in which they were assigned."""

    topic_id: Uuid = field()
    partitions: list[Int32] = field()
    assignment_epochs: list[Int32] | None = field(nullable="0+", tag=0)


@message(key=16, versions="0")
class ConsumerGroupRegularExpressionKey(Message):
    group_id: Str = field()
    regular_expression: Str = field()


@message(key=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Message):
    """The topics that match a regular expression, and the version of the metadata image that has them."""

    topics: list[Str] = field()
    version: Int64 = field()
    timestamp: Int64 = field()
