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

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from kwire.broker.api.records import follower_fetch
from kwire.broker.api.records.fetch_isolation import (
    CONSUMER,
    FUTURE_REPLICA,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    find_divergence,
    find_replica,
)
from kwire.broker.api.records.fetch_responses import (
    FetchedPartitions,
    build_response,
    build_response_in_slices,
    partition_error,
    partition_refusal,
)
from kwire.broker.api.records.fetch_sessions import (
    FetchContext,
    FetchSessionCache,
    FetchTarget,
    replica_id_of,
    targets_in_slices,
)
from kwire.broker.api.records.preferred_read_replica import preferred_read_replica
from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext, size_of
from kwire.broker.api.request.ports import BrokerRole
from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER
from kwire.broker.api.request.slices import (
    LARGE_REQUEST_BYTES,
    InSlices,
    Steps,
    complete_in_slices,
    slices_of,
)
from kwire.broker.api.request.unexpected_error import unexpected_error
from kwire.broker.replication.broker_topic_metrics import EXPECTED_FETCH_ERRORS
from kwire.broker.replication.roles import LEADER
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.storage.file_region import FileRegion
from kwire.broker.storage.log.segments import EMPTY, INCOMPLETE
from kwire.broker.storage.log.worker_reads import ReadPending, WorkerReads
from kwire.host.host import Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from kwire.broker.replication.partition import Partition

FUTURE_REPLICA_ID = -3
"""The replica id of a future replica, which copies a complete log to another log directory.

All other negative ids are clients.
"""
FIRST_VERSION_FROM_FOLLOWERS = 11
LARGE_SESSION: Final = 4096
"""The number of partitions above which a Fetch is handled in slices. Most of them are quiet."""
MAX_READS: Final = 3
"""How often a Fetch waits for workers: for an index, for the batches, and for changes in the meantime."""
PARTITION_BYTES: Final = 40
"""The approximate size of a partition in a response, without its records, for quotas."""
QUIET: Final = FileRegion(EMPTY.file, 0, 0)
"""The read result of a quiet partition."""


class FetchBroker(BrokerRole, Protocol):
    @property
    def fetch_sessions(self) -> FetchSessionCache: ...


def handle(node: FetchBroker, context: RequestContext, request: FetchRequest) -> FetchResponse | Delayed:
    """Respond at once, or when the partitions have grown enough, at the latest after `max_wait_ms`.

    If workers have to read first, the response is sent after their reads.

    Raises ApiError INVALID_REQUEST for an unknown isolation level.
    """
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no isolation level {request.isolation_level}.")
    if context.size_bytes > LARGE_REQUEST_BYTES:
        return InSlices(_handle_large(node, context, request, None))
    try:
        session = node.fetch_sessions.context(
            request, context.api_version, node.image.name_of, node.host.internode_clock.monotonic_ms()
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
                request, version, node.image.name_of, node.host.internode_clock.monotonic_ms(), targets
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code)
    if session.follower is not None:
        context.counted_as = FETCH_FOLLOWER, context.api_version
        return follower_fetch.handle(node, context, request, session)
    fetch = _Fetch(node, context, request, session)
    for some in slices_of(list(session.targets.values())):
        fetch.resolve(some)
        yield None
    fetched, enough = fetch.read()
    if enough or request.max_wait_ms <= 0 or node.stopping or fetch.is_satisfied():
        return (yield from fetch.response_in_slices(fetched))
    fetch.wait()
    return DELAYED


