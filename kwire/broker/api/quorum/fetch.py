"""Fetch v4–18 of the metadata log from its leader. KIP-595, KIP-630, KIP-853 (v17), KIP-1166 (v18).

Order of checks: cluster id, partition, offset and epochs, leader epoch, divergence. A Fetch that would return
no records is delayed until there are more. From v18 on, a Fetch with a lower high watermark than the leader's
is not delayed.

A voter gets all written records, because the voter's next Fetch helps to commit these. An observer gets only
committed records. In Apache Kafka, an observer also gets uncommitted records, and the high watermark in a
later Fetch response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.quorum.leader import leader_endpoint, leader_error, respond_when_durable
from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.undecided_fetch import UndecidedFetch
from kwire.broker.raft.positions import EndOfEpoch, check_fetch_position
from kwire.broker.raft.voters import ReplicaKey
from kwire.broker.security.authorizer import Operation
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC, METADATA_TOPIC_ID
from kwire.host.host import Timer
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
    from kwire.broker.api.request.ports import ControllerRole

MAX_BYTES: Final = 8 * 1024 * 1024
"""The limit for the records in a response, as in Kafka's controllers, even if the request allows more."""
FIRST_WITH_ENDPOINTS: Final = 17
FIRST_WITH_REPLICA_STATE: Final = 15


def fetch(node: ControllerRole, context: RequestContext, request: FetchRequest) -> Message | Delayed:
    """Respond at once, or when there are more records, at the latest after `max_wait_ms`."""
    if node.gate.authorizer is not None:
        node.gate.require(context, Operation.CLUSTER_ACTION)
    return _DurableFetch(node, context, request).start()


def _fetch(node: ControllerRole, context: RequestContext, request: FetchRequest) -> FetchResponse | Delayed:
    if request.cluster_id not in (None, node.cluster_id):
        return FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    requested = _partition(request)
    if requested is None:
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
    fetching = _Fetch(node, context, request, requested)
    if (
        request.max_wait_ms < 0
        or requested.fetch_offset < 0
        or not 0 <= requested.last_fetched_epoch <= requested.current_leader_epoch
    ):
        return fetching.refusal(ErrorCode.INVALID_REQUEST)
    if not node.quorum.leads:
        node.quorum.heard_from(fetching.replica_id)
    response, is_enough = fetching.read()
    if is_enough or request.max_wait_ms == 0:
        return response
    fetching.wait()
    return DELAYED


def _partition(request: FetchRequest) -> FetchPartition | None:
    """Return the metadata partition from the request; None if the request has any other partition.

    A request without topic ids (before v13) also returns None.
    """
    if len(request.topics) != 1 or request.topics[0].topic_id != METADATA_TOPIC_ID:
        return None
    partitions = request.topics[0].partitions
    return partitions[0] if len(partitions) == 1 and partitions[0].partition == 0 else None


class _DurableFetch:
    """A Fetch that is handled once all votes and epochs of this node are synced to disk."""

    def __init__(self, node: ControllerRole, context: RequestContext, request: FetchRequest) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._undecided: UndecidedFetch | None = None
        """Its place in the queue of the connection during the sync."""
        self._is_durable = False

    def start(self) -> Message | Delayed:
        reply = respond_when_durable(self._node, self._context, self._respond)
        if not self._is_durable and self._request.max_wait_ms > 0:
            self._undecided = UndecidedFetch(self._context.channel.fetches)
        return reply

    def _respond(self) -> FetchResponse | Delayed:
        self._is_durable = True
        if self._undecided is None:
            return _fetch(self._node, self._context, self._request)
        if not self._undecided.may_wait:
            self._request.max_wait_ms = 0
        try:
            return _fetch(self._node, self._context, self._request)
        finally:
            self._undecided.end()


