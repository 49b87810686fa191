"""A replica of a partition on this broker.

A leader stages the appends of one turn of the event loop in the log, and `commit` writes them at the end of
the turn. A produce request with acks 0 or 1 completes when the batch is written (synced, if `flush.messages`
or `flush.ms` require it). With acks -1, the request completes when the high watermark is above the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.alter_partition_manager import RETRY_MS, IsrChangeResult
from kwire.broker.replication.delayed_fetch import DelayedFetch, call_each
from kwire.broker.replication.delayed_produce import (
    NO_REPLICATION,
    AppendCallback,
    DelayedProduce,
    PendingAcknowledgement,
)
from kwire.broker.replication.follower_state import FetchSessionPartition, FollowerState
from kwire.broker.replication.internal_failure import InternalFailure
from kwire.broker.replication.remote_replicas import LeaderPartitions, PendingIsr, RemoteReplicas
from kwire.broker.replication.roles import LEADER, Role, RoleChange, role_after
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError, failure_in
from kwire.broker.storage.log.log import AppendOrigin, Log, LogAppendInfo
from kwire.broker.storage.log.producer_state import MarkerContext
from kwire.broker.storage.log.validator import CODEC_NAMES
from kwire.host.host import Host
from kwire.wire.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchHeader
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid


class Partition:
    """One replica of a partition, in the role that the metadata assigns to it."""

    __slots__ = (
        "_delayed_produces",
        "_flush_under_way",
        "_flushing",
        "_host",
        "_leader_partitions",
        "_on_offline",
        "_stage",
        "_staged",
        "_unflushed",
        "_when_recoverable",
        "_written_offset",
        "delayed_fetches",
        "index",
        "leader_epoch",
        "log",
        "remote_replicas",
        "role",
        "topic",
        "topic_id",
        "topic_metrics",
    )

    def __init__(
        self,
        log: Log,
        *,
        host: Host,
        stage: Callable[[Partition], None],
        when_recoverable: Callable[[Log, Host, Callable[[], None]], None],
        on_offline: Callable[[Partition, StorageError], None],
        leader_partitions: LeaderPartitions,
    ) -> None:
        """Create an ABSENT partition. `stage` must call `commit` at the end of the turn of the event loop.

        `when_recoverable` calls back when a recovery after a crash would find the log. `on_offline` is called
        after the partition went offline.
        """
        self.log = log
        self.topic = log.topic
        self.topic_id: Uuid = log.topic_id
        self.index = log.partition
        self.role = Role.ABSENT
        self.leader_epoch = NO_LEADER_EPOCH
        self.delayed_fetches: dict[DelayedFetch, None] = {}
        self._host = host
        self._stage = stage
        self._when_recoverable = when_recoverable
        self._on_offline = on_offline
        self._leader_partitions = leader_partitions
        self.topic_metrics = leader_partitions.topic_stats.for_topic(self.topic)
        self.remote_replicas: RemoteReplicas | None = None
        """The other replicas; None on a follower, or if there are no other replicas."""
        self._written_offset = 0
        """The end of the log's written part, or of its synced part if flush.messages or flush.ms apply."""
        # Most partitions have no pending appends, so the lists are allocated on demand.
        self._staged: list[PendingAcknowledgement] | None = None
        self._unflushed: list[PendingAcknowledgement] | None = None
        self._flushing: Sequence[PendingAcknowledgement] = ()
        self._flush_under_way = False
        self._delayed_produces: dict[DelayedProduce, None] | None = None
        """Appends that are written and wait for replication."""

    # --- roles

    def become_leader(self, image: PartitionImage) -> None:
        """Become leader in the epoch of `image`. Raises StorageError if the log cannot be used."""
        role = role_after(self.role, RoleChange.BECOME_LEADER)
        if role is LEADER and image.leader_epoch > self.leader_epoch:
            self.log.begin_leader_epoch(image.leader_epoch)
            self.leader_epoch = image.leader_epoch
        if role is not self.role:
            self.role = role
            # Records from an earlier role of this replica may not be written or synced yet.
            log = self.log
            if log.has_unrecoverable_records:
                self._flush([])
            self._written_offset = log.recovery_point if self._flush_under_way else log.log_end_offset
        if role is LEADER:
            if len(image.replicas) > 1:
                if self.remote_replicas is None:
                    self.remote_replicas = RemoteReplicas(self._leader_partitions)
                    self._leader_partitions.partitions[self] = None
                    self._leader_partitions.leader_added()
                now_ms = self._host.internode_clock.monotonic_ms()
                self.remote_replicas.update(image, self.log.log_end_offset, now_ms)
            elif self.remote_replicas is not None:
                self._drop_remote_replicas()
            self._update_high_watermark()

    def become_follower(self, image: PartitionImage) -> None:
        """Become follower of another broker, or of none if there is no leader.

        Raises StorageError if the log of an ABSENT partition has failed.
        """
        if self.log.failure is not None and self.role is Role.ABSENT:
            raise self.log.failure
        if self.role is LEADER:
            # Staged batches already have offsets and belong to the log until they are truncated.
            self.commit()
        self.leader_epoch = max(self.leader_epoch, image.leader_epoch)
        role = role_after(self.role, RoleChange.BECOME_FOLLOWER)
        self._stop_serving(role, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def remove(self, code: ErrorCode) -> None:
        """Stop serving, as the replica is removed from this broker; pending requests get the error `code`."""
        self._stop_serving(role_after(self.role, RoleChange.REMOVE), code)

    def fail(self, error: StorageError) -> None:
        """Take the partition offline because its log or its log directory has failed."""
        first_time = self.role is not Role.OFFLINE
        self._stop_serving(role_after(self.role, RoleChange.FAIL), ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        if first_time:
            self._on_offline(self, error)

    def _stop_serving(self, role: Role, code: ErrorCode, message: str | None = None) -> None:
        """Change to a role that serves no clients; pending requests get the error `code`."""
        self.role = role
        if self.remote_replicas is not None:
            self._drop_remote_replicas()
        delayed, self._delayed_produces = self._delayed_produces or {}, None
        pending_acks = [*self._flushing, *(self._unflushed or ()), *(self._staged or ())]
        self._flushing, self._unflushed, self._staged = (), None, None
        if delayed or pending_acks:
            error = ApiError(code, message)
            for one in delayed:
                if one.timer is not None:
                    one.timer.cancel()
                self._call_back(one.callback, error)
            for _, callback, _ in pending_acks:
                self._call_back(callback, error)
        self.wake()

    def _drop_remote_replicas(self) -> None:
        remote, self.remote_replicas = self.remote_replicas, None
        del self._leader_partitions.partitions[self]
        assert remote is not None
        remote.notify_sessions(wake=True)
        remote.notify_low_watermark()

    def not_leader_error(self) -> ApiError:
        """Return the error for client requests while this broker is not the leader."""
        is_offline = self.role is Role.OFFLINE
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise FENCED_LEADER_EPOCH for an old epoch, UNKNOWN_LEADER_EPOCH for a future one. KIP-320."""
        if leader_epoch == NO_LEADER_EPOCH or leader_epoch == self.leader_epoch:
            return
        if leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def is_high_watermark_stale(self) -> bool:
        """Whether the high watermark is below the log end at the start of this leader epoch. KIP-207."""
        remote = self.remote_replicas
        return remote is not None and remote.epoch_start_offset > self.log.high_watermark

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the leader and all live followers. KIP-107."""
        start_offset, remote = self.log.log_start_offset, self.remote_replicas
        return start_offset if remote is None else remote.low_watermark(start_offset)

    def log_start_offset_moved(self) -> None:
        """Let the next Fetch response to each follower carry the new log start offset."""
        if self.remote_replicas is not None:
            self.remote_replicas.notify_sessions(wake=False)

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
        """Validate and stage a batch; call `on_written` when it is written or `on_replicated` when committed.

        The caller passes one of the two callbacks. `on_replicated` gets REQUEST_TIMED_OUT after `timeout_ms`;
        the records stay in the log. The log keeps `records`, which must be writable. With `on_replicated` and
        `needs_isr`, the batch is rejected if the ISR is smaller than min.insync.replicas. Raises ApiError if
        the batch is rejected; no callback is called then.
        """
        if self.role is not LEADER:
            raise self.not_leader_error()
        log = self.log
        remote = self.remote_replicas
        if (
            on_replicated is not None
            and remote is not None
            and needs_isr
            and remote.is_under_min_isr(log.config.min_insync_replicas)
        ):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        topic_metrics = self.topic_metrics
        topic_metrics.appends += 1
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
            topic_metrics.record_failed_append(error, len(records))
            raise
        if not appended.is_duplicate:
            topic_metrics.messages_in += appended.last_offset - appended.first_offset + 1
            topic_metrics.bytes_in += len(records)
            codec = CODEC_NAMES.get(log.config.compression_type)
            if codec is not None and header is not None and header.codec != codec:
                topic_metrics.produce_conversions += header.records_count
        pending_ack: PendingAcknowledgement
        if on_replicated is not None:
            pending_ack = (appended.last_offset + 1, on_replicated, timeout_ms)
        else:
            assert on_written is not None
            pending_ack = (NO_REPLICATION, on_written, None)
        if self._staged is not None:
            self._staged.append(pending_ack)
        elif not appended.is_duplicate:
            self._stage(self)
            self._staged = [pending_ack]
        elif self._flush_under_way:
            self._flush([pending_ack])
        else:
            self._acknowledge([pending_ack])
        return appended

    @property
    def delayed_produce_count(self) -> int:
        return len(self._delayed_produces or ())

    def when_committed(self, callback: AppendCallback) -> None:
        """Call back when all current records are committed, or with an error when the leader resigns.

        Raises ApiError if this broker is not the leader.
        """
        if self.role is not LEADER:
            raise self.not_leader_error()
        self._acknowledge([(self.log.log_end_offset, callback, None)])

    def commit(self) -> None:
        """Write the staged batches, then acknowledge them. If the write fails, go offline; never raise."""
        if self.role is not LEADER:
            return  # the change of role has already completed the requests
        log = self.log
        try:
            log.commit()
            must_flush = self._flush_under_way or log.needs_flush(self._host.monotonic_ms())
        except ResourceShortage:
            self._host.schedule(SHORTAGE_RETRY_MS, partial(self._stage, self))
            return
        except StorageError as error:
            self.fail(error)
            return
        except Exception as error:
            # This is a bug of kwire. The log may be inconsistent, so it is taken offline.
            self._host.logger("kwire.partition").exception(
                "Cannot write the log of %s because of an internal error: the replica goes offline", log.name
            )
            failure = InternalFailure(f"an unexpected failure: {error}")
            log.fail(failure)
            self.fail(failure)
            return
        pending_acks, self._staged = self._staged or [], None
        if must_flush:
            self._flush(pending_acks)
            return
        self._on_written(pending_acks, log.log_end_offset)

    def sync(self, on_synced: AppendCallback) -> None:
        """Sync all records appended so far to disk, then call back."""
        self._flush([(NO_REPLICATION, on_synced, None)])

    def _flush(self, pending_acks: list[PendingAcknowledgement]) -> None:
        """Acknowledge the appends after they are synced and a recovery after a crash would find the log."""
        if self._unflushed is None:
            self._unflushed = pending_acks
        else:
            self._unflushed += pending_acks
        if not self._flush_under_way:
            self._begin_flush()

    def _begin_flush(self) -> None:
        # Group commit: one sync covers all appends that arrived during the previous sync.
        log = self.log
        if not log.is_recoverable:
            self._flush_under_way = True
            self._when_recoverable(log, self._host, self._log_recoverable)
            return
        end_offset = log.log_end_offset
        try:
            ticket = log.begin_flush()
        except ResourceShortage:
            self._flush_later()
            return
        except StorageError as error:
            self.fail(error)
            return
        self._flushing, self._unflushed = self._unflushed or (), None
        self._flush_under_way = True

        def done(result: object) -> None:
            self._flush_under_way = False
            if self.log is not log:
                self._flush_again()
            elif isinstance(error := failure_in(result), ResourceShortage):
                self._flush_later()
            elif error is not None:
                log.fail(error)
                self.fail(error)
            else:
                ticket.finish()
                pending_acks, self._flushing = self._flushing, ()
                self._on_written(pending_acks, min(end_offset, self.log.log_end_offset))
                if self._unflushed is not None and self.role is not Role.OFFLINE:
                    self._begin_flush()

        self._host.run_in_worker(ticket.work, done)

    def _flush_later(self) -> None:
        """Sync the log after a delay, because the process has no free descriptor."""
        self._flush_under_way = True
        self._host.schedule(SHORTAGE_RETRY_MS, self._flush_again)

    def _flush_again(self) -> None:
        """Sync the log after a lack of descriptors, or after its copy in another directory replaced it."""
        self._flush_under_way = False
        if self.role is LEADER or self.role is Role.FOLLOWER:
            self._unflushed = [*self._flushing, *(self._unflushed or ())]
            self._flushing = ()
            self._begin_flush()

    def _log_recoverable(self) -> None:
        """Continue a flush that waited until the log was recoverable, was replaced or has failed."""
        self._flush_under_way = False
        log = self.log
        if log.failure is None and (
            log.awaits_sync or log.has_unflushed_segments or log.needs_flush(self._host.monotonic_ms())
        ):
            self._begin_flush()
            return
        pending_acks, self._unflushed = self._unflushed or (), None
        self._on_written(pending_acks, log.written_end_offset)

    # --- followers and the ISR

    def follower_state(self, broker_id: int, broker_epoch: int, *, has_leader_epoch: bool) -> FollowerState:
        """Return the state of the follower with this id.

        `has_leader_epoch`: the request has a leader epoch. Raises ApiError NOT_LEADER_OR_FOLLOWER if the
        broker epoch is stale. If the leader does not know the broker as a replica (yet), raises
        UNKNOWN_LEADER_EPOCH with `has_leader_epoch`, otherwise NOT_LEADER_OR_FOLLOWER.
        """
        state = None if self.remote_replicas is None else self.remote_replicas.followers.get(broker_id)
        if state is None:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if has_leader_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        if self._leader_partitions.has_stale_epoch(broker_id, broker_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return state

    def record_follower_fetch(
        self,
        broker_id: int,
        end_offset: int,
        *,
        log_start_offset: int = NO_OFFSET,
        broker_epoch: int = -1,
        session_partition: FetchSessionPartition | None = None,
    ) -> None:
        """Record that a follower fetches from `end_offset` and so has all records before that offset.

        `session_partition`, the partition in the follower's fetch session, is notified of changes. None: no
        session.
        """
        remote = self.remote_replicas
        state = None if remote is None else remote.followers.get(broker_id)
        if remote is None or state is None:
            return
        log = self.log
        is_news = end_offset != state.end_offset
        starts_elsewhere = log_start_offset != state.log_start_offset
        state.record_fetch(
            end_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            leader_end_offset=log.written_end_offset,
            now_ms=self._host.internode_clock.monotonic_ms(),
            session_partition=session_partition,
        )
        if broker_id not in remote.isr:
            key = (self.topic_id, self.index)
            self._alter_partition(remote.prepare_expand(key, state, log.high_watermark))
        if is_news:
            self._update_high_watermark()
        if starts_elsewhere and remote.low_watermark_listeners:
            remote.notify_low_watermark()

    def is_quiet_for(self, broker_id: int, end_offset: int, session_partition: FetchSessionPartition) -> bool:
        """Whether the leader may skip this follower, which is at `end_offset`, until the log grows.

        False if `session_partition` is not the one that `record_follower_fetch` stored, because then no
        append would wake the follower. False also if the follower is out of sync, because each of its fetches
        may expand the ISR.
        """
        remote = self.remote_replicas
        state = None if remote is None else remote.followers.get(broker_id)
        if state is None or not state.is_in_sync or state.session_partition is not session_partition:
            return False
        return end_offset == self.log.written_end_offset

    def maybe_shrink_isr(self) -> None:
        """Propose an ISR without the followers that have lagged for replica.lag.time.max.ms."""
        remote = self.remote_replicas
        if remote is None:
            return
        now_ms = self._host.internode_clock.monotonic_ms()
        pending = remote.prepare_shrink((self.topic_id, self.index), self.log.written_end_offset, now_ms)
        if pending is not None:
            self._leader_partitions.log_isr_shrink(self.log, remote, pending)
        self._alter_partition(pending)
        if self._delayed_produces:
            self._update_high_watermark()
        if remote.low_watermark_listeners:
            remote.notify_low_watermark()

    def _alter_partition(self, pending: PendingIsr | None) -> None:
        if pending is not None:
            isr_changed = partial(self._isr_changed, pending)
            self._leader_partitions.alter_partition.submit(pending.change, isr_changed)

    def _retry_alter_partition(self, pending: PendingIsr) -> None:
        if self.remote_replicas is not None and self.remote_replicas.pending is pending:
            self._alter_partition(pending)

    def _isr_changed(self, pending: PendingIsr, result: IsrChangeResult) -> None:
        remote = self.remote_replicas
        if remote is None:
            return
        before = remote.isr
        if remote.handle_alter_partition(pending, result):
            # The pause avoids flooding a slow controller with requests.
            self._host.internode_clock.schedule(RETRY_MS, partial(self._retry_alter_partition, pending))
            return
        if remote.isr != before:
            self._leader_partitions.record_isr_change(self.log, remote, pending)
        if remote.pending is None:
            self._update_high_watermark()

    # --- high watermark and acknowledgements

    def _on_written(self, pending_acks: Sequence[PendingAcknowledgement], end_offset: int) -> None:
        if self.role is LEADER:
            if end_offset > self._written_offset:
                self._written_offset = end_offset
            if self.remote_replicas is not None:
                self.remote_replicas.log_grew()
            raised = self._raise_high_watermark()
        else:
            raised = False
        self._acknowledge(pending_acks)
        if raised:
            self._high_watermark_raised()

    def _update_high_watermark(self) -> None:
        """Raise the high watermark if the replicas allow it, and complete delayed requests."""
        if self._raise_high_watermark():
            self._high_watermark_raised()

    def _high_watermark_raised(self) -> None:
        if self._delayed_produces:
            self._complete_delayed_produces()
        if self.delayed_fetches:
            self.wake()

    def _raise_high_watermark(self) -> bool:
        """Raise the high watermark as far as the replicas allow; return whether it has risen."""
        log, remote = self.log, self.remote_replicas
        offset = self._written_offset
        if remote is not None:
            offset = remote.high_watermark(offset, log.written_end_offset, log.config.min_insync_replicas)
        if offset <= log.high_watermark:
            return False
        log.high_watermark = offset
        if remote is not None:
            remote.notify_sessions(wake=self._leader_partitions.config.replica_selector_class is not None)
        return True

    def _acknowledge(self, pending_acks: Sequence[PendingAcknowledgement]) -> None:
        """Complete written appends; appends that wait for replication go to purgatory."""
        high_watermark = self.log.high_watermark
        for offset, callback, timeout_ms in pending_acks:
            if offset <= high_watermark:
                self._call_back(callback, self._result(offset))
                continue
            delayed = DelayedProduce(offset, callback)
            if self._delayed_produces is None:
                self._delayed_produces = {}
            self._delayed_produces[delayed] = None
            if timeout_ms is not None:
                expire = partial(self._expire, delayed)
                delayed.timer = self._host.internode_clock.schedule(max(0, timeout_ms), expire)

    def _complete_delayed_produces(self) -> None:
        high_watermark = self.log.high_watermark
        waiting = self._delayed_produces or {}
        for delayed in [one for one in waiting if one.required_offset <= high_watermark]:
            if self._delayed_produces is not waiting:
                return  # a callback has changed the role, and the change completed the remaining appends
            del waiting[delayed]
            if delayed.timer is not None:
                delayed.timer.cancel()
            self._call_back(delayed.callback, self._result(delayed.required_offset))

    def _result(self, offset: int) -> ApiError | None:
        """Return the error for an append that waited for the high watermark `offset`, or None for success."""
        remote, min_isr = self.remote_replicas, self.log.config.min_insync_replicas
        if offset != NO_REPLICATION and remote is not None and remote.is_maximal_isr_under_min(min_isr):
            return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return None

    def _expire(self, delayed: DelayedProduce) -> None:
        assert self._delayed_produces is not None
        del self._delayed_produces[delayed]
        self._call_back(delayed.callback, ApiError(ErrorCode.REQUEST_TIMED_OUT))

    def _call_back(self, callback: AppendCallback, error: ApiError | None) -> None:
        try:
            callback(error)
        except Exception:
            # An exception in one callback must not keep the other callbacks from being called.
            self._host.logger("kwire.partition").exception(
                "Cannot report the result of an append to %s: the producer may get no response", self.log.name
            )

    # --- delayed fetches

    def wake(self) -> None:
        """Check every delayed fetch: some may be able to complete now."""
        call_each(self.delayed_fetches, lambda each: each.try_complete(), self._host, self.log.name)

    def complete_delayed_fetches(self) -> None:
        """Complete every delayed fetch with the records that are available now."""
        call_each(self.delayed_fetches, lambda each: each.complete(), self._host, self.log.name)
