"""OffsetForLeaderEpoch v2–4. KIP-101, KIP-279, KIP-320."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Int64, Message, Str, field, message


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest(Message):
    """A request for the end offsets of leader epochs."""

    replica_id: Int32 = field("3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic] = field()


class OffsetForLeaderTopic(Message):
    topic: Str = field()
    partitions: list[OffsetForLeaderPartition] = field()


class OffsetForLeaderPartition(Message):
    """The requested epoch, and the current leader epoch as the client knows it."""

    partition: Int32 = field()
    current_leader_epoch: Int32 = field(default=-1)
    leader_epoch: Int32 = field()


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: Int32 = field()
    topics: list[OffsetForLeaderTopicResult] = field()


class OffsetForLeaderTopicResult(Message):
    """Results for one topic's partitions."""

    topic: Str = field()
    partitions: list[EpochEndOffset] = field()


class EpochEndOffset(Message):
    """The largest epoch that does not exceed the requested one, and its end offset."""

    error_code: Int16 = field()
    partition: Int32 = field()
    leader_epoch: Int32 = field(default=-1)
    end_offset: Int64 = field(default=-1)