class _Fetch:
    def __init__(
        self, node: ControllerRole, context: RequestContext, request: FetchRequest, requested: FetchPartition
    ) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._requested = requested
        self._timer: Timer | None = None
        self._is_voter = False

    def read(self) -> tuple[FetchResponse, bool]:
        """Read the log. Return the response, and whether to send it without waiting for more records."""
        quorum, requested, log = self._node.quorum, self._requested, self._node.quorum.log
        code = leader_error(quorum, requested.current_leader_epoch)
        if code != ErrorCode.NONE:
            return self.refusal(code), True
        other = check_fetch_position(log, requested.fetch_offset, requested.last_fetched_epoch)
        if other is None:
            request, replica_id = self._request, self.replica_id
            if replica_id == self._node.node_id:
                return self.refusal(ErrorCode.UNKNOWN_SERVER_ERROR), True
            key = ReplicaKey(replica_id, requested.replica_directory_id)
            self._is_voter = quorum.is_voter(key)
            # This Fetch may advance the high watermark. The response has the new high watermark.
            if replica_id >= 0:
                quorum.record_fetch(key, requested.fetch_offset)
                if leader_error(quorum, requested.current_leader_epoch) != ErrorCode.NONE:
                    return self.read()
            data = self._data(quorum.high_watermark)
            try:
                region = log.log.read(
                    requested.fetch_offset,
                    max_bytes=min(max(request.max_bytes, 0), MAX_BYTES),
                    up_to_offset=log.written_end_offset if self._is_voter else log.high_watermark,
                )
            except ApiError as error:
                return self.refusal(error.code), True
            if region.size_bytes:
                data.records = region
        else:
            data = self._data(quorum.high_watermark)
            if isinstance(other, EndOfEpoch):
                data.diverging_epoch = EpochEndOffset(epoch=other.epoch, end_offset=other.end_offset)
            else:
                data.snapshot_id = SnapshotId(end_offset=other.end_offset, epoch=other.epoch)
        is_news = data.high_watermark > requested.high_watermark
        return self._response(data), other is not None or bool(data.records) or is_news

    @property
    def replica_id(self) -> int:
        request = self._request
        if self._context.api_version >= FIRST_WITH_REPLICA_STATE:
            return request.replica_state.replica_id
        return request.replica_id

    def _data(self, high_watermark: int) -> PartitionData:
        quorum = self._node.quorum
        return PartitionData(
            partition_index=0,
            high_watermark=high_watermark,
            log_start_offset=quorum.log.start_offset,
            current_leader=LeaderIdAndEpoch(leader_id=quorum.advertised_leader_id, leader_epoch=quorum.epoch),
            aborted_transactions=[],
            records=b"",
        )

    def _response(self, data: PartitionData) -> FetchResponse:
        response = FetchResponse(
            responses=[
                FetchableTopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[data])
            ]
        )
        leader = leader_endpoint(self._node, self._context.listener)
        if leader is not None and self._context.api_version >= FIRST_WITH_ENDPOINTS:
            node_id, address = leader
            response.node_endpoints = [NodeEndpoint(node_id=node_id, host=address.host, port=address.port)]
        return response

    def refusal(self, code: ErrorCode) -> FetchResponse:
        """Return a response with an error and the current leader."""
        data = self._data(-1)
        data.error_code = code
        return self._response(data)

    def wait(self) -> None:
        """Delay the response until there are more records, at most for `max_wait_ms`."""
        self._node.quorum.wait(self.complete, for_written=self._is_voter)
        self._timer = self._node.host.internode_clock.schedule(self._request.max_wait_ms, self.complete)
        self._context.channel.fetches.begin_wait(self.complete)

    def complete(self) -> None:
        """Read the log again and respond, unless the request is already completed."""
        self._node.quorum.cancel_wait(self.complete)
        if self._timer is not None:
            self._timer.cancel()
        channel = self._context.channel
        channel.fetches.end_wait(self.complete)
        if channel.closed or self._context.completed or not self._node.quorum.when_synced(self.complete):
            return
        try:
            response: Message = self.read()[0]
        except Exception:
            # Without a response, the request would never complete.
            self._node.host.logger("kwire.dispatch").exception(
                "Delayed request %s from %s failed; responding with UNKNOWN_SERVER_ERROR",
                self._context.header,
                self._context.peer_host,
            )
            response = self.refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._context.complete(response)
