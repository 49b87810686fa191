"""AlterPartitionReassignments v0–1. KIP-455, KIP-860 (whether the replication factor may change, v1)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Message):
    """Move partitions to other replicas, or stop moving them (null)."""

    timeout_ms: Int32 = field(default=60000)
    allow_replication_factor_change: Bool = field("1+", default=True)
    topics: list[ReassignableTopic] = field()


class ReassignableTopic(Message):
    """Partitions of one topic."""

    name: Str = field()
    partitions: list[ReassignablePartition] = field()


class ReassignablePartition(Message):
    """One partition and where it shall be."""

    partition_index: Int32 = field()
    replicas: list[Int32] | None = field(nullable="0+", default=None)


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Message):
    """What became of each move."""

    throttle_time_ms: Int32 = field()
    allow_replication_factor_change: Bool = field("1+", ignorable=True, default=True)
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    responses: list[ReassignableTopicResponse] = field()


class ReassignableTopicResponse(Message):
    """What became of one topic's moves."""

    name: Str = field()
    partitions: list[ReassignablePartitionResponse] = field()


class ReassignablePartitionResponse(Message):
    """What became of one move."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
