"""Fetch v4–18 of followers. KIP-227 (sessions), KIP-595 (divergence), KIP-903 (broker epochs).

A follower reads up to the end of the leader's log. The fetch offset shows that the follower has all earlier
records. So a fetch may advance the high watermark and may expand the ISR.

A fetch in a session reads only the partitions that the request names or that have changed. The first
partition that grows wakes a delayed fetch. At the end of that turn of the event loop, the fetch responds for
all partitions that have grown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.records.fetch_isolation import FOLLOWER, find_divergence, find_replica
from kwire.broker.api.records.fetch_responses import (
    FetchedPartitions,
    build_response,
    partition_error,
    partition_refusal,
)
from kwire.broker.api.records.fetch_sessions import (
    FetchContext,
    FollowerTarget,
    size_of,
)
from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.request.unexpected_error import unexpected_error
from kwire.broker.replication.broker_topic_metrics import EXPECTED_FETCH_ERRORS
from kwire.broker.security.authorizer import Operation
from kwire.host.host import Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.fetch import (
    FIRST_VERSION_WITH_REPLICA_STATE,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole
from kwire.broker.replication.partition import Partition

_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors of partitions that do not exist. These partitions come last in the response.

A delayed fetch ignores such an error if the partition had it before. The usual reason is that the follower
has newer metadata. So the fetch is completed as soon as this broker becomes leader of another partition.
"""


def handle(
    node: BrokerRole, context: RequestContext, request: FetchRequest, session: FetchContext
) -> FetchResponse | Delayed:
    """Respond at once, or when the partitions have grown enough, at the latest after `max_wait_ms`."""
    fetch = _FollowerFetch(node, context, request, session)
    gate = node.gate
    if gate.authorizer is not None and not gate.allows(context, Operation.CLUSTER_ACTION):
        assert session.follower is not None
        # Otherwise clients without rights could evict the sessions of consumers, as in Apache Kafka.
        session.follower.privileged = False
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return fetch.response(
            [(target, partition_error(target, code)) for target in session.targets.values()]
        )
    fetched, enough = fetch.read(is_new=True)
    if enough or request.max_wait_ms <= 0:
        return fetch.response(fetched)
    fetch.wait()
    return DELAYED


