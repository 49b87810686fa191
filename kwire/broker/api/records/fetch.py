"""Fetch v4–18. KIP-74 (size limits), KIP-98 (isolation), KIP-227 (sessions), KIP-320 (epochs), KIP-516 (ids).

Order: session, isolation level, then per partition topic id and existence, epochs, replica, offset range.
A fetch that finds fewer than `min_bytes` and no error waits up to `max_wait_ms` for the partitions to grow,
and is then read afresh. Records go out as regions of the segment file, never through Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.records.fetch_sessions import (
    FetchContext,
    FetchTarget,
    replica_id_of,
)
from kwire.broker.host.host import Timer
from kwire.broker.replication.roles import Role
from kwire.broker.storage.disk import FileRegion
from kwire.broker.storage.log.segments import EMPTY, INCOMPLETE
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.ports import BrokerRole
    from kwire.broker.replication.partition import Partition

READ_UNCOMMITTED, READ_COMMITTED = range(2)
FUTURE_REPLICA_ID = -3
"""A broker's own copy of a log in another directory: it reads all there is. Other ids below 0 are clients."""
FIRST_VERSION_WITH_CURRENT_LEADER = 16
LAST_VERSION_WITHOUT_STORAGE_ERROR = 5

Fetched = list[tuple[FetchTarget, PartitionData]]


def handle(node: BrokerRole, context: RequestContext, request: FetchRequest) -> FetchResponse | Parked:
    """Answer at once, or park until the partitions have grown or the wait is over.

    ApiError INVALID_REQUEST: there is no such isolation level.
    """
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no isolation level {request.isolation_level}.")
    try:
        session = node.fetch_sessions.context(
            request, context.api_version, node.image.name_of, node.host.monotonic_ms()
        )
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    fetch = _Fetch(node, context, request, session)
    fetched, enough = fetch.read()
    if enough or request.max_wait_ms <= 0 or fetch.finds_enough():
        return fetch.response(fetched)
    fetch.park()
    return PARKED


