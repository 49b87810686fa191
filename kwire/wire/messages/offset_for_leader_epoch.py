"""OffsetForLeaderEpoch v2–4. KIP-101, KIP-279, KIP-320."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest(Message):
    """Ask where leader epochs ended."""

    replica_id: Int32 = field("3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic] = field()


class OffsetForLeaderTopic(Message):
    """Partitions of one topic."""

    topic: Str = field()
    partitions: list[OffsetForLeaderPartition] = field()


class OffsetForLeaderPartition(Message):
    """The epoch asked about, and the one that the asker believes in."""

    partition: Int32 = field()
    current_leader_epoch: Int32 = field(default=-1)
    leader_epoch: Int32 = field()


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse(Message):
    """The end offset of each epoch asked for."""

    throttle_time_ms: Int32 = field()
    topics: list[OffsetForLeaderTopicResult] = field()


class OffsetForLeaderTopicResult(Message):
    """Results of one topic's partitions."""

    topic: Str = field()
    partitions: list[EpochEndOffset] = field()


class EpochEndOffset(Message):
    """The greatest epoch that is not above the one asked about, and its end."""

    error_code: Int16 = field()
    partition: Int32 = field()
    leader_epoch: Int32 = field(default=-1)
    end_offset: Int64 = field(default=-1)
