"""A replica of a partition on this broker.

A leader stages the appends of one loop turn in the log; `commit` writes them when the turn ends. A produce
request with acks 0 or 1 completes once the batch is written, or synced if `flush.messages` or `flush.ms`
require that. A request with acks -1 completes once the batch is below the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.alter_partition_manager import RETRY_MS, IsrChangeResult
from kwire.broker.replication.broker_topic_metrics import NOT_COUNTED
from kwire.broker.replication.delayed_produce import (
    NO_REPLICATION,
    AppendCallback,
    DelayedProduce,
    PendingAcknowledgement,
)
from kwire.broker.replication.follower_state import FetchSessionPartition, FollowerState
from kwire.broker.replication.remote_replicas import LeaderPartitions, PendingIsr, RemoteReplicas
from kwire.broker.replication.roles import LEADER, Role, RoleChange, role_after
from kwire.broker.storage.disk import StorageError, failure_in
from kwire.broker.storage.log.log import AppendOrigin, Log, LogAppendInfo
from kwire.broker.storage.log.producer_state import MarkerContext
from kwire.host.host import Host
from kwire.wire.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchHeader
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid


class InternalFailure(StorageError):
    """It was not the disk that failed, but this program."""


class DelayedFetch(Protocol):
    """Something that waits for a partition to grow (a long poll)."""

    def partition_grew(self) -> None:
        """Called after the high watermark has risen."""

    def complete(self) -> None:
        """Answer now, with whatever there is."""


class Partition:
    """One replica, in the role that the metadata has for it."""

    __slots__ = (
        "_flush_under_way",
        "_flushing",
        "_host",
        "_late",
        "_leading",
        "_on_offline",
        "_stage",
        "_staged",
        "_unflushed",
        "_when_recoverable",
        "_written_offset",
        "index",
        "leader_epoch",
        "led",
        "log",
        "role",
        "topic",
        "topic_id",
        "traffic",
        "waiters",
    )

    def __init__(
        self,
        log: Log,
        *,
        host: Host,
        stage: Callable[[Partition], None],
        when_recoverable: Callable[[Log, Host, Callable[[], None]], None],
        on_offline: Callable[[Partition, StorageError], None],
        leading: LeaderPartitions,
    ) -> None:
        """Absent yet: `lead` or `follow` comes next. `when_recoverable` tells when a log is in its place."""
        self.log = log
        self.topic = log.topic
        self.topic_id: Uuid = log.topic_id
        self.index = log.partition
        self.role = Role.ABSENT
        self.leader_epoch = NO_LEADER_EPOCH
        self.waiters: dict[DelayedFetch, None] = {}
        self._host = host
        self._stage = stage
        self._when_recoverable = when_recoverable
        self._on_offline = on_offline
        self._leading = leading
        self.traffic = leading.traffic.of(self.topic)
        self.led: RemoteReplicas | None = None
        """The other replicas, while this broker leads and where there are any."""
        self._written_offset = 0
        """Up to where the log is written, and synced where asked."""
        # Most partitions have no pending appends, so the lists are allocated on demand.
        self._staged: list[PendingAcknowledgement] | None = None
        self._unflushed: list[PendingAcknowledgement] | None = None
        self._flushing: Sequence[PendingAcknowledgement] = ()
        self._flush_under_way = False
        self._late: dict[DelayedProduce, None] | None = None
        """Promises that wait for other replicas."""

    # --- roles

    def lead(self, image: PartitionImage) -> None:
        """This broker leads. StorageError: the log cannot be used."""
        role = role_after(self.role, RoleChange.LEAD)
        if role is LEADER and image.leader_epoch > self.leader_epoch:
            self.log.begin_leader_epoch(image.leader_epoch)
            self.leader_epoch = image.leader_epoch
        if role is not self.role:
            self.role = role
            # What it appended when it led before, or has fetched, may still be on its way to the disk.
            log = self.log
            if log.has_unrecoverable_records:
                self._flush([])
            self._written_offset = log.recovery_point if self._flush_under_way else log.log_end_offset
        if role is LEADER:
            if len(image.replicas) > 1:
                if self.led is None:
                    self.led = RemoteReplicas(self._leading)
                    self._leading.partitions[self] = None
                self.led.take(image, self.log.log_end_offset, self._host.internode_clock.monotonic_ms())
            elif self.led is not None:
                self._forget_followers()
            self._replicated()

    def follow(self, image: PartitionImage) -> None:
        """Another broker leads, or nobody does. StorageError: the log cannot be used."""
        if self.log.failure is not None and self.role is Role.ABSENT:
            raise self.log.failure
        if self.role is LEADER:
            # What is staged has its offsets: it is a part of the log that others may have to truncate.
            self.commit()
        self.leader_epoch = max(self.leader_epoch, image.leader_epoch)
        self._become(role_after(self.role, RoleChange.FOLLOW), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leave(self, code: ErrorCode) -> None:
        """This broker has no replica of it any more; `code` tells who waits why."""
        self._become(role_after(self.role, RoleChange.LEAVE), code)

    def fail(self, error: StorageError) -> None:
        """The log has failed, or its directory."""
        first_time = self.role is not Role.OFFLINE
        self._become(role_after(self.role, RoleChange.FAIL), ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        if first_time:
            self._on_offline(self, error)

    def _become(self, role: Role, code: ErrorCode, message: str | None = None) -> None:
        """Take up a role in which nobody is served: who waits is told so."""
        self.role = role
        if self.led is not None:
            self._forget_followers()
        late, self._late = self._late or {}, None
        promises = [*self._flushing, *(self._unflushed or ()), *(self._staged or ())]
        self._flushing, self._unflushed, self._staged = (), None, None
        if late or promises:
            error = ApiError(code, message)
            for one in late:
                if one.timer is not None:
                    one.timer.cancel()
                self._tell(one.tell, error)
            for _, tell, _ in promises:
                self._tell(tell, error)
        self.wake()

    def _forget_followers(self) -> None:
        """What is known of them says nothing of a later time."""
        led, self.led = self.led, None
        del self._leading.partitions[self]
        assert led is not None
        led.news(wake=True)
        led.start_moved()

    def refusal(self) -> ApiError:
        """What to tell a client while this broker does not lead."""
        is_offline = self.role is Role.OFFLINE
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """KIP-320. -1 is a client that does not know the epoch, and is never fenced."""
        if leader_epoch == NO_LEADER_EPOCH or leader_epoch == self.leader_epoch:
            return
        if leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def is_behind(self) -> bool:
        """Whether it does not know yet that all is committed that it had when it began to lead. KIP-207."""
        return self.led is not None and self.led.epoch_start_offset > self.log.high_watermark

    @property
    def low_watermark(self) -> int:
        """Where the log begins on every replica that lives. KIP-107."""
        start_offset = self.log.log_start_offset
        return start_offset if self.led is None else self.led.low_watermark(start_offset)

    def start_moved(self) -> None:
        """The log begins later than it did: followers are told when they fetch."""
        if self.led is not None:
            self.led.news(wake=False)

    # --- appending

    def append(
        self,
        records: memoryview,
        *,
        now_ms: int,
        on_written: AppendCallback | None = None,
        on_replicated: AppendCallback | None = None,
        timeout_ms: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        marker: MarkerContext | None = None,
        header: BatchHeader | None = None,
        needs_isr: bool = True,
    ) -> LogAppendInfo:
        """Validate and stage a batch, and call `on_written` or `on_replicated` once that is so.

        `on_replicated` gets REQUEST_TIMED_OUT after `timeout_ms`; the records stay in the log. The log owns
        `records`, which must be writable. `needs_isr` rejects the batch if the ISR is smaller than
        min.insync.replicas. ApiError: the batch is rejected, and no callback is called.
        """
        if self.role is not LEADER:
            raise self.refusal()
        log = self.log
        led = self.led
        if (
            on_replicated is not None
            and led is not None
            and needs_isr
            and led.are_too_few(log.config.min_insync_replicas)
        ):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        traffic = self.traffic
        traffic.appends += 1
        try:
            appended = log.append(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                marker=marker,
                header=header,
            )
        except ApiError as error:
            traffic.failed_appends += error.code not in NOT_COUNTED
            raise
        if not appended.is_duplicate:
            traffic.messages_in += appended.last_offset - appended.first_offset + 1
            traffic.bytes_in += len(records)
        promise: PendingAcknowledgement
        if on_replicated is not None:
            promise = (appended.last_offset + 1, on_replicated, timeout_ms)
        else:
            assert on_written is not None
            promise = (NO_REPLICATION, on_written, None)
        if self._staged is not None:
            self._staged.append(promise)
        elif not appended.is_duplicate:
            self._stage(self)
            self._staged = [promise]
        elif self._flush_under_way:
            self._flush([promise])
        else:
            self._keep([promise])
        return appended

    @property
    def waiting_appends(self) -> int:
        """How many appends are written and wait for other replicas."""
        return len(self._late or ())

    def when_committed(self, tell: AppendCallback) -> None:
        """Tell, at once maybe, when all that the log has now is committed. ApiError: not led here."""
        if self.role is not LEADER:
            raise self.refusal()
        self._keep([(self.log.log_end_offset, tell, None)])

    def commit(self) -> None:
        """Write what this turn staged, then tell those who wait for it. Never raises."""
        if self.role is not LEADER:
            return  # who waited has been told
        log = self.log
        try:
            log.commit()
            must_flush = self._flush_under_way or log.needs_flush(self._host.monotonic_ms())
        except StorageError as error:
            self.fail(error)
            return
        except Exception as error:
            # A bug of kwire: the log may be inconsistent, so it is taken offline.
            self._host.logger("kwire.partition").exception("%s-%d cannot be written", self.topic, self.index)
            failure = InternalFailure(f"an unexpected failure: {error}")
            log.fail(failure)
            self.fail(failure)
            return
        promises, self._staged = self._staged or [], None
        if must_flush:
            self._flush(promises)
            return
        self._written(promises, log.log_end_offset)

    def sync(self, on_synced: AppendCallback) -> None:
        """Force everything appended so far to the disk, if that is due, then tell."""
        self._flush([(NO_REPLICATION, on_synced, None)])

    def _flush(self, promises: list[PendingAcknowledgement]) -> None:
        """Keep them once the log is in its place, and the disk has everything appended so far."""
        if self._unflushed is None:
            self._unflushed = promises
        else:
            self._unflushed += promises
        if not self._flush_under_way:
            self._begin_flush()

    def _begin_flush(self) -> None:
        # Group commit: whatever is appended while one sync runs shares the next.
        log = self.log
        if not log.is_recoverable:
            self._flush_under_way = True
            self._when_recoverable(log, self._host, self._placed)
            return
        end_offset = log.log_end_offset
        try:
            ticket = log.begin_flush()
        except StorageError as error:
            self.fail(error)
            return
        self._flushing, self._unflushed = self._unflushed or (), None
        self._flush_under_way = True

        def done(result: object) -> None:
            self._flush_under_way = False
            if self.log is not log:
                self._has_moved()
                return
            error = failure_in(result)
            if error is not None:
                log.fail(error)
                self.fail(error)
                return
            ticket.finish()
            promises, self._flushing = self._flushing, ()
            self._written(promises, min(end_offset, self.log.log_end_offset))
            if self._unflushed is not None and self.role is not Role.OFFLINE:
                self._begin_flush()

        self._host.run_in_worker(ticket.work, done)

    def _has_moved(self) -> None:
        """What was synced is the old log, in another directory: the promises are kept by the new one."""
        if self.role is LEADER or self.role is Role.FOLLOWER:
            self._unflushed = [*self._flushing, *(self._unflushed or ())]
            self._flushing = ()
            self._begin_flush()

    def _placed(self) -> None:
        """What is in the log is found after a crash. It may be another one by now, or have failed."""
        self._flush_under_way = False
        log = self.log
        if log.failure is None and (
            log.awaits_sync or log.has_unflushed_segments or log.needs_flush(self._host.monotonic_ms())
        ):
            self._begin_flush()
            return
        promises, self._unflushed = self._unflushed or (), None
        self._written(promises, log.written_end_offset)

    # --- keeping promises

    def follower(self, broker_id: int, broker_epoch: int, *, knows_leader: bool) -> FollowerState:
        """Return the state of the follower with this id.

        ApiError UNKNOWN_LEADER_EPOCH: this broker does not know the broker as a replica (yet).
        NOT_LEADER_OR_FOLLOWER: the same for a fetch without a leader epoch, or the broker epoch is stale.
        """
        state = None if self.led is None else self.led.followers.get(broker_id)
        if state is None:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if knows_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        if self._leading.is_stale(broker_id, broker_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return state

    def fetched(
        self,
        broker_id: int,
        end_offset: int,
        *,
        log_start_offset: int = NO_OFFSET,
        broker_epoch: int = -1,
        watch: FetchSessionPartition | None = None,
    ) -> None:
        """A follower fetches from `end_offset` on, so it has all before."""
        led = self.led
        state = None if led is None else led.followers.get(broker_id)
        if led is None or state is None:
            return
        log = self.log
        is_news = end_offset != state.end_offset
        starts_elsewhere = log_start_offset != state.log_start_offset
        state.fetched(
            end_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            leader_end_offset=log.written_end_offset,
            now_ms=self._host.internode_clock.monotonic_ms(),
            watch=watch,
        )
        if broker_id not in led.isr:
            self._ask(led.expanded((self.topic_id, self.index), state, log.high_watermark))
        if is_news:
            self._replicated()
        if starts_elsewhere and led.deletions:
            led.start_moved()

    def is_quiet_for(self, broker_id: int, end_offset: int, watch: FetchSessionPartition) -> bool:
        """Whether a follower at `end_offset` has nothing to learn before the log grows and notifies `watch`.

        False if `watch` is not registered, or if the follower is out of sync: its fetches may expand the ISR.
        """
        led = self.led
        state = None if led is None else led.followers.get(broker_id)
        if state is None or not state.is_in_sync or state.watch is not watch:
            return False
        return end_offset == self.log.written_end_offset

    def check_followers(self) -> None:
        """Remove followers from the ISR that have lagged for replica.lag.time.max.ms."""
        led = self.led
        if led is None:
            return
        now_ms = self._host.internode_clock.monotonic_ms()
        pending = led.shrunk((self.topic_id, self.index), self.log.written_end_offset, now_ms)
        if pending is not None:
            ends = {broker_id: state.end_offset for broker_id, state in led.followers.items()}
            self._leading.tell(
                f"Shrinking ISR of {self.log.name} from {led.isr} to {pending.isr}: log end offset "
                f"{self.log.log_end_offset}, high watermark {self.log.high_watermark}, follower ends {ends}"
            )
        self._ask(pending)
        if self._late:
            self._replicated()
        if led.deletions:
            led.start_moved()

    def _ask(self, pending: PendingIsr | None) -> None:
        """Have the controller change the ISR."""
        if pending is not None:
            self._leading.changes.submit(pending.change, partial(self._isr_answered, pending))

    def _ask_again(self, pending: PendingIsr) -> None:
        if self.led is not None and self.led.pending is pending:
            self._ask(pending)

    def _isr_answered(self, pending: PendingIsr, answer: IsrChangeResult) -> None:
        led = self.led
        if led is None:
            return
        before = led.isr
        if led.answered(pending, answer):
            # Not at once: a controller that is behind would be asked without end.
            self._host.internode_clock.schedule(RETRY_MS, partial(self._ask_again, pending))
            return
        if led.isr != before:
            if pending.joins is None:
                self._leading.isr_shrinks += 1
            else:
                self._leading.isr_expands += 1
            self._leading.tell(
                f"{self.log.name}: the ISR is {led.isr}, in partition epoch {led.partition_epoch}"
            )
        if led.pending is None:
            self._replicated()

    def _written(self, promises: Sequence[PendingAcknowledgement], end_offset: int) -> None:
        """The log is written up to here."""
        if self.role is LEADER:
            if end_offset > self._written_offset:
                self._written_offset = end_offset
            if self.led is not None:
                self.led.grew()
            raised = self._raise_high_watermark()
        else:
            raised = False
        self._keep(promises)
        if raised:
            self._rose()

    def _replicated(self) -> None:
        """More of the log may be replicated than before."""
        if self._raise_high_watermark():
            self._rose()

    def _rose(self) -> None:
        """The high watermark is higher: tell who waits for that."""
        if self._late:
            self._keep_late()
        if self.waiters:
            self.wake()

    def _raise_high_watermark(self) -> bool:
        """Whether it is higher than before."""
        log, led = self.log, self.led
        offset = self._written_offset
        if led is not None:
            offset = led.high_watermark(offset, log.written_end_offset, log.config.min_insync_replicas)
        if offset <= log.high_watermark:
            return False
        log.high_watermark = offset
        if led is not None:
            led.news(wake=self._leading.config.replica_selector_class is not None)
        return True

    def _keep(self, promises: Sequence[PendingAcknowledgement]) -> None:
        """Tell of what is written; a promise that more replicas have to keep waits on."""
        high_watermark = self.log.high_watermark
        for offset, tell, timeout_ms in promises:
            if offset <= high_watermark:
                self._tell(tell, self._outcome(offset))
                continue
            late = DelayedProduce(offset, tell)
            if self._late is None:
                self._late = {}
            self._late[late] = None
            if timeout_ms is not None:
                late.timer = self._host.internode_clock.schedule(
                    max(0, timeout_ms), partial(self._timed_out, late)
                )

    def _keep_late(self) -> None:
        high_watermark = self.log.high_watermark
        waiting = self._late or {}
        for late in [late for late in waiting if late.high_watermark <= high_watermark]:
            if self._late is not waiting:
                return  # who was told has ended the role, of which all others are told
            del waiting[late]
            if late.timer is not None:
                late.timer.cancel()
            self._tell(late.tell, self._outcome(late.high_watermark))

    def _outcome(self, offset: int) -> ApiError | None:
        """What to tell of a promise that is kept up to this high watermark."""
        led = self.led
        if (
            offset != NO_REPLICATION
            and led is not None
            and led.were_too_few(self.log.config.min_insync_replicas)
        ):
            return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return None

    def _timed_out(self, late: DelayedProduce) -> None:
        assert self._late is not None
        del self._late[late]
        self._tell(late.tell, ApiError(ErrorCode.REQUEST_TIMED_OUT))

    def _tell(self, tell: AppendCallback, error: ApiError | None) -> None:
        try:
            tell(error)
        except Exception:
            # Nobody else's acknowledgement may hang on this one.
            self._host.logger("kwire.partition").exception("%s: callback failed", self.log.name)

    # --- waiting

    def wake(self) -> None:
        """Let every long poll on this partition look again."""
        for waiter in list(self.waiters):
            self._call(waiter, waiter.partition_grew)

    def end_waits(self) -> None:
        """Have every long poll on this partition answered with what there is."""
        for waiter in list(self.waiters):
            self._call(waiter, waiter.complete)

    def _call(self, waiter: DelayedFetch, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            # Nobody else's poll may hang on this one.
            self._host.logger("kwire.partition").exception("%s: delayed fetch failed", self.log.name)
            self.waiters.pop(waiter, None)
