"""The runtime of a coordinator: a shard for each partition of the coordinator's topic that this broker leads.

A shard loads its partition's log into a state machine, runs commands one at a time, and appends their
records. A command completes when its records and all earlier records are committed. This includes the loaded
records, since a new leader does not know yet which part of its log is committed. A shard whose append was
lost has state that its log lacks, so the shard is discarded. It is loaded again when this broker becomes
leader of the partition again.

If the coordinator type sets `batches_commands`, the commands of one turn of the event loop share a record
batch, which is appended at the end of the turn. Apache Kafka does the same with
group.coordinator.append.linger.ms=-1: no command waits for another command that has not arrived. Records are
replayed when they are added to the batch, so the shard first checks whether the partition accepts an append
of this size. A command gets its own batches if its records are large, many, or part of a transaction. If the
log still refuses a batch, the shard is discarded and, when it has no pending append, loaded again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from kwire.coordinator.partitioner import partition_of
from kwire.coordinator.ports import StatePorts
from kwire.coordinator.state_machine import (
    EMPTY_RESULT,
    Committed,
    CoordinatorRecord,
    CoordinatorResult,
    CoordinatorStateMachine,
    DecodedRecord,
    TimerHandle,
)
from kwire.coordinator.transactional_records import TransactionalRecords
from kwire.host.host import Host, InternodeTime, Timer
from kwire.host.loggers import NodeLogger
from kwire.host.windows import Windows
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import encode_record

LOAD_STEP_BYTES = 1 << 20
"""The number of bytes of a log to replay in one turn of the event loop."""

RELOAD_DELAY_MS = 1000
"""The delay before a shard is loaded again after an internal error, which may recur."""

MAX_PENDING_RESULTS = 10_000
"""The number of a shard's commands that may wait for a commit. Further client requests are refused."""

RECORD_OVERHEAD_BYTES = 32
"""An upper bound of a record's size without key and value: lengths, deltas and attributes."""

MAX_TOMBSTONES_PER_BATCH = 1000
"""Tombstones need not be atomic, so a result with many of them is split into several batches."""

M = TypeVar("M", bound=CoordinatorStateMachine)


class CoordinatorType(NamedTuple, Generic[M]):
    """The parameters in which the runtimes of group and transaction coordinators differ."""

    topic: str
    make_state_machine: Callable[[CoordinatorShard[M]], M]
    commit_timeout_ms: int
    """The time after which a command whose records are not committed fails with REQUEST_TIMED_OUT."""
    batches_commands: bool = False
    """Whether commands of one turn of the event loop share a record batch."""
    transactional_key: Callable[[DecodedRecord], Hashable | None] = lambda record: None
    """Returns a record's key. A later record with the same key supersedes a record of an open transaction.

    Returns None for records that no other record supersedes.
    """


_NO_DEADLINE = InternodeTime(0)
EncodedRecord = tuple[bytes, bytes | None]
"""A record's serialized key and value."""


class _PendingResult:
    """A command's result that waits until its appends and those of earlier commands are committed."""

    __slots__ = ("appends", "committed", "deadline_ms", "last_offset", "written")

    def __init__(
        self,
        committed: Committed | None,
        deadline_ms: InternodeTime = _NO_DEADLINE,
        written: Callable[[int], None] | None = None,
    ) -> None:
        self.committed = committed
        self.written = written
        self.last_offset = -1
        self.appends = 0
        self.deadline_ms = deadline_ms
        """The time, in ms of the internode clock, at which the command times out."""

    def complete(self, error: ApiError | None) -> None:
        """Call `committed`, unless this result is complete already."""
        committed, self.committed = self.committed, None
        if committed is not None:
            committed(error)


