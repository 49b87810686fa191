"""FetchSnapshot v0–1. KIP-630, KIP-853 (directories and endpoints, v1)."""

from __future__ import annotations

from kwire.wire.messages.begin_quorum_epoch import NodeEndpoint as NodeEndpoint
from kwire.wire.primitives import Uuid
from kwire.wire.schema import Int16, Int32, Int64, Message, Records, Str, field, message


@message(key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest(Message):
    """A request for parts of metadata snapshots."""

    cluster_id: Str | None = field(nullable="0+", tag=0, default=None)
    replica_id: Int32 = field(default=-1)
    max_bytes: Int32 = field(default=0x7FFFFFFF)
    topics: list[RequestTopicSnapshot] = field()


class RequestTopicSnapshot(Message):
    name: Str = field()
    partitions: list[RequestPartitionSnapshot] = field()


class RequestPartitionSnapshot(Message):
    """A snapshot, and the byte position to start at."""

    partition: Int32 = field()
    current_leader_epoch: Int32 = field()
    snapshot_id: SnapshotId = field()
    position: Int64 = field()
    replica_directory_id: Uuid = field("1+", tag=0, ignorable=True)


class SnapshotId(Message):
    """A snapshot, identified by its end offset and epoch."""

    end_offset: Int64 = field()
    epoch: Int32 = field()


@message(key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    topics: list[ResponseTopicSnapshot] = field()
    node_endpoints: list[NodeEndpoint] = field("1+", tag=0)


class ResponseTopicSnapshot(Message):
    """Results for one topic's partitions."""

    name: Str = field()
    partitions: list[ResponsePartitionSnapshot] = field()


class ResponsePartitionSnapshot(Message):
    """A part of a snapshot, and the total size of the snapshot. The part may end within a batch."""

    index: Int32 = field()
    error_code: Int16 = field()
    snapshot_id: SnapshotId = field()
    current_leader: LeaderIdAndEpoch = field(tag=0)
    size: Int64 = field()
    position: Int64 = field()
    unaligned_records: Records = field()


class LeaderIdAndEpoch(Message):
    """The current leader, for a replica that sent its request to another controller."""

    leader_id: Int32 = field()
    leader_epoch: Int32 = field()
