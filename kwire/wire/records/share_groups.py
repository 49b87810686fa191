"""Records of __consumer_offsets for share groups. KIP-932."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.records.consumer_groups import TopicPartition
from kwire.wire.schema import Int8, Int32, Int64, Message, Str, field, message


@message(key=10, versions="0")
class ShareGroupMemberMetadataKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=10, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue(Message):
    """A member's client and its subscription."""

    rack_id: Str | None = field(nullable="0+")
    client_id: Str = field()
    client_host: Str = field()
    subscribed_topic_names: list[Str] = field()


@message(key=11, versions="0")
class ShareGroupMetadataKey(Message):
    group_id: Str = field()


@message(key=11, versions="0", flexible="0+")
class ShareGroupMetadataValue(Message):
    """A group's epoch, and the hash of the subscribed topics' metadata in that epoch."""

    epoch: Int32 = field()
    metadata_hash: Int64 = field()


@message(key=12, versions="0")
class ShareGroupTargetAssignmentMetadataKey(Message):
    group_id: Str = field()


@message(key=12, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue(Message):
    """The epoch of the target assignment."""

    assignment_epoch: Int32 = field()
    assignment_timestamp: Int64 = field(tag=0, ignorable=True)


@message(key=13, versions="0")
class ShareGroupTargetAssignmentMemberKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=13, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue(Message):
    """The target assignment of a member."""

    topic_partitions: list[TopicPartition] = field()


@message(key=14, versions="0")
class ShareGroupCurrentMemberAssignmentKey(Message):
    group_id: Str = field()
    member_id: Str = field()


@message(key=14, versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue(Message):
    """The current assignment of a member."""

    member_epoch: Int32 = field()
    previous_member_epoch: Int32 = field()
    state: Int8 = field()
    assigned_partitions: list[TopicPartition] = field()


@message(key=15, versions="0")
class ShareGroupStatePartitionMetadataKey(Message):
    group_id: Str = field()


@message(key=15, versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue(Message):
    """The partitions whose share state is initialized or being initialized, and topics being deleted."""

    initializing_topics: list[TopicPartitionsInfo] = field()
    initialized_topics: list[TopicPartitionsInfo] = field()
    deleting_topics: list[TopicInfo] = field()


class TopicPartitionsInfo(Message):
    topic_id: Uuid = field()
    topic_name: Str = field()
    partitions: list[Int32] = field()


class TopicInfo(Message):
    topic_id: Uuid = field()
    topic_name: Str = field()
