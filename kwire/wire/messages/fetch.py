"""Fetch v4–18.

KIP-227 (sessions, v7), KIP-320 (epochs, v9 and v12), KIP-392 (rack, v11), KIP-516 (topic ids, v13), KIP-903
(v15), KIP-951 (v16).
"""

from __future__ import annotations

from typing import Final

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int8, Int16, Int32, Int64, Message, Records, Str, field, message

FIRST_VERSION_WITH_REPLICA_STATE: Final = 15  # KIP-903


@message(key=1, versions="4-18", flexible="12+")
class FetchRequest(Message):
    """A request for record batches. The broker may wait until `min_bytes` are available."""

    cluster_id: Str | None = field("12+", nullable="12+", tag=0, ignorable=True, default=None)
    replica_id: Int32 = field("0-14", default=-1)
    replica_state: ReplicaState = field("15+", tag=1)
    max_wait_ms: Int32 = field()
    min_bytes: Int32 = field()
    max_bytes: Int32 = field(default=0x7FFFFFFF)
    isolation_level: Int8 = field()
    session_id: Int32 = field("7+", ignorable=True)
    session_epoch: Int32 = field("7+", ignorable=True, default=-1)
    topics: list[FetchTopic] = field()
    forgotten_topics_data: list[ForgottenTopic] = field("7+")
    rack_id: Str = field("11+", ignorable=True)


class ReplicaState(Message):
    """The broker id and epoch of a follower; -1 means a consumer."""

    replica_id: Int32 = field("15+", default=-1)
    replica_epoch: Int64 = field("15+", default=-1)


class FetchTopic(Message):
    """Partitions of one topic, which is named by its id from version 13 on."""

    topic: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partitions: list[FetchPartition] = field()


class ForgottenTopic(Message):
    """Partitions of one topic to remove from the fetch session."""

    topic: Str = field("7-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partitions: list[Int32] = field("7+")


class FetchPartition(Message):
    """The offset to start at, and the maximum number of bytes."""

    partition: Int32 = field()
    current_leader_epoch: Int32 = field("9+", ignorable=True, default=-1)
    fetch_offset: Int64 = field()
    last_fetched_epoch: Int32 = field("12+", default=-1)
    log_start_offset: Int64 = field("5+", ignorable=True, default=-1)
    partition_max_bytes: Int32 = field()
    replica_directory_id: Uuid = field("17+", tag=0, ignorable=True)
    high_watermark: Int64 = field("18+", tag=1, ignorable=True, default=0x7FFFFFFFFFFFFFFF)


@message(key=1, versions="4-18", flexible="12+")
class FetchResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field("7+", ignorable=True)
    session_id: Int32 = field("7+")
    responses: list[FetchableTopicResponse] = field()
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0)


class FetchableTopicResponse(Message):
    """Results for one topic's partitions."""

    topic: Str = field("0-12", ignorable=True)
    topic_id: Uuid = field("13+", ignorable=True)
    partitions: list[PartitionData] = field()


class NodeEndpoint(Message):
    """The address of a broker that this response names as a leader."""

    node_id: Int32 = field("16+")
    host: Str = field("16+")
    port: Int32 = field("16+")
    rack: Str | None = field("16+", nullable="16+", default=None)


class PartitionData(Message):
    """A partition's batches, its offsets, and the aborted transactions in the batches."""

    partition_index: Int32 = field()
    error_code: Int16 = field()
    high_watermark: Int64 = field()
    last_stable_offset: Int64 = field(default=-1)
    log_start_offset: Int64 = field("5+", ignorable=True, default=-1)
    diverging_epoch: EpochEndOffset = field("12+", tag=0)
    current_leader: LeaderIdAndEpoch = field("12+", tag=1)
    snapshot_id: SnapshotId = field("12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = field(nullable="0+")
    preferred_read_replica: Int32 = field("11+", default=-1)
    records: Records | None = field(nullable="0+")


class EpochEndOffset(Message):
    """The point where the follower's log diverges: the largest common epoch and its end offset."""

    epoch: Int32 = field("12+", default=-1)
    end_offset: Int64 = field("12+", default=-1)


class LeaderIdAndEpoch(Message):
    """The current leader, for a client that sent its request to another broker."""

    leader_id: Int32 = field("12+", default=-1)
    leader_epoch: Int32 = field("12+", default=-1)


class SnapshotId(Message):
    """The snapshot that a replica of the metadata log has to fetch first."""

    end_offset: Int64 = field(default=-1)
    epoch: Int32 = field(default=-1)


class AbortedTransaction(Message):
    """An aborted transaction: its producer id and first offset."""

    producer_id: Int64 = field()
    first_offset: Int64 = field()
