"""ElectLeaders v0–2. KIP-183, KIP-460 (unclean elections, top-level error, v1)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Message):
    """A request for preferred or unclean leader elections. Null topics means all partitions."""

    election_type: Int8 = field("1+")
    topic_partitions: list[TopicPartitions] | None = field(nullable="0+")
    timeout_ms: Int32 = field(default=60000)


class TopicPartitions(Message):
    topic: Str = field()
    partitions: list[Int32] = field()


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("1+")
    replica_election_results: list[ReplicaElectionResult] = field()


class ReplicaElectionResult(Message):
    """Results for one topic's partitions."""

    topic: Str = field()
    partition_result: list[PartitionResult] = field()


class PartitionResult(Message):
    """Result for one partition."""

    partition_id: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
