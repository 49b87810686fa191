"""OffsetDelete v0. KIP-496."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=47, versions="0")
class OffsetDeleteRequest(Message):
    """Forget committed offsets of a group."""

    group_id: Str = field()
    topics: list[OffsetDeleteRequestTopic] = field()


class OffsetDeleteRequestTopic(Message):
    """Partitions of one topic."""

    name: Str = field()
    partitions: list[OffsetDeleteRequestPartition] = field()


class OffsetDeleteRequestPartition(Message):
    """A partition whose offset is to go."""

    partition_index: Int32 = field()


@message(key=47, versions="0")
class OffsetDeleteResponse(Message):
    """What became of each partition's offset."""

    error_code: Int16 = field()
    throttle_time_ms: Int32 = field()
    topics: list[OffsetDeleteResponseTopic] = field()


class OffsetDeleteResponseTopic(Message):
    """Results of one topic's partitions."""

    name: Str = field()
    partitions: list[OffsetDeleteResponsePartition] = field()


class OffsetDeleteResponsePartition(Message):
    """Whether the offset was deleted."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
