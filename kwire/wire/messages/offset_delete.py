"""OffsetDelete v0. KIP-496."""

from __future__ import annotations

from kwire.wire.schema import Int16, Int32, Message, Str, field, message


@message(key=47, versions="0")
class OffsetDeleteRequest(Message):
    group_id: Str = field()
    topics: list[OffsetDeleteRequestTopic] = field()


class OffsetDeleteRequestTopic(Message):
    name: Str = field()
    partitions: list[OffsetDeleteRequestPartition] = field()


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32 = field()


@message(key=47, versions="0")
class OffsetDeleteResponse(Message):
    error_code: Int16 = field()
    throttle_time_ms: Int32 = field()
    topics: list[OffsetDeleteResponseTopic] = field()


class OffsetDeleteResponseTopic(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[OffsetDeleteResponsePartition] = field()


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32 = field()
    error_code: Int16 = field()
