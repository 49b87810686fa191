"""Records of __consumer_offsets for committed offsets and classic groups."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bytes, Int32, Int64, Message, Str, field, message


@message(key=1, versions="0")
class OffsetCommitKey(Message):
    group: Str = field()
    topic: Str = field()
    partition: Int32 = field()


@message(key=1, versions="0-4", flexible="4+")
class OffsetCommitValue(Message):
    """A committed offset."""

    offset: Int64 = field()
    leader_epoch: Int32 = field("3+", ignorable=True, default=-1)
    metadata: Str = field()
    commit_timestamp: Int64 = field()
    expire_timestamp: Int64 = field("1", ignorable=True, default=-1)
    topic_id: Uuid = field("4+", tag=0, ignorable=True)


@message(key=2, versions="0")
class GroupMetadataKey(Message):
    group: Str = field()


@message(key=2, versions="0-4", flexible="4+")
class GroupMetadataValue(Message):
    """A group's generation: its protocol, leader and members."""

    protocol_type: Str = field()
    generation: Int32 = field()
    protocol: Str | None = field(nullable="0+")
    leader: Str | None = field(nullable="0+")
    current_state_timestamp: Int64 = field("2+", ignorable=True, default=-1)
    members: list[MemberMetadata] = field()


class MemberMetadata(Message):
    """A member with its subscription and assignment."""

    member_id: Str = field()
    group_instance_id: Str | None = field("3+", nullable="3+", ignorable=True, default=None)
    client_id: Str = field()
    client_host: Str = field()
    rebalance_timeout: Int32 = field("1+", ignorable=True, default=-1)
    session_timeout: Int32 = field()
    subscription: Bytes = field()
    assignment: Bytes = field()


@message(key=0, versions="0")
class LegacyOffsetCommitKey(Message):
    """The key of a committed offset in its oldest format."""

    group: Str = field()
    topic: Str = field()
    partition: Int32 = field()


@message(key=0, versions="0")
class LegacyOffsetCommitValue(Message):
    """A committed offset in its oldest format."""

    offset: Int64 = field()
    metadata: Str = field()
    commit_timestamp: Int64 = field()