class _FollowerFetch:
    __slots__ = (
        "_broker_epoch",
        "_broker_id",
        "_context",
        "_is_woken",
        "_max_bytes",
        "_min_bytes",
        "_node",
        "_request",
        "_sends_high_watermark_at_once",
        "_session",
        "_timer",
        "_unknown",
    )

    def __init__(
        self, node: BrokerRole, context: RequestContext, request: FetchRequest, session: FetchContext
    ) -> None:
        self._node = node
        self._context = context
        self._request = request
        self._session = session
        if context.api_version >= FIRST_VERSION_WITH_REPLICA_STATE:
            self._broker_id = request.replica_state.replica_id
            self._broker_epoch = request.replica_state.replica_epoch
        else:
            self._broker_id, self._broker_epoch = request.replica_id, -1
        self._max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._sends_high_watermark_at_once = node.config.replica_selector_class is not None
        """Whether consumers may fetch from followers, so that they wait for the followers' high watermark."""
        self._timer: Timer | None = None
        self._is_woken = False
        self._unknown: set[FollowerTarget] = set()
        """The targets whose partition did not exist when the request arrived."""

    def read(self, *, is_new: bool = False) -> tuple[FetchedPartitions, bool]:
        """Read all targets. Return the results, and whether to respond at once.

        With `is_new`, also record the follower's fetch offsets in the partitions.
        """
        node, session = self._node, self._session.follower
        assert session is not None
        fetched: FetchedPartitions = []
        unknown: FetchedPartitions = []
        left_bytes = self._max_bytes
        total_bytes = 0
        urgent = False
        for target in list(session.to_read()):
            assert isinstance(target, FollowerTarget)
            try:
                if target.topic is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
                partition = find_replica(node, target.topic, target.index)
                data, size_bytes = self._read_one(
                    partition, target, left_bytes, at_least_one=not total_bytes, is_new=is_new
                )
            except ApiError as error:
                if error.code not in EXPECTED_FETCH_ERRORS and target.topic is not None:
                    node.topic_stats.for_topic(target.topic).failed_reads += 1
                if error.code in _UNKNOWN:
                    unknown.append((target, partition_error(target, error.code)))
                    if is_new:
                        self._unknown.add(target)
                    elif target not in self._unknown:
                        urgent = True
                else:
                    fetched.append(
                        (target, partition_refusal(node, self._context.api_version, target, error.code))
                    )
                    urgent = True
                continue
            if data.diverging_epoch.epoch >= 0:
                urgent = True
            if self._sends_high_watermark_at_once and data.high_watermark > target.sent_high_watermark >= 0:
                urgent = True
            fetched.append((target, data))
            total_bytes += size_bytes
            left_bytes = max(0, left_bytes - size_bytes)
        has_none = len(self._unknown) == len(session.targets)
        return fetched + unknown, urgent or has_none or total_bytes >= self._min_bytes

    def _read_one(
        self,
        partition: Partition,
        target: FollowerTarget,
        left_bytes: int,
        *,
        at_least_one: bool,
        is_new: bool,
    ) -> tuple[PartitionData, int]:
        end_offset = FOLLOWER.readable_end(partition, target.current_leader_epoch, target.topic_id)
        state = partition.follower_state(
            self._broker_id, self._broker_epoch, has_leader_epoch=target.current_leader_epoch >= 0
        )
        log = partition.log
        data = PartitionData(
            partition_index=target.index,
            high_watermark=-1,
            log_start_offset=log.log_start_offset,
            records=b"",
            aborted_transactions=None,
        )
        size_bytes = 0
        throttle = self._node.leader_quota
        is_throttled = throttle.is_throttled(partition.topic, partition.index)
        diverging = find_divergence(log, target) if target.last_fetched_epoch >= 0 else None
        if diverging is not None:
            data.diverging_epoch = diverging
        else:
            is_held_back = is_throttled and not state.is_in_sync and throttle.is_quota_exceeded
            region = log.read(
                target.fetch_offset,
                max_bytes=min(target.max_bytes, left_bytes),
                up_to_offset=target.fetch_offset if is_held_back else end_offset,
                at_least_one=at_least_one,
            )
            size_bytes = region.size_bytes
            if size_bytes:
                data.records = region
            if is_new:
                partition.record_follower_fetch(
                    self._broker_id,
                    target.fetch_offset,
                    log_start_offset=target.log_start_offset,
                    broker_epoch=self._broker_epoch,
                    session_partition=target,
                )
        # The high watermark may have advanced when the fetch was recorded.
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        return data, size_bytes

    def response(self, fetched: FetchedPartitions) -> FetchResponse:
        """Return the response. In a session, it has only what was not sent before."""
        try:
            response = build_response(
                self._node, self._context, self._session, fetched, follower_id=self._broker_id
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code, session_id=self._request.session_id)
        session = self._session.follower
        assert session is not None
        for target, data in fetched:
            if data.error_code or data.diverging_epoch.epoch >= 0:
                continue
            assert target.topic is not None
            assert isinstance(target, FollowerTarget)
            size_bytes = size_of(data.records)
            if size_bytes and self._node.leader_quota.is_throttled(target.topic, target.index):
                self._node.leader_quota.record(size_bytes)
            partition = self._node.partition(target.topic, target.index)
            if partition is not None and partition.is_quiet_for(self._broker_id, target.fetch_offset, target):
                session.mark_quiet(target)
        return response

    def wait(self) -> None:
        """Delay the response until the partitions have grown enough, at most for `max_wait_ms`."""
        session = self._session.follower
        assert session is not None
        session.waiting_fetch = self
        if self._unknown:
            self._node.leader_partitions.early_fetches[self.complete] = None
        self._timer = self._node.host.internode_clock.schedule(self._request.max_wait_ms, self.complete)
        self._context.channel.fetches.begin_wait(self.complete)

    def wake(self) -> None:
        """Check at the end of this turn of the event loop whether to respond, because a partition changed."""
        if not self._is_woken:
            self._is_woken = True
            self._node.host.call_soon(self._check)

    def _check(self) -> None:
        self._is_woken = False
        if not self._context.completed and not self._context.channel.closed:
            self._finish(only_with_enough=True)

    def complete(self) -> None:
        """Read the targets again and respond, unless the request is already completed."""
        self._finish(only_with_enough=False)

    def _finish(self, *, only_with_enough: bool) -> None:
        channel = self._context.channel
        try:
            response: Message | None = None
            if not channel.closed and not self._context.completed:
                fetched, enough = self.read()
                if only_with_enough and not enough:
                    return
                response = self.response(fetched)
        except Exception as error:  # without a response, the request would never complete
            response = unexpected_error(self._node.host, self._context, error, self._request)
        session = self._session.follower
        assert session is not None
        if session.waiting_fetch is self:
            session.waiting_fetch = None
        self._node.leader_partitions.early_fetches.pop(self.complete, None)
        if self._timer is not None:
            self._timer.cancel()
        channel.fetches.end_wait(self.complete)
        if response is not None:
            self._context.complete(response)
