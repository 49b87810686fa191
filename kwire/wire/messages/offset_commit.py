"""OffsetCommit v2–10.

KIP-211 (no retention from v5), KIP-345 (instance id, v7), KIP-848 (member epoch, v9), topic ids (v10).
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest(Message):
    group_id: Str = field()
    generation_id_or_member_epoch: Int32 = field(default=-1)
    member_id: Str = field()
    group_instance_id: Str | None = field("7+", nullable="7+", default=None)
    retention_time_ms: Int64 = field("2-4", ignorable=True, default=-1)
    topics: list[OffsetCommitRequestTopic] = field()


class OffsetCommitRequestTopic(Message):
    name: Str = field("0-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field()


class OffsetCommitRequestPartition(Message):
    """The offset to commit, and the consumer's own metadata."""

    partition_index: Int32 = field()
    committed_offset: Int64 = field()
    committed_leader_epoch: Int32 = field("6+", ignorable=True, default=-1)
    committed_metadata: Str | None = field(nullable="0+")


@message(key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse(Message):
    throttle_time_ms: Int32 = field("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field()


class OffsetCommitResponseTopic(Message):
    """Results for one topic's partitions."""

    name: Str = field("0-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field()


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = field()
    error_code: Int16 = field()
