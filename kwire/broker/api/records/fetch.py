"""Fetch v4–18 of consumers.

KIP-74 (size limits), KIP-98 (isolation), KIP-227 (sessions), KIP-320 (epochs), KIP-392 (from followers),
KIP-516 (topic ids), KIP-951 (current leader).

Order of checks: isolation level, session; then for each partition topic id and existence, leader epoch,
leader, offset range. A fetch that finds less than `min_bytes` and no error is delayed until there is enough,
at most for `max_wait_ms`, and then reads again. Records are sent from the segment files without being copied
in Python.

A session may have thousands of partitions. Most of them are quiet, which means that they have nothing new.
For a quiet partition, nothing is read, allocated or looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.api.records import follower_fetch
from kwire.broker.api.records.fetch_responses import (
    FetchedPartitions,
    build_response,
    build_response_in_slices,
    find_divergence,
    partition_error,
    partition_refusal,
    replica_to_fetch,
)
from kwire.broker.api.records.fetch_sessions import (
    FetchContext,
    FetchSessionCache,
    FetchTarget,
    replica_id_of,
    targets_in_slices,
)
from kwire.broker.api.records.preferred_read_replica import preferred_read_replica
from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.ports import BrokerRole
from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER
from kwire.broker.api.request.slices import (
    LARGE_REQUEST_BYTES,
    InSlices,
    Steps,
    complete_in_slices,
    slices_of,
)
from kwire.broker.replication.broker_topic_metrics import EXPECTED_FETCH_ERRORS
from kwire.broker.replication.roles import LEADER, Role
from kwire.broker.storage.file_region import FileRegion
from kwire.broker.storage.log.segments import EMPTY, INCOMPLETE
from kwire.host.host import Timer
from kwire.wire.batch import NO_LEADER_EPOCH
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from kwire.broker.replication.partition import Partition
    from kwire.broker.storage.log.log import Log

READ_UNCOMMITTED, READ_COMMITTED = range(2)
FUTURE_REPLICA_ID = -3
"""The replica id of a future replica, which copies a complete log to another log directory.