class _Fetch:
    """One Fetch request of a consumer. While it is delayed, its partitions notify it when they grow."""

    __slots__ = (
        "_context",
        "_decided",
        "_is_completing",
        "_is_last_read",
        "_isolation",
        "_max_bytes",
        "_min_bytes",
        "_node",
        "_positions",
        "_reads",
        "_references",
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
        from_followers = version >= FIRST_VERSION_FROM_FOLLOWERS
        isolation = CONSUMER[request.isolation_level, not from_followers]
        if replica_id_of(request, version) == FUTURE_REPLICA_ID:
            isolation = FUTURE_REPLICA
        self._isolation = isolation
        self._selects_replica = from_followers and node.config.replica_selector_class is not None
        """Whether the response may name a preferred read replica (KIP-392)."""
        self._max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
        quotas = context.channel.quotas
        if quotas.is_enforced:
            self._max_bytes = min(self._max_bytes, quotas.fetch_limit_bytes(context))
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._watched: list[tuple[Partition, FetchTarget, FileRegion]] = []
        """The readable partitions, and what the last read returned for each."""
        self._positions: list[tuple[int, int] | None] = []
        """For each partition in `_watched`, the position of its fetch offset in the log.

        A position is the base offset of a segment and the byte position in that segment. An entry is None for
        a quiet partition; its position is looked up when it is needed.
        """
        self._skips_quiet = (
            session.is_incremental and not self._selects_replica and isolation is not FUTURE_REPLICA
        )
        self._decided: dict[str, bool] | None = None if len(session.targets) == 1 else {}
        """Whether the client may read topics, by name; None for a single partition."""
        self._references: Counter[str | None] | None = None
        self._timer: Timer | None = None
        self._reads = WorkerReads()
        self._is_last_read = False
        """Whether to respond without the partitions that workers would have to read."""
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
        is_open = node.gate.authorizer is None
        allowed: str | None = None
        for target in targets:
            if target.topic is None:
                self._unknown.append((target, partition_error(target, ErrorCode.UNKNOWN_TOPIC_ID)))
                continue
            if not is_open and target.topic is not allowed:
                if not self._may_read(target.topic):
                    error = partition_error(target, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    self._unknown.append((target, error))
                    continue
                allowed = target.topic
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

    def _may_read(self, topic: str) -> bool:
        """Return whether the client may read a topic. The audit log has this once, as in Apache Kafka."""
        decided = self._decided
        is_allowed = None if decided is None else decided.get(topic)
        if is_allowed is None:
            is_allowed = self._node.gate.allows(
                self._context, Operation.READ, ResourceType.TOPIC, topic, references=self._references_of
            )
            if decided is not None:
                decided[topic] = is_allowed
        return is_allowed

    def _references_of(self, topic: str) -> int:
        """Return the number of partitions of a topic in the session."""
        if self._references is None:
            self._references = Counter(target.topic for target in self._session.targets.values())
        return self._references[topic] or 1  # the session may have changed since the request

    def read(self) -> tuple[FetchedPartitions, bool]:
        """Read all partitions. Return the results, and whether to respond at once.

        The broker responds at once if at least `min_bytes` of records were read, if a partition has an error,
        a diverging epoch or a preferred read replica, or if there is no partition to read. It also does not
        wait for more records if workers have to read first: the results then lack these partitions.
        """
        fetched: FetchedPartitions = []
        watched: list[tuple[Partition, FetchTarget, FileRegion]] = []
        failed: list[FetchTarget] = []
        left_bytes = self._max_bytes
        total_bytes = 0
        at_least_one = True
        urgent = False
        skips_quiet, is_committed = self._skips_quiet, self._isolation.is_committed
        readable_end = self._isolation.readable_end
        for target, partition in self._targets:
            if isinstance(partition, PartitionData):
                fetched.append((target, partition))
                urgent = True
                continue
            try:
                if partition.role is not LEADER:
                    assert target.topic is not None
                    partition = find_replica(self._node, target.topic, target.index)
                end_offset = readable_end(partition, target.current_leader_epoch, target.topic_id)
                if (
                    skips_quiet
                    and target.fetch_offset == end_offset
                    and target.sent_high_watermark
                    == (partition.log.high_watermark if is_committed else end_offset)
                    and target.sent_log_start_offset == partition.log.log_start_offset <= end_offset
                    and target.last_fetched_epoch < 0
                ):
                    # The read would find neither an error nor anything that the session has not sent.
                    watched.append((partition, target, QUIET))
                    continue
                data, region = self._read_one(partition, target, end_offset, left_bytes, at_least_one)
            except ApiError as error:
                if error.code not in EXPECTED_FETCH_ERRORS:
                    failed.append(target)
                fetched.append(
                    (target, partition_refusal(self._node, self._context.api_version, target, error.code))
                )
                urgent = True
                continue
            except ReadPending:
                urgent = True
                at_least_one = False
                left_bytes = max(0, left_bytes - target.max_bytes)
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
        if self._is_last_read or not self._reads.is_pending:  # otherwise the partitions are read again
            for target in failed:
                self._count_failure(target)
        self._watched = watched
        enough = urgent or not self._targets or total_bytes >= self._min_bytes
        return fetched + self._unknown, enough

    def _count_failure(self, target: FetchTarget) -> None:
        if target.topic is not None:
            self._node.topic_stats.for_topic(target.topic).failed_reads += 1

    def _read_one(
        self, partition: Partition, target: FetchTarget, end_offset: int, left_bytes: int, at_least_one: bool
    ) -> tuple[PartitionData, FileRegion]:
        log = partition.log
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
        diverging = find_divergence(log, target) if target.last_fetched_epoch >= 0 else None
        if diverging is not None:
            data.diverging_epoch = diverging
            return data, EMPTY
        try:
            region = log.read(
                target.fetch_offset,
                max_bytes=min(target.max_bytes, left_bytes),
                up_to_offset=end_offset,
                at_least_one=at_least_one,
                reads=self._reads if self._isolation is not FUTURE_REPLICA else None,
            )
        except ReadPending:
            if not self._is_last_read:
                raise
            region = INCOMPLETE
        if region.size_bytes:
            data.records = region
        if self._isolation.is_committed and region is not INCOMPLETE:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in log.aborted_transactions(target.fetch_offset, region)
            ]
        return data, region

    def response(self, fetched: FetchedPartitions) -> FetchResponse | InSlices:
        """Return the response. In a session, it has only what was not sent before."""
        if self._reads.is_pending:
            return InSlices(self.response_in_slices(fetched))
        try:
            if self._context.channel.quotas.is_enforced and self._is_throttled(fetched):
                return FetchResponse(session_id=self._session.throttled_session_id())
            return build_response(self._node, self._context, self._session, fetched)
        except ApiError as error:
            return FetchResponse(error_code=error.code, session_id=self._request.session_id)

    def response_in_slices(
        self, fetched: FetchedPartitions
    ) -> Generator[WorkerReads | None, None, FetchResponse]:
        """Build a response after the pending reads of workers, and yield between slices of the partitions."""
        for reads_left in reversed(range(MAX_READS)):
            if not self._reads.is_pending:
                break
            yield self._reads
            self._is_last_read = not reads_left
            fetched, _ = self.read()
        try:
            if self._context.channel.quotas.is_enforced and self._is_throttled(fetched):
                return FetchResponse(session_id=self._session.throttled_session_id())
            return (yield from build_response_in_slices(self._node, self._context, self._session, fetched))
        except ApiError as error:
            return FetchResponse(error_code=error.code, session_id=self._request.session_id)

    def _is_throttled(self, fetched: FetchedPartitions) -> bool:
        """Record the response in the quotas of the client. Return whether it must be empty instead."""
        response_bytes = sum(
            PARTITION_BYTES + (0 if data.records is None else size_of(data.records)) for _, data in fetched
        )
        return self._context.channel.quotas.throttle_fetch(self._context, response_bytes) > 0

    def is_satisfied(self) -> bool:
        """Return whether to respond without waiting, after a `read` that did not find `min_bytes`.

        This also sets the positions in the segment files that `try_complete` needs. Call it exactly once,
        before `wait`.
        """
        known = True
        counts = self._min_bytes > 1
        readable_end = self._isolation.readable_end
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
                elif offset > readable_end(partition, target.current_leader_epoch, target.topic_id):
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
        readable_end = self._isolation.readable_end
        for (partition, target, _), position in zip(self._watched, self._positions, strict=True):
            log, offset = partition.log, target.fetch_offset
            try:
                end_offset = readable_end(partition, target.current_leader_epoch, target.topic_id)
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
        if channel.closed or self._context.completed or self._is_completing:
            return
        if len(self._session.targets) > LARGE_SESSION:
            self._complete_in_slices(self._steps_to_complete())
            return
        try:
            fetched, _ = self.read()
            response: Message | InSlices = self.response(fetched)
        except Exception as error:  # without a response, the request would never complete
            response = unexpected_error(self._node.host, self._context, error, self._request)
        if isinstance(response, InSlices):
            self._complete_in_slices(response.steps)
        else:
            self._context.complete(response)

    def _complete_in_slices(self, steps: Steps) -> None:
        self._is_completing = True
        complete_in_slices(self._node.host, self._context, steps)

    def _steps_to_complete(self) -> Steps:
        fetched, _ = self.read()
        return (yield from self.response_in_slices(fetched))
