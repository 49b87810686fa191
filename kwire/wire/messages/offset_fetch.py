"""OffsetFetch v1–10.

KIP-447 (stable offsets, v7), KIP-709 (many groups, v8), KIP-848 (member epoch, v9), topic ids (v10).
"""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int16, Int32, Int64, Message, Str, field, message


@message(key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest(Message):
    group_id: Str = field("0-7")
    topics: list[OffsetFetchRequestTopic] | None = field("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+")
    require_stable: Bool = field("7+")


class OffsetFetchRequestTopic(Message):
    """Partitions of one topic, up to version 7."""

    name: Str = field("0-7")
    partition_indexes: list[Int32] = field("0-7")


class OffsetFetchRequestGroup(Message):
    """A group and the requested topics, from version 8 on (KIP-709). Null means all topics."""

    group_id: Str = field("8+")
    member_id: Str | None = field("9+", nullable="9+", ignorable=True, default=None)
    member_epoch: Int32 = field("9+", ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field("8+", nullable="8+")


class OffsetFetchRequestTopics(Message):
    name: Str = field("8-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partition_indexes: list[Int32] = field("8+")


@message(key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse(Message):
    throttle_time_ms: Int32 = field("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field("0-7")
    error_code: Int16 = field("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field("8+")


class OffsetFetchResponseTopic(Message):
    """Offsets of one topic's partitions, up to version 7."""

    name: Str = field("0-7")
    partitions: list[OffsetFetchResponsePartition] = field("0-7")


class OffsetFetchResponseGroup(Message):
    """Committed offsets of one group, from version 8 on (KIP-709)."""

    group_id: Str = field("8+")
    topics: list[OffsetFetchResponseTopics] = field("8+")
    error_code: Int16 = field("8+")


class OffsetFetchResponsePartition(Message):
    """A committed offset, or -1 if there is none."""

    partition_index: Int32 = field("0-7")
    committed_offset: Int64 = field("0-7")
    committed_leader_epoch: Int32 = field("5-7", ignorable=True, default=-1)
    metadata: Str | None = field("0-7", nullable="0-7")
    error_code: Int16 = field("0-7")


class OffsetFetchResponseTopics(Message):
    name: Str = field("8-9", ignorable=True)
    topic_id: Uuid = field("10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field("8+")


class OffsetFetchResponsePartitions(Message):
    """A committed offset, or -1 if there is none."""

    partition_index: Int32 = field("8+")
    committed_offset: Int64 = field("8+")
    committed_leader_epoch: Int32 = field("8+", ignorable=True, default=-1)
    metadata: Str | None = field("8+", nullable="8+")
    error_code: Int16 = field("8+")