All other negative ids are clients.
"""
FIRST_VERSION_FROM_FOLLOWERS = 11
LARGE_SESSION: Final = 4096
"""The number of partitions above which a Fetch is handled in slices. Most of them are quiet."""
QUIET: Final = FileRegion(EMPTY.file, 0, 0)
"""The read result of a quiet partition."""


class FetchBroker(BrokerRole, Protocol):
    @property
    def fetch_sessions(self) -> FetchSessionCache: ...


def handle(node: FetchBroker, context: RequestContext, request: FetchRequest) -> FetchResponse | Delayed:
    """Respond at once, or when the partitions have grown enough, at the latest after `max_wait_ms`.

    Raises ApiError INVALID_REQUEST for an unknown isolation level.
    """
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no isolation level {request.isolation_level}.")
    if context.size_bytes > LARGE_REQUEST_BYTES:
        return InSlices(_handle_large(node, context, request, None))
    try:
        session = node.fetch_sessions.context(
            request, context.api_version, node.image.name_of, node.host.monotonic_ms()
        )
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    if session.follower is not None:
        context.counted_as = FETCH_FOLLOWER, context.api_version
        return follower_fetch.handle(node, context, request, session)
    if len(session.targets) > LARGE_SESSION:
        return InSlices(_handle_large(node, context, request, session))
    fetch = _Fetch(node, context, request, session)
    fetch.resolve(session.targets.values())
    fetched, enough = fetch.read()
    if enough or request.max_wait_ms <= 0 or fetch.is_satisfied():
        return fetch.response(fetched)
    fetch.wait()
    return DELAYED


def _handle_large(
    node: FetchBroker,
    context: RequestContext,
    request: FetchRequest,
    session: FetchContext | None,
) -> Steps:
    """Handle a Fetch of many partitions in slices. `session` is its session, if it is already known."""
    if session is None:
        version = context.api_version
        targets = yield from targets_in_slices(request, version, node.image.name_of)
        try:
            session = node.fetch_sessions.context(
                request, version, node.image.name_of, node.host.monotonic_ms(), targets
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code)
    if session.follower is not None:
        context.counted_as = FETCH_FOLLOWER, context.api_version
        return follower_fetch.handle(node, context, request, session)
    fetch = _Fetch(node, context, request, session)
    for some in slices_of(list(session.targets.values())):
        fetch.resolve(some)
        yield
    fetched, enough = fetch.read()
    if enough or request.max_wait_ms <= 0 or node.stopping or fetch.is_satisfied():
        return (yield from fetch.response_in_slices(fetched))
    fetch.wait()
    return DELAYED


class _Fetch:
    """One Fetch request of a consumer. While it is delayed, its partitions notify it when they grow."""

    __slots__ = (
        "_committed",
        "_context",
        "_from_leader",
        "_is_completing",
        "_max_bytes",
        "_min_bytes",
        "_node",
        "_positions",
        "_reads_all",
        "_request",
        "_selects_replica",
        "_session",
        "_skips_quiet",
        "_targets",
        "_timer",
        "_unknown",
        "_watched",
    )

    def __init__(
        self, node: BrokerRole, context: RequestContext, request: FetchRequest, session: FetchContext
    ) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._session = session
        version = context.api_version
        self._reads_all = replica_id_of(request, version) == FUTURE_REPLICA_ID
        self._committed = request.isolation_level == READ_COMMITTED and not self._reads_all
        self._from_leader = version < FIRST_VERSION_FROM_FOLLOWERS and not self._reads_all
        self._selects_replica = (
            version >= FIRST_VERSION_FROM_FOLLOWERS and node.config.replica_selector_class is not None
        )
        """Whether the response may name a preferred read replica (KIP-392)."""
        self._max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._watched: list[tuple[Partition, FetchTarget, FileRegion]] = []
        """The readable partitions, and what the last read returned for each."""
        self._positions: list[tuple[int, int] | None] = []
        """For each partition in `_watched`, the position of its fetch offset in the log.

        A position is the base offset of a segment and the byte position in that segment. An entry is None for
        a quiet partition; its position is looked up when it is needed.
        """
        self._skips_quiet = session.is_incremental and not self._selects_replica and not self._reads_all
        self._timer: Timer | None = None
        self._is_completing = False
        """Whether a response that was delayed is being built in slices."""
        # A partition that does not exist now gets an error, even if it is created before a delayed response.
        # Such partitions come last in the response.
        self._unknown: FetchedPartitions = []
        self._targets: list[tuple[FetchTarget, Partition | PartitionData]] = []
        """The partitions to read, or the error response of a partition without a replica on this broker."""

    def resolve(self, targets: Iterable[FetchTarget]) -> None:
        """Find the partitions of all targets, possibly in several calls. Call this before `read`."""
        node = self._node
        for target in targets:
            if target.topic is None:
                self._unknown.append((target, partition_error(target, ErrorCode.UNKNOWN_TOPIC_ID)))
                continue
            partition = node.partition(target.topic, target.index)
            if partition is not None:
                self._targets.append((target, partition))
                continue
            if not node.partition_exists(target.topic, target.index):
                error = partition_error(target, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                self._unknown.append((target, error))
                continue
            code = node.missing_partition_error(target.topic, target.index).code
            refusal = partition_refusal(node, self._context.api_version, target, code)
            self._targets.append((target, refusal))

    def read(self) -> tuple[FetchedPartitions, bool]:
        """Read all partitions. Return the results, and whether to respond at once.

        The broker responds at once if at least `min_bytes` of records were read, if a partition has an error,
        a diverging epoch or a preferred read replica, or if there is no partition to read.
        """
        fetched: FetchedPartitions = []
        watched: list[tuple[Partition, FetchTarget, FileRegion]] = []
        left_bytes = self._max_bytes
        total_bytes = 0
        at_least_one = True
        urgent = False
        skips_quiet = self._skips_quiet
        for target, partition in self._targets:
            if isinstance(partition, PartitionData):
                fetched.append((target, partition))
                urgent = True
                continue
            if skips_quiet and self._is_quiet(partition, target):
                watched.append((partition, target, QUIET))
                continue
            try:
                if partition.role is not LEADER:
                    partition = replica_to_fetch(self._node, target, from_leader=self._from_leader)
                data, region = self._read_one(partition, target, left_bytes, at_least_one)
            except ApiError as error:
                if error.code not in EXPECTED_FETCH_ERRORS:
                    self._count_failure(target)
                fetched.append(
                    (target, partition_refusal(self._node, self._context.api_version, target, error.code))
                )
                urgent = True
                continue
            except Exception:
                self._count_failure(target)
                raise
            if data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0:
                urgent = True
            fetched.append((target, data))
            watched.append((partition, target, region))
            size_bytes = region.size_bytes
            if size_bytes:
                at_least_one = False
                total_bytes += size_bytes
                left_bytes = max(0, left_bytes - size_bytes)
        self._watched = watched
        enough = urgent or not self._targets or total_bytes >= self._min_bytes
        return fetched + self._unknown, enough

    def _count_failure(self, target: FetchTarget) -> None:
        if target.topic is not None:
            self._node.topic_stats.for_topic(target.topic).failed_reads += 1

    def _is_quiet(self, partition: Partition, target: FetchTarget) -> bool:
        """Return whether a read would find neither an error nor anything that the session has not sent."""
        log, offset = partition.log, target.fetch_offset
        high_watermark = log.high_watermark
        start_offset = log.log_start_offset
        return (
            offset == (log.last_stable_offset if self._committed else high_watermark)
            and target.sent_high_watermark == high_watermark
            and target.sent_log_start_offset == start_offset <= offset
            and target.current_leader_epoch in (partition.leader_epoch, NO_LEADER_EPOCH)
            and target.last_fetched_epoch < 0
            and partition.role is LEADER
            and log.failure is None  # all logs in a directory fail at once, but their roles change one by one
            and target.topic_id in (partition.topic_id, ZERO_UUID)
        )

    def _read_one(
        self, partition: Partition, target: FetchTarget, left_bytes: int, at_least_one: bool
    ) -> tuple[PartitionData, FileRegion]:
        if target.topic_id != ZERO_UUID and target.topic_id != partition.topic_id:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
        partition.check_leader_epoch(target.current_leader_epoch)
        log = partition.log
        committed = self._committed
        data = PartitionData(
            partition_index=target.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            records=b"",
            aborted_transactions=None,
        )
        if self._selects_replica and partition.remote_replicas is not None:
            preferred = preferred_read_replica(
                self._node,
                partition.remote_replicas,
                target.fetch_offset,
                rack=self._request.rack_id,
                listener=self._context.listener,
            )
            if preferred is not None:
                data.preferred_read_replica = preferred
                return data, EMPTY
        diverging = find_divergence(log, target)
        if diverging is not None:
            data.diverging_epoch = diverging
            return data, EMPTY
        region = log.read(
            target.fetch_offset,
            max_bytes=min(target.max_bytes, left_bytes),
            up_to_offset=self._end_offset(log),
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

    def _end_offset(self, log: Log) -> int:
        """Return the offset up to which this request may read."""
        if self._committed:
            return log.last_stable_offset
        return log.written_end_offset if self._reads_all else log.high_watermark

    def response(self, fetched: FetchedPartitions) -> FetchResponse:
        """Return the response. In a session, it has only what was not sent before."""
        try:
            return build_response(self._node, self._context, self._session, fetched)
        except ApiError as error:
            return FetchResponse(error_code=error.code, session_id=self._request.session_id)

    def response_in_slices(self, fetched: FetchedPartitions) -> Generator[None, None, FetchResponse]:
        """Build a large response like `response`, and yield between slices of the partitions."""
        try:
            return (yield from build_response_in_slices(self._node, self._context, self._session, fetched))
        except ApiError as error:
            return FetchResponse(error_code=error.code, session_id=self._request.session_id)

    def is_satisfied(self) -> bool:
        """Return whether to respond without waiting, after a `read` that did not find `min_bytes`.

        This also sets the positions in the segment files that `try_complete` needs. Call it exactly once,
        before `wait`.
        """
        known = True
        counts = self._min_bytes > 1
        try:
            for partition, target, region in self._watched:
                if region is QUIET and not counts:
                    self._positions.append(None)
                    continue
                log, offset = partition.log, target.fetch_offset
                position = log.known_position(region, offset)
                if position is None:
                    known = False
                    position = log.find_position(offset)
                elif offset > self._end_offset(log):
                    return True
                self._positions.append(position)
        except ApiError:
            return True
        return not known and self._has_enough()

    def wait(self) -> None:
        """Delay the response until the partitions have grown enough, at most for `max_wait_ms`."""
        for partition, _, _ in self._watched:
            partition.delayed_fetches[self] = None
        self._timer = self._node.host.schedule(self._request.max_wait_ms, self.complete)
        self._context.channel.fetches.begin_wait(self.complete)

    def try_complete(self) -> None:
        """Respond if the partitions together have at least `min_bytes` of new records."""
        if not self._context.completed and self._has_enough():
            self.complete()

    def _has_enough(self) -> bool:
        """Return whether the partitions together have at least `min_bytes` of new records.

        Also return True if a partition has an error, or if its new records are in more than one segment.
        """
        total_bytes = 0
        for (partition, target, _), position in zip(self._watched, self._positions, strict=True):
            role = partition.role
            if role is not LEADER and (self._from_leader or role is not Role.FOLLOWER):
                return True
            if target.current_leader_epoch not in (NO_LEADER_EPOCH, partition.leader_epoch):
                return True
            log = partition.log
            offset = target.fetch_offset
            try:
                end_offset = self._end_offset(log)
                if offset > end_offset:
                    return True
                if offset < end_offset:
                    available_bytes = log.bytes_from_position(
                        *(position or log.find_position(offset)), end_offset
                    )
                    if available_bytes is None:
                        return True
                    total_bytes += min(available_bytes, target.max_bytes)
            except ApiError:
                return True  # the response contains the error of the partition
        return total_bytes >= self._min_bytes

    def complete(self) -> None:
        """Read the partitions again and respond, unless the request is already completed."""
        for partition, _, _ in self._watched:
            partition.delayed_fetches.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        channel = self._context.channel
        channel.fetches.end_wait(self.complete)
        if channel.closed or self._context.completed:
            return
        if len(self._session.targets) > LARGE_SESSION:
            if not self._is_completing:
                self._is_completing = True
                complete_in_slices(self._node.host, self._context, self._steps_to_complete())
            return
        try:
            fetched, _ = self.read()
            response: Message = self.response(fetched)
        except Exception:
            # Without a response, the request would never complete.
            self._node.host.logger("kwire.dispatch").exception(
                "Delayed request %s from %s failed; responding with UNKNOWN_SERVER_ERROR",
                self._context.header,
                channel.peer_host,
            )
            response = self._context.error_response(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        self._context.complete(response)

    def _steps_to_complete(self) -> Steps:
        fetched, _ = self.read()
        return (yield from self.response_in_slices(fetched))
