"""TxnOffsetCommit v0–5. KIP-98, KIP-447 (the consumer's group metadata, v3), KIP-890 (v5)."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest(Message):
    """A request to commit a group's offsets as part of a transaction."""

    transactional_id: Str = field()
    group_id: Str = field()
    producer_id: Int64 = field()
    producer_epoch: Int16 = field()
    generation_id: Int32 = field("3+", default=-1)
    member_id: Str = field("3+")
    group_instance_id: Str | None = field("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field()


class TxnOffsetCommitRequestTopic(Message):
    name: Str = field()
    partitions: list[TxnOffsetCommitRequestPartition] = field()


class TxnOffsetCommitRequestPartition(Message):
    """The offset to commit, and the consumer's own metadata."""

    partition_index: Int32 = field()
    committed_offset: Int64 = field()
    committed_leader_epoch: Int32 = field("2+", ignorable=True, default=-1)
    committed_metadata: Str | None = field(nullable="0+")


@message(key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse(Message):
    throttle_time_ms: Int32 = field()
    topics: list[TxnOffsetCommitResponseTopic] = field()


class TxnOffsetCommitResponseTopic(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[TxnOffsetCommitResponsePartition] = field()


class TxnOffsetCommitResponsePartition(Message):
    """Result for one partition."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