class _Fetch:
    """One Fetch request under way; while it is parked, a waiter of its partitions."""

    __slots__ = (
        "_committed",
        "_context",
        "_erroneous",
        "_max_bytes",
        "_min_bytes",
        "_node",
        "_places",
        "_replica_id",
        "_request",
        "_session",
        "_targets",
        "_timer",
        "_watched",
    )

    def __init__(
        self, node: BrokerRole, context: RequestContext, request: FetchRequest, session: FetchContext
    ) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._session = session
        self._replica_id = replica_id_of(request, context.api_version)
        self._committed = request.isolation_level == READ_COMMITTED and self._replica_id != FUTURE_REPLICA_ID
        self._max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._watched: list[tuple[Partition, FetchTarget, FileRegion]] = []
        """Partitions that could be read, and what there was."""
        self._places: list[tuple[int, int]] = []
        """Where the read of each of them began: the segment's base offset, and the position in it."""
        self._timer: Timer | None = None
        # What does not exist when the request comes does not for as long as it waits; it is told of last.
        self._erroneous: Fetched = []
        self._targets: list[tuple[FetchTarget, Partition | None]] = []
        for target in session.targets.values():
            if target.topic is None:
                self._erroneous.append((target, _error(target, ErrorCode.UNKNOWN_TOPIC_ID)))
                continue
            partition = node.partition(target.topic, target.index)
            if partition is None and not node.partition_exists(target.topic, target.index):
                self._erroneous.append((target, _error(target, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
            else:
                self._targets.append((target, partition))

    def read(self) -> tuple[Fetched, bool]:
        """What there is now, and whether it is reason enough to answer at once."""
        fetched: Fetched = []
        watched: list[tuple[Partition, FetchTarget, FileRegion]] = []
        left_bytes = self._max_bytes
        total_bytes = 0
        at_least_one = True
        urgent = False
        for target, partition in self._targets:
            try:
                if partition is None or partition.role is not Role.LEADER:
                    assert target.topic is not None
                    partition = self._node.led_partition(target.topic, target.index)
                data, region = self._read_one(partition, target, left_bytes, at_least_one)
            except ApiError as error:
                fetched.append((target, self._refusal(target, error.code)))
                urgent = True
                continue
            if data.diverging_epoch.epoch >= 0:
                urgent = True
            fetched.append((target, data))
            watched.append((partition, target, region))
            size_bytes = region.size_bytes
            if size_bytes:
                at_least_one = False
                total_bytes += size_bytes
                left_bytes = max(0, left_bytes - size_bytes)
        self._watched = watched
        enough = urgent or not fetched or total_bytes >= self._min_bytes
        return fetched + self._erroneous, enough

    def _read_one(
        self, partition: Partition, target: FetchTarget, left_bytes: int, at_least_one: bool
    ) -> tuple[PartitionData, FileRegion]:
        if target.topic_id != ZERO_UUID and target.topic_id != partition.topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if target.current_leader_epoch >= 0:
            partition.check_leader_epoch(target.current_leader_epoch)
        if self._replica_id >= 0:
            # Only a replica of the partition may fetch as one, and this broker is the only replica.
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH
                if target.current_leader_epoch >= 0
                else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        log = partition.log
        committed = self._committed
        high_watermark = log.high_watermark
        stable_offset = log.last_stable_offset
        end_offset = stable_offset if committed else high_watermark
        data = PartitionData(
            partition_index=target.index,
            high_watermark=high_watermark,
            last_stable_offset=stable_offset,
            log_start_offset=log.log_start_offset,
            records=b"",
            aborted_transactions=None,
        )
        if target.last_fetched_epoch >= 0:
            epoch, epoch_end_offset = log.end_offset_for_epoch(target.last_fetched_epoch)
            if epoch_end_offset < 0 or epoch < 0 or target.fetch_offset < log.log_start_offset:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < target.last_fetched_epoch or epoch_end_offset < target.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=epoch_end_offset)
                return data, EMPTY
        region = log.read(
            target.fetch_offset,
            max_bytes=min(target.max_bytes, left_bytes),
            up_to_offset=end_offset,
            at_least_one=at_least_one,
        )
        if region.size_bytes:
            data.records = region
        if committed and region is not INCOMPLETE:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in log.aborted_transactions(target.fetch_offset, region)
            ]
        return data, region

    def _refusal(self, target: FetchTarget, code: ErrorCode) -> PartitionData:
        version = self._context.api_version
        if code == ErrorCode.KAFKA_STORAGE_ERROR and version <= LAST_VERSION_WITHOUT_STORAGE_ERROR:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = _error(target, code)
        data.aborted_transactions = None
        if version >= FIRST_VERSION_WITH_CURRENT_LEADER and code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            assert target.topic is not None
            leader_id, leader_epoch = self._node.current_leader(target.topic, target.index)
            data.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
        return data

    def response(self, fetched: Fetched) -> FetchResponse:
        """The response to these readings, trimmed to what the session has not been told."""
        try:
            session_id, told = self._session.trim(fetched, self._node.host.monotonic_ms())
        except ApiError as error:
            return FetchResponse(error_code=error.code, session_id=self._request.session_id)
        topics: list[FetchableTopicResponse] = []
        current: FetchableTopicResponse | None = None
        leaders: set[int] = set()
        for target, data in told:
            topic_name = target.topic or ""
            if current is None or current.topic != topic_name or current.topic_id != target.topic_id:
                current = FetchableTopicResponse(topic=topic_name, topic_id=target.topic_id, partitions=[])
                topics.append(current)
            current.partitions.append(data)
            if data.current_leader.leader_id >= 0:
                leaders.add(data.current_leader.leader_id)
        response = FetchResponse(session_id=session_id, responses=topics)
        if leaders and self._replica_id < 0:
            response.node_endpoints = [
                NodeEndpoint(
                    node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
                )
                for endpoint in self._node.endpoints(leaders, self._context.channel.listener)
            ]
        return response

    def finds_enough(self) -> bool:
        """Whether there is nothing to wait for, after a reading that did not say so by itself."""
        known = True
        try:
            for partition, target, region in self._watched:
                log, offset = partition.log, target.fetch_offset
                place = log.place_of(region, offset)
                if place is None:
                    known = False
                    place = log.place(offset)
                elif offset > (log.last_stable_offset if self._committed else log.high_watermark):
                    return True
                self._places.append(place)
        except ApiError:
            return True
        return not known and self._has_enough()

    def park(self) -> None:
        """Wait for the partitions to grow, up to max_wait_ms."""
        for partition, _, _ in self._watched:
            partition.waiters[self] = None
        self._timer = self._node.host.schedule(self._request.max_wait_ms, self.complete)
        self._context.channel.interrupt = self.complete

    def partition_grew(self) -> None:
        """Answer as soon as the partitions together hold min_bytes more."""
        if not self._context.completed and self._has_enough():
            self.complete()

    def _has_enough(self) -> bool:
        """Whether a wait is over: where a partition can be read no further, too, or not in this segment."""
        committed = self._committed
        total_bytes = 0
        for (partition, target, _), place in zip(self._watched, self._places, strict=True):
            if partition.role is not Role.LEADER:
                return True
            log = partition.log
            offset = target.fetch_offset
            try:
                end_offset = log.last_stable_offset if committed else log.high_watermark
                if offset > end_offset:
                    return True
                if offset < end_offset:
                    available_bytes = log.bytes_to(*place, end_offset)
                    if available_bytes is None:
                        return True
                    total_bytes += min(available_bytes, target.max_bytes)
            except ApiError:
                return True  # the answer says which partition cannot be read
        return total_bytes >= self._min_bytes

    def complete(self) -> None:
        """Read again and answer with whatever there is."""
        for partition, _, _ in self._watched:
            partition.waiters.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        channel = self._context.channel
        if channel.interrupt == self.complete:
            channel.interrupt = None
        if channel.closed or self._context.completed:
            return
        try:
            fetched, _ = self.read()
            response: Message = self.response(fetched)
        except Exception:
            # Nobody else would ever answer it.
            self._node.host.logger("kwire.dispatch").exception("a fetch that has waited cannot be answered")
            response = self._context.error_response(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        self._context.complete(response)


def _error(target: FetchTarget, code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=target.index, error_code=code, high_watermark=-1, records=b"")