class CoordinatorShard(Generic[M]):
    """A state machine and the appends of its partition, while this broker is the leader."""

    def __init__(
        self,
        index: int,
        leader_epoch: int,
        coordinator_type: CoordinatorType[M],
        host: Host,
        ports: StatePorts,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        """`reload` is called after a refused batch or an internal error has discarded the shard.

        The call waits until none of the shard's appends is pending.
        """
        self._type = coordinator_type
        self._host = host
        self.index = index
        self.leader_epoch = leader_epoch
        self.is_loading = True
        self.is_closed = False
        self.machine = coordinator_type.make_state_machine(self)
        self.transactional = TransactionalRecords(
            self.machine.decode_batch,
            lambda record: self.machine.transactional_record_written(record[0]),
            coordinator_type.transactional_key,
            lambda record: record[1] is None,
        )
        self._ports = ports
        self._pending_results: deque[_PendingResult] = deque()
        self._timeout_timer: Timer | None = None
        self.is_load_committed = False
        """Whether all loaded records are committed, so that reads need not wait."""
        self._batch_encoded: list[EncodedRecord] = []
        self._batch_records: list[CoordinatorRecord] = []
        self._batch_results: list[_PendingResult] = []
        self._batch_bytes = 0
        self._batch_offset = 0
        """The offset that the current batch will have in the log."""
        self._pending_appends = 0
        """The number of appends that are neither committed nor lost."""
        self._reload = reload
        self._needs_reload = False
        self._reload_delay_ms = 0
        self._last_append_error: ErrorCode | None = None
        """The error of the last append if that append was refused. A repeated error is logged once."""

    # --- CoordinatorContext

    def now_ms(self) -> int:
        return self._host.now_ms()

    def monotonic_ms(self) -> int:
        return self._host.monotonic_ms()

    def new_uuid(self) -> str:
        import uuid  # 3 ms at startup if it were imported at the top

        return str(uuid.UUID(int=self._host.random("member ids").getrandbits(128), version=4))

    def logger(self, name: str) -> NodeLogger:
        return self._host.logger(name)

    def schedule(self, delay_ms: int, command: Callable[[], CoordinatorResult]) -> TimerHandle:
        def due() -> None:
            if not self.is_closed and (result := command()) is not EMPTY_RESULT:
                self.execute(result)

        return self._host.schedule(delay_ms, due)

    # --- commands

    @property
    def is_overloaded(self) -> bool:
        """Whether so many commands wait for a commit that further client requests are refused."""
        return len(self._pending_results) >= MAX_PENDING_RESULTS

    @property
    def all_committed(self) -> bool:
        """Whether the shard is open and has no pending command, so that a response need not wait."""
        return not self._pending_results and not self.is_closed

    def execute(self, result: CoordinatorResult) -> None:
        """Append and replay a command's records.

        `result.committed` is called when these and all earlier records are committed, or with an error.
        """
        if self.is_closed:
            # A callback that `close` called may have executed another command.
            result.committed(ApiError(ErrorCode.NOT_COORDINATOR))
            return
        records = result.records
        if not records and not self._pending_results:
            result.committed(None)
            return
        deadline_ms = self._host.internode_clock.monotonic_ms() + self._type.commit_timeout_ms
        pending = _PendingResult(result.committed, deadline_ms, result.written)
        self._pending_results.append(pending)
        try:
            if not (self._type.batches_commands and records and self._add_to_batch(result, pending)):
                for part in _batches(records):
                    self.flush_batch()
                    if self.is_closed:
                        return
                    self._append(part, pending, result.producer)
                if result.written is not None and records:
                    result.written(pending.last_offset)
        except ApiError as error:
            if error.code is not self._last_append_error:
                self._last_append_error = error.code
                self.logger("kwire.coordinator").warning(
                    "Append to %s-%d was rejected, so requests to its coordinator fail: %s",
                    *(self._type.topic, self.index, error.code.name),
                )
            if not pending.appends and not self.is_closed:  # a failed disk closes the shard
                self._pending_results.remove(pending)
            pending.complete(error)
            return
        except Exception:
            self._append_failed((pending,))
            return
        if self._timeout_timer is None and not self.is_closed:
            self._timeout_timer = self._host.internode_clock.schedule(
                self._type.commit_timeout_ms, self._time_out_results
            )

    def _add_to_batch(self, result: CoordinatorResult, pending: _PendingResult) -> bool:
        """Add the records to the current batch of this turn of the event loop, and replay them.

        Returns False, and does nothing, if the records need their own batches. Raises ApiError if the log
        would refuse the append.
        """
        records = result.records
        if result.producer is not None or len(records) > MAX_TOMBSTONES_PER_BATCH:
            return False
        max_bytes = self._ports.max_batch_bytes(self.index) - batch.HEADER_BYTES
        stored = [_stored_bytes(record) for record in records]
        size_bytes = len(stored) * RECORD_OVERHEAD_BYTES
        for key, value in stored:
            size_bytes += len(key) + (0 if value is None else len(value))
        if size_bytes > max_bytes:
            return False
        if self._batch_bytes + size_bytes > max_bytes:
            self.flush_batch()
            if self.is_closed:
                return True
        if not self._batch_encoded:
            self._batch_offset = self._ports.log_end_offset(self.index)
            self._host.call_soon(self.flush_batch)
        offset = self._batch_offset + len(self._batch_encoded)
        self._batch_encoded += stored
        self._batch_records += records
        self._batch_bytes += size_bytes
        self._batch_results.append(pending)
        pending.appends += 1
        pending.last_offset = offset + len(records) - 1
        self._replay(records, offset)
        return True

    def flush_batch(self) -> None:
        """Append the current batch of this turn of the event loop. If that fails, the shard is discarded."""
        if self.is_closed or not self._batch_encoded:
            return
        stored, self._batch_encoded = self._batch_encoded, []
        records, self._batch_records = self._batch_records, []
        results, self._batch_results = self._batch_results, []
        self._batch_bytes = 0
        try:
            if self._write(stored, results, records) != self._batch_offset:
                # A client has produced to the partition in this turn, so the replayed offsets were wrong.
                raise ApiError(ErrorCode.NOT_COORDINATOR, "another producer has appended to the partition")
            for pending in results:
                if pending.written is not None:
                    pending.written(pending.last_offset)
        except ApiError as error:
            self._needs_reload = True
            self._append_lost(results, error)
        except Exception:
            self._append_failed(results)

    def _append_failed(self, results: Sequence[_PendingResult]) -> None:
        """Discard the shard after an internal error, since its state may not match its log."""
        self.logger("kwire.coordinator").exception(
            "Append to %s-%d failed; reloading its coordinator state", self._type.topic, self.index
        )
        self._needs_reload = True
        self._reload_delay_ms = RELOAD_DELAY_MS
        self._append_lost(results, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _append(
        self, records: Sequence[CoordinatorRecord], pending: _PendingResult, producer: tuple[int, int] | None
    ) -> None:
        """Append the records as one batch and replay them. Records of a transaction are held back instead.

        Raises ApiError if the log refuses the batch.
        """
        replayed = records if producer is None else ()
        stored = [_stored_bytes(record) for record in records]
        first_offset = self._write(stored, (pending,), replayed, producer)
        pending.appends += 1
        pending.last_offset = first_offset + len(records) - 1
        if producer is None:
            self._replay(records, first_offset)
            return
        held = [(record.key, record.value, offset) for offset, record in enumerate(records, first_offset)]
        self.transactional.hold(producer[0], held)

    def _write(
        self,
        stored: Sequence[EncodedRecord],
        results: Sequence[_PendingResult],
        replayed: Sequence[CoordinatorRecord],
        producer: tuple[int, int] | None = None,
    ) -> int:
        """Append the records as one batch, and return their first offset."""
        now_ms = self._host.now_ms()
        new_records: list[batch.NewRecord] = [(now_ms, key, value, ()) for key, value in stored]
        if producer is None:
            data = batch.build(new_records)
        else:
            data = batch.build(
                new_records, producer_id=producer[0], producer_epoch=producer[1], transactional=True
            )
        first_offset = self._ports.append(
            self.index, data, lambda error: self._committed(results, error, replayed)
        )
        self._pending_appends += 1
        return first_offset

    def _replay(self, records: Sequence[CoordinatorRecord], first_offset: int) -> None:
        for offset, record in enumerate(records, first_offset):
            self.transactional.supersede_held((record.key, record.value, offset))
            if not record.applied:
                self.machine.record_pending(record.key)
                self.machine.replay(record.key, record.value, offset)

    def delete_records_before(self, offset: int) -> None:
        """Delete the committed records below `offset`, which the state does not need. Raises ApiError."""
        self._ports.delete_records_before(self.index, offset)

    def on_transaction_completed(self, producer_id: int, *, commit: bool) -> None:
        """Apply or drop the records of a transaction whose marker is in this partition's log."""
        for record in self.transactional.end_transaction(producer_id, commit=commit):
            self.machine.replay_transactional(*record)

    def _committed(
        self,
        results: Sequence[_PendingResult],
        error: ApiError | None,
        replayed: Sequence[CoordinatorRecord] = (),
    ) -> None:
        self._pending_appends -= 1
        if self.is_closed:
            self._reload_if_needed()
            return
        if error is not None and error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            self._append_lost(results, error)
            return
        self._last_append_error = None
        self.is_load_committed = True  # the loaded records precede every append
        for record in replayed:
            if not record.applied:
                self.machine.record_committed(record.key)
        for pending in results:
            pending.appends -= 1
            if error is not None:
                # The records are committed, but the ISR is below min.insync.replicas: a timeout for clients.
                pending.complete(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        queue = self._pending_results
        while queue and not queue[0].appends:
            queue.popleft().complete(None)
            if self.is_closed:
                return

    def _append_lost(self, results: Sequence[_PendingResult], error: ApiError) -> None:
        """Discard the shard, since its state includes records that will never be in its log."""
        self.logger("kwire.coordinator").error(
            "Append to %s-%d was lost; unloading the coordinator: %s",
            *(self._type.topic, self.index, error),
        )
        for pending in results:
            pending.complete(error)
        self.close(ErrorCode.NOT_COORDINATOR)
        self._reload_if_needed()

    def _reload_if_needed(self) -> None:
        # Do not reload while an append is pending: its records may not be readable yet and would be missed.
        if self._needs_reload and not self._pending_appends:
            self._needs_reload = False
            if self._reload_delay_ms:
                self._host.internode_clock.schedule(self._reload_delay_ms, self._reload)
            else:
                self._host.call_soon(self._reload)

    def _time_out_results(self) -> None:
        """Fail the commands that have timed out. One timer serves all commands."""
        self._timeout_timer = None
        now_ms = self._host.internode_clock.monotonic_ms()
        for pending in list(self._pending_results):
            if pending.committed is None:
                continue
            if pending.deadline_ms > now_ms:
                if not self.is_closed:
                    self._timeout_timer = self._host.internode_clock.schedule(
                        pending.deadline_ms - now_ms, self._time_out_results
                    )
                return
            pending.complete(ApiError(ErrorCode.REQUEST_TIMED_OUT))

    # --- loading and closing

    def finish_loading(self) -> None:
        """Accept commands. Their responses wait until the loaded records are committed.

        Raises ApiError if this broker does not lead the partition any more.
        """
        pending = _PendingResult(None)
        pending.appends = self._pending_appends = 1
        self._pending_results.append(pending)
        self._ports.when_committed(self.index, lambda error: self._committed((pending,), error))
        self.is_loading = False
        if not self.is_closed:
            self.machine.on_loaded()

    def close(self, code: ErrorCode) -> None:
        """Unload the state machine, and fail all pending commands with `code`."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        self._batch_encoded = []
        self._batch_records = []
        self._batch_results = []
        results, self._pending_results = self._pending_results, deque()
        for pending in results:
            pending.complete(ApiError(code))
        self.machine.on_unloaded(code)


class CoordinatorRuntime(Generic[M]):
    """A coordinator of this broker: its shards by partition. A group id or transactional id hashes to one."""

    def __init__(self, coordinator_type: CoordinatorType[M], host: Host, ports: StatePorts) -> None:
        self._type = coordinator_type
        self._host = host
        self._ports = ports
        self.load_times_ms = Windows()
        """The durations of recent loads of a partition."""
        self._shards: dict[int, CoordinatorShard[M]] = {}
        self._stopped = False
        self._timers: dict[Callable[[], None], Timer] = {}

    def run_every(self, interval_ms: int, work: Callable[[], None]) -> None:
        """Run `work` periodically until the shutdown."""

        def due() -> None:
            if not self._stopped:
                self.run_every(interval_ms, work)
                work()

        self._timers[work] = self._host.schedule_check(interval_ms, due)

    def find_coordinator(self, name: str) -> int:
        """Return the broker id of the coordinator of a group id or transactional id.

        Raises ApiError COORDINATOR_NOT_AVAILABLE if there is none. Requests the creation of a missing topic.
        """
        index = self.partition_for(name)
        if index is None:
            self._ports.create_topic()
        leader = None if index is None else self._ports.leader(index)
        if leader is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return leader

    def partition_for(self, name: str) -> int | None:
        """Return the partition for a group id or transactional id, or None if the topic does not exist."""
        count = self._ports.partition_count()
        return None if count is None else partition_of(name, count)

    def shard_for(self, name: str) -> CoordinatorShard[M]:
        """Return the loaded shard for a group id or transactional id.

        Raises ApiError: NOT_COORDINATOR if this broker has no such shard; COORDINATOR_LOAD_IN_PROGRESS if the
        shard is loading or overloaded.
        """
        index = self.partition_for(name)
        shard = None if index is None else self._shards.get(index)
        if shard is None or shard.is_closed:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if shard.is_loading or shard.is_overloaded:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    @property
    def is_loading(self) -> bool:
        return any(shard.is_loading and not shard.is_closed for shard in self._shards.values())

    def partition_states(self) -> dict[str, int]:
        """Return the number of partitions by state. A partition that cannot be loaded stays in `failed`."""
        shards = self._shards.values()
        failed = sum(shard.is_closed for shard in shards)
        loading = sum(shard.is_loading and not shard.is_closed for shard in shards)
        return {"loading": loading, "active": len(shards) - loading - failed, "failed": failed}

    def active_shards(self) -> list[CoordinatorShard[M]]:
        """Return the loaded shards."""
        return [shard for shard in self._shards.values() if not shard.is_loading and not shard.is_closed]

    def elected(self, index: int, leader_epoch: int) -> None:
        """Load a partition, unless its shard is loading or loaded already.

        A failure is logged, and the partition stays unloaded until the next call.
        """
        known = self._shards.get(index)
        if known is not None and not known.is_closed:
            known.leader_epoch = max(known.leader_epoch, leader_epoch)
            return
        shard = CoordinatorShard(
            index, leader_epoch, self._type, self._host, self._ports, lambda: self._reload(shard)
        )
        self._shards[index] = shard
        self._load(shard, self._ports.stored_batches(index), self._host.monotonic_ms())

    def _reload(self, shard: CoordinatorShard[M]) -> None:
        """Load a discarded shard again, unless this broker has resigned or was elected again meanwhile."""
        if self._shards.get(shard.index) is shard:
            self.elected(shard.index, shard.leader_epoch)

    def resigned(self, index: int, leader_epoch: int) -> None:
        """Unload a partition that this broker led in this epoch, unless it was elected again later."""
        shard = self._shards.get(index)
        if shard is not None and shard.leader_epoch <= leader_epoch:
            del self._shards[index]
            shard.close(ErrorCode.NOT_COORDINATOR)

    def flush_batch(self, index: int) -> None:
        """Append the current batch of a partition, before a transaction marker is appended."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.flush_batch()

    def on_transaction_completed(self, index: int, producer_id: int, *, commit: bool) -> None:
        """Handle a transaction marker in a partition's log. A loading shard reads the marker from the log."""
        shard = self._shards.get(index)
        if shard is not None and not shard.is_loading and not shard.is_closed:
            shard.on_transaction_completed(producer_id, commit=commit)

    def shutdown(self) -> None:
        """Stop all timers, and close all shards. Waiting clients get NOT_COORDINATOR."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.close(ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: CoordinatorShard[M], batches: Iterator[memoryview], began_ms: int) -> None:
        """Replay the next part of a log, and continue in a later turn of the event loop."""
        if shard.is_closed:
            return
        size_bytes = 0
        try:
            for data in batches:
                for record in shard.transactional.committed_by(data):
                    shard.machine.replay(*record)
                size_bytes += len(data)
                if size_bytes >= LOAD_STEP_BYTES:
                    self._host.call_soon(lambda: self._load(shard, batches, began_ms))
                    return
            shard.finish_loading()
            now_ms = self._host.monotonic_ms()
            self.load_times_ms.record(now_ms - began_ms, now_ms)
        except Exception as error:
            is_known = isinstance(error, ApiError | WireError | batch.CorruptBatch)
            self._host.logger("kwire.coordinator").error(
                "Cannot load %s-%d, so its coordinator is not available: %s. Check the log with 'kwire dump'",
                *(self._type.topic, shard.index, error),
                exc_info=not is_known,
            )
            shard.close(ErrorCode.NOT_COORDINATOR)


def _stored_bytes(record: CoordinatorRecord) -> EncodedRecord:
    value = record.value
    return encode_record(record.key, 0), None if value is None else encode_record(value, record.value_version)


def _batches(records: Sequence[CoordinatorRecord]) -> list[Sequence[CoordinatorRecord]]:
    has_values = any(record.value is not None for record in records)
    size = len(records) if has_values else MAX_TOMBSTONES_PER_BATCH
    return [records[at : at + size] for at in range(0, len(records), size)]
