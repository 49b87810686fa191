"""ElectLeaders v0–2. KIP-183, KIP-460 (unclean elections, and an error at the top, v1)."""

from __future__ import annotations

from kwire.wire.schema import Int8, Int16, Int32, Message, Str, field, message


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Message):
    """Elect leaders: the preferred replicas, or any that lives. Null topics means all partitions."""

    election_type: Int8 = field("1+")
    topic_partitions: list[TopicPartitions] | None = field(nullable="0+")
    timeout_ms: Int32 = field(default=60000)


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic: Str = field()
    partitions: list[Int32] = field()


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse(Message):
    """What became of each election."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("1+")
    replica_election_results: list[ReplicaElectionResult] = field()


class ReplicaElectionResult(Message):
    """What became of one topic's elections."""

    topic: Str = field()
    partition_result: list[PartitionResult] = field()


class PartitionResult(Message):
    """What became of one election."""

    partition_id: Int32 = field()
    error_code: Int16 = field()
    error_message: Str | None = field(nullable="0+")
