"""Fetch v4–18 of the metadata log, from its leader. KIP-595, KIP-630, KIP-853 (v17), KIP-1166 (v18).

Order: cluster, partition, the numbers themselves, the leader's epoch; then whether the log up to there is
the leader's. A Fetch that finds no records waits until more is committed, unless it says (from version 18 on)
that it knows less to be committed than there is.

Whoever does not vote is sent what is committed, and nothing else: with one voter nobody else asks. Kafka
sends what is written, whose high watermark comes later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.quorum.leaders import leader_endpoint, unfit
from kwire.broker.host.host import Timer
from kwire.broker.metadata.names import CLUSTER_METADATA_TOPIC
from kwire.broker.raft.followers import ReplicaKey
from kwire.broker.raft.positions import EndOfEpoch, answer_to_fetch
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC_ID
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.ports import ControllerRole

MAX_BYTES: Final = 8 * 1024 * 1024
"""What Kafka's controllers send at most, whatever is asked for."""
FIRST_WITH_ENDPOINTS: Final = 17
FIRST_WITH_REPLICA_STATE: Final = 15


def fetch(node: ControllerRole, context: RequestContext, request: FetchRequest) -> FetchResponse | Parked:
    """Answer at once, or park until more is committed or the wait is over."""
    if request.cluster_id not in (None, node.cluster_id):
        return FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    asked = _partition(request)
    if asked is None:
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
    fetching = _Fetch(node, context, request, asked)
    if (
        request.max_wait_ms < 0
        or asked.fetch_offset < 0
        or not 0 <= asked.last_fetched_epoch <= asked.current_leader_epoch
    ):
        return fetching.refusal(ErrorCode.INVALID_REQUEST)
    response, is_enough = fetching.read()
    if is_enough or request.max_wait_ms == 0:
        return response
    fetching.park()
    return PARKED


def _partition(request: FetchRequest) -> FetchPartition | None:
    """The one partition, if nothing else is asked for. It goes by its id: older versions have none."""
    if len(request.topics) != 1 or request.topics[0].topic_id != METADATA_TOPIC_ID:
        return None
    partitions = request.topics[0].partitions
    return partitions[0] if len(partitions) == 1 and partitions[0].partition == 0 else None


class _Fetch:
    """One Fetch under way."""

    def __init__(
        self, node: ControllerRole, context: RequestContext, request: FetchRequest, asked: FetchPartition
    ) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._asked = asked
        self._timer: Timer | None = None

    def read(self) -> tuple[FetchResponse, bool]:
        """What there is now, and whether that is reason enough to answer at once."""
        quorum, asked, log = self._node.quorum, self._asked, self._node.quorum.log
        code = unfit(quorum, asked.current_leader_epoch)
        if code != ErrorCode.NONE:
            return self.refusal(code), True
        other = answer_to_fetch(log, asked.fetch_offset, asked.last_fetched_epoch)
        data = self._data(log.high_watermark)
        if isinstance(other, EndOfEpoch):
            data.diverging_epoch = EpochEndOffset(epoch=other.epoch, end_offset=other.end_offset)
        elif isinstance(other, Snapshot):
            data.snapshot_id = SnapshotId(end_offset=other.end_offset, epoch=other.epoch)
        else:
            request = self._request
            version, state = self._context.api_version, request.replica_state
            replica_id = state.replica_id if version >= FIRST_WITH_REPLICA_STATE else request.replica_id
            if replica_id == self._node.node_id:
                return self.refusal(ErrorCode.UNKNOWN_SERVER_ERROR), True
            try:
                region = log.log.read(
                    asked.fetch_offset,
                    max_bytes=min(max(request.max_bytes, 0), MAX_BYTES),
                    up_to_offset=log.high_watermark,
                )
            except ApiError as error:
                return self.refusal(error.code), True
            if replica_id >= 0:
                quorum.is_fetched(ReplicaKey(replica_id, asked.replica_directory_id), asked.fetch_offset)
            if region.size_bytes:
                data.records = region
        is_enough = other is not None or bool(data.records) or log.high_watermark > asked.high_watermark
        return self._response(data), is_enough

    def _data(self, high_watermark: int) -> PartitionData:
        quorum = self._node.quorum
        return PartitionData(
            partition_index=0,
            high_watermark=high_watermark,
            log_start_offset=quorum.log.start_offset,
            current_leader=LeaderIdAndEpoch(leader_id=quorum.leader_id, leader_epoch=quorum.epoch),
            aborted_transactions=[],
            records=b"",
        )

    def _response(self, data: PartitionData) -> FetchResponse:
        response = FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[data]
                )
            ]
        )
        leader = leader_endpoint(self._node, self._context.listener)
        if leader is not None and self._context.api_version >= FIRST_WITH_ENDPOINTS:
            node_id, address = leader
            response.node_endpoints = [NodeEndpoint(node_id=node_id, host=address.host, port=address.port)]
        return response

    def refusal(self, code: ErrorCode) -> FetchResponse:
        """Nothing but an error, and who leads."""
        data = self._data(-1)
        data.error_code = code
        return self._response(data)

    def park(self) -> None:
        """Wait until more is committed, up to max_wait_ms."""
        self._node.quorum.wait(self.complete)
        self._timer = self._node.host.schedule(self._request.max_wait_ms, self.complete)
        self._context.channel.interrupt = self.complete

    def complete(self) -> None:
        """Read again, and answer with whatever there is."""
        self._node.quorum.wait_no_more(self.complete)
        if self._timer is not None:
            self._timer.cancel()
        channel = self._context.channel
        if channel.interrupt == self.complete:
            channel.interrupt = None
        if channel.closed or self._context.completed:
            return
        try:
            response: Message = self.read()[0]
        except Exception:
            # Nobody else would ever answer it.
            self._node.host.logger("kwire.dispatch").exception("a fetch that has waited cannot be answered")
            response = self.refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._context.complete(response)
