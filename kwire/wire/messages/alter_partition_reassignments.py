"""AlterPartitionReassignments v0–1. KIP-455, KIP-860 (whether the replication factor may change, v1)."""

from __future__ import annotations

from kwire.wire.schema import Bool, Int16, Int32, Message, Str, field, message


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Message):
    """A request to start or cancel reassignments of partitions."""

    timeout_ms: Int32 = field(default=60000)
    allow_replication_factor_change: Bool = field("1+", default=True)
    topics: list[ReassignableTopic] = field()


class ReassignableTopic(Message):
    name: Str = field()
    partitions: list[ReassignablePartition] = field()


class ReassignablePartition(Message):
    """A partition and its new replicas. Null replicas cancel the ongoing reassignment."""

    partition_index: Int32 = field()
    replicas: list[Int32] | None = field(nullable="0+", default=None)


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = field()
    allow_replication_factor_change: Bool = field("1+", ignorable=True, default=True)
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
    responses: list[ReassignableTopicResponse] = field()


class ReassignableTopicResponse(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[ReassignablePartitionResponse] = field()


class ReassignablePartitionResponse(Message):
    """Result for one partition."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
