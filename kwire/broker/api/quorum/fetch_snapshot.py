"""FetchSnapshot v0–1: a part of a metadata snapshot from the leader. KIP-630, KIP-853 (v1).

Order of checks: cluster id, partition, leader epoch, snapshot id, position. A leader never sends the
bootstrap snapshot of a newly formatted directory, because the snapshot's records are also in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.quorum.fetch import MAX_BYTES
from kwire.broker.api.quorum.leader import leader_endpoint, leader_error, respond_when_durable
from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.voters import ReplicaKey
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    RequestPartitionSnapshot,
    ResponsePartitionSnapshot,
    ResponseTopicSnapshot,
    SnapshotId,
)
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRole

FIRST_WITH_ENDPOINTS = 1


def fetch_snapshot(
    node: ControllerRole, context: RequestContext, request: FetchSnapshotRequest
) -> Message | Delayed:
    """Return the bytes of the snapshot from the requested position on, at most `max_bytes`."""
    return respond_when_durable(node, context, lambda: _fetch_snapshot(node, context, request))


def _fetch_snapshot(
    node: ControllerRole, context: RequestContext, request: FetchSnapshotRequest
) -> FetchSnapshotResponse:
    if request.cluster_id not in (None, node.cluster_id):
        raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    [topic] = request.topics
    [requested] = topic.partitions
    data = ResponsePartitionSnapshot(
        index=requested.partition,
        snapshot_id=SnapshotId(end_offset=0, epoch=0),
        unaligned_records=b"",
    )
    if (topic.name, requested.partition) == (METADATA_TOPIC, 0):
        data.current_leader = LeaderIdAndEpoch(
            leader_id=node.quorum.advertised_leader_id, leader_epoch=node.quorum.epoch
        )
        data.error_code = _fill(node, request, requested, data)
    else:
        data.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = FetchSnapshotResponse(topics=[ResponseTopicSnapshot(name=topic.name, partitions=[data])])
    leader = leader_endpoint(node, context.listener)
    if leader is not None and context.api_version >= FIRST_WITH_ENDPOINTS:
        node_id, address = leader
        response.node_endpoints = [NodeEndpoint(node_id=node_id, host=address.host, port=address.port)]
    return response


def _fill(
    node: ControllerRole,
    request: FetchSnapshotRequest,
    requested: RequestPartitionSnapshot,
    data: ResponsePartitionSnapshot,
) -> ErrorCode:
    """Add the requested bytes of the snapshot to `data`. Return the error, or NONE."""
    code = leader_error(node.quorum, requested.current_leader_epoch)
    if code != ErrorCode.NONE:
        return code
    snapshots = node.quorum.log.snapshots
    snapshot = Snapshot(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
    if snapshot not in snapshots.known or snapshot.is_bootstrap:
        return ErrorCode.SNAPSHOT_NOT_FOUND
    size_bytes = snapshots.size(snapshot)
    if not 0 <= requested.position < size_bytes:
        return ErrorCode.POSITION_OUT_OF_RANGE
    data.snapshot_id = SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)
    data.size, data.position = size_bytes, requested.position
    max_bytes = min(max(request.max_bytes, 0), MAX_BYTES)
    data.unaligned_records = snapshots.piece(snapshot, requested.position, max_bytes)
    node.quorum.record_snapshot_fetch(ReplicaKey(request.replica_id, requested.replica_directory_id))
    return ErrorCode.NONE
