"""Runs a coordinator's machines: one shard for each partition of its topic that this broker leads.

A shard is loaded from its log, runs commands one at a time, appends their records, and tells whoever waits
once everything appended until then is committed, what was loaded included: who has just been elected does not
know how much of its log is. A shard whose append is lost knows more than its log does, so it is discarded; it
comes back, loaded anew, when its partition does.

Where the kind of coordinator `batches_commands`, commands of one turn of the loop share a batch, which is
appended when the turn ends (Apache Kafka's group.coordinator.append.linger.ms=-1 does the same: no command
waits for another that has not arrived). Their records are replayed when they are gathered, so what would
refuse the batch is asked about before: how large it may be, and whether the partition takes any. A command
whose records are large, many or part of a transaction has batches of its own, after what was gathered. Should
gathered records be refused all the same, the shard is discarded as if they were lost, and loaded anew as soon
as nothing of it is under way: its partition may be well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from kwire.coordinator.ports import StatePorts
from kwire.coordinator.state_machine import Committed, CoordinatorRecord, CoordinatorResult, TimerHandle
from kwire.coordinator.transactional_records import TransactionalRecords
from kwire.host.host import Host, Timer
from kwire.host.loggers import NodeLogger
from kwire.wire import batch
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.java_strings import string_hash
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.registry import encode_record
from kwire.wire.schema import Message

LOAD_STEP_BYTES = 1 << 20
"""How much of a log is replayed before the loop gets to do something else."""

RELOAD_DELAY_MS = 1000
"""How long a shard that a fault of ours has ended stays away: the fault may come again."""

PARTITION_CACHE_SIZE = 20_000
"""Of how many groups and transactional ids the partition is remembered: each request asks for it."""

MAX_CACHED_NAME_LENGTH = 200
"""Names may have 32 KiB, and what is remembered of them is to stay small."""

MAX_PENDING_RESULTS = 10_000
"""How many commands of a shard may wait for its replicas; what clients ask beyond that is refused."""

RECORD_OVERHEAD_BYTES = 32
"""More than a record needs beside its key and its value: lengths, deltas, attributes."""

MAX_TOMBSTONES_PER_BATCH = 1000
"""Tombstones need not survive together, so many of them go into several batches."""


class CoordinatorStateMachine(Protocol):
    """What the runtime asks of a machine."""

    def replay(self, key: Message, value: Message | None) -> None:
        """Take a record into account."""

    def record_pending(self, key: Message) -> None:
        """A record of this key is about to be replayed, and is not committed yet."""

    def record_committed(self, key: Message) -> None:
        """The oldest of those that were pending is."""

    def transactional_record_written(self, key: Message) -> None:
        """A record was written within a transaction."""

    def replay_transactional(self, key: Message, value: Message | None) -> None:
        """A transaction has committed: take a record of it into account, which was `held` before."""

    def on_loaded(self) -> None:
        """The log is read: from here on there are commands."""

    def on_unloaded(self, code: ErrorCode) -> None:
        """The machine is gone: tell whoever waits in it."""


M = TypeVar("M", bound=CoordinatorStateMachine)

DecodedRecord = tuple[Message, Message | None]


class CoordinatorType(NamedTuple, Generic[M]):
    """What makes one coordinator's runtime different from another's."""

    topic: str
    make_state_machine: Callable[[CoordinatorShard[M]], M]
    decode_batch: Callable[[memoryview], Iterator[DecodedRecord]]
    """Decodes the records of one stored batch. CorruptBatch, WireError."""
    commit_timeout_ms: int
    """How long an append may take before whoever waits is told REQUEST_TIMED_OUT."""
    batches_commands: bool = False
    """Whether commands of one turn share a record batch."""
    transactional_key: Callable[[DecodedRecord], Hashable | None] = lambda record: None
    """What tells which records of transactions overtake each other; None for one that no other does."""


EncodedRecord = tuple[bytes, bytes | None]
"""A record's key and value as they are stored."""


class _PendingResult:
    """A result on its way: appends that are not committed yet, gathered ones too, and who is to be told."""

    __slots__ = ("appends", "committed", "deadline_ms")

    def __init__(self, committed: Committed | None, deadline_ms: int = 0) -> None:
        self.committed = committed
        self.appends = 0
        self.deadline_ms = deadline_ms
        """Until when who waits does so; a moment of the monotonic clock."""

    def tell(self, error: ApiError | None) -> None:
        """Call back, unless that has happened."""
        committed, self.committed = self.committed, None
        if committed is not None:
            committed(error)


class CoordinatorShard(Generic[M]):
    """The machine of one partition of the coordinator's topic, while this broker leads it."""

    def __init__(
        self,
        index: int,
        leader_epoch: int,
        coordinator_type: CoordinatorType[M],
        host: Host,
        ports: StatePorts,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        """`reload` is called once if the log has refused what was gathered, and has all the rest."""
        self._coordinator_type = coordinator_type
        self._host = host
        self.index = index
        self.leader_epoch = leader_epoch
        self.is_loading = True
        self.is_closed = False
        self.machine = coordinator_type.make_state_machine(self)
        self.transactional = TransactionalRecords(
            coordinator_type.decode_batch,
            lambda record: self.machine.transactional_record_written(record[0]),
            coordinator_type.transactional_key,
            lambda record: record[1] is None,
        )
        self._ports = ports
        self._pending_results: deque[_PendingResult] = deque()
        self._timeout_timer: Timer | None = None
        self.is_load_committed = False
        """Whether all that was loaded is committed, so that reading answers need not wait for anything."""
        self._batch_encoded: list[EncodedRecord] = []
        self._batch_records: list[CoordinatorRecord] = []
        self._batch_results: list[_PendingResult] = []
        self._batch_bytes = 0
        self._pending_appends = 0
        """Appends that are neither committed nor lost."""
        self._reload = reload
        self._needs_reload = False
        self._reload_delay_ms = 0
        self._last_append_error: ErrorCode | None = None
        """Why the log takes nothing just now, which was told."""

    # --- what the machine may ask

    def now_ms(self) -> int:
        return self._host.now_ms()

    def monotonic_ms(self) -> int:
        return self._host.monotonic_ms()

    def new_uuid(self) -> str:
        import uuid  # 3 ms that a start need not take

        return str(uuid.UUID(int=self._host.random("member ids").getrandbits(128), version=4))

    def logger(self, name: str) -> NodeLogger:
        return self._host.logger(name)

    def schedule(self, delay_ms: int, command: Callable[[], CoordinatorResult]) -> TimerHandle:
        def due() -> None:
            if not self.is_closed:
                self.execute(command())

        return self._host.schedule(delay_ms, due)

    # --- commands

    @property
    def is_overloaded(self) -> bool:
        """Whether its replicas have been waited for by so many that nobody else should."""
        return len(self._pending_results) >= MAX_PENDING_RESULTS

    @property
    def all_committed(self) -> bool:
        """Whether an answer that changes nothing need not wait for the records of earlier ones."""
        return not self._pending_results and not self.is_closed

    def execute(self, result: CoordinatorResult) -> None:
        """Append the records of a command, apply them, and tell when they are committed."""
        if self.is_closed:
            # Whoever was told of the end may have had something to decide.
            result.committed(ApiError(ErrorCode.NOT_COORDINATOR))
            return
        records = result.records
        if not records and not self._pending_results:
            result.committed(None)
            return
        deadline_ms = self._host.internode_clock.monotonic_ms() + self._coordinator_type.commit_timeout_ms
        waiting = _PendingResult(result.committed, deadline_ms)
        self._pending_results.append(waiting)
        try:
            if not (
                self._coordinator_type.batches_commands and records and self._add_to_batch(result, waiting)
            ):
                for part in _batches(records):
                    self.flush_batch()
                    if self.is_closed:
                        return
                    self._append(part, waiting, result.producer)
        except ApiError as error:
            if error.code is not self._last_append_error:
                self._last_append_error = error.code
                self.logger("kwire.coordinator").warning(
                    "%s-%d: an append was refused: %s",
                    self._coordinator_type.topic,
                    self.index,
                    error.code.name,
                )
            if not waiting.appends and not self.is_closed:  # its disk may have failed, which ends it
                self._pending_results.remove(waiting)
            waiting.tell(error)
            return
        except Exception:
            self._append_failed((waiting,))
            return
        if self._timeout_timer is None and not self.is_closed:
            self._timeout_timer = self._host.internode_clock.schedule(
                self._coordinator_type.commit_timeout_ms, self._time_out_results
            )

    def _add_to_batch(self, result: CoordinatorResult, waiting: _PendingResult) -> bool:
        """Keep the records for the end of the turn, and apply them. ApiError: refused, as an append would be.

        False, and nothing is done, where they need batches of their own.
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
            self._host.call_soon(self.flush_batch)
        self._batch_encoded += stored
        self._batch_records += records
        self._batch_bytes += size_bytes
        self._batch_results.append(waiting)
        waiting.appends += 1
        self._replay(records)
        return True

    def flush_batch(self) -> None:
        """Append what the commands of this turn have left so far."""
        if self.is_closed or not self._batch_encoded:
            return
        stored, self._batch_encoded = self._batch_encoded, []
        records, self._batch_records = self._batch_records, []
        results, self._batch_results = self._batch_results, []
        self._batch_bytes = 0
        try:
            self._write(stored, results, records)
        except ApiError as error:
            self._needs_reload = True
            self._append_lost(results, error)
        except Exception:
            self._append_failed(results)

    def _append_failed(self, results: Sequence[_PendingResult]) -> None:
        """By a fault of ours. The machine may know what its log does not, and nobody behind is to wait."""
        self.logger("kwire.coordinator").exception(
            "%s-%d: an append failed", self._coordinator_type.topic, self.index
        )
        self._needs_reload = True
        self._reload_delay_ms = RELOAD_DELAY_MS
        self._append_lost(results, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _append(
        self, records: Sequence[CoordinatorRecord], waiting: _PendingResult, producer: tuple[int, int] | None
    ) -> None:
        """Append the records as a batch of their own, and apply them. ApiError: refused."""
        replayed = records if producer is None else ()
        self._write([_stored_bytes(record) for record in records], (waiting,), replayed, producer)
        waiting.appends += 1
        if producer is not None:
            self.transactional.hold(producer[0], [(record.key, record.value) for record in records])
        else:
            self._replay(records)

    def _write(
        self,
        stored: Sequence[EncodedRecord],
        results: Sequence[_PendingResult],
        replayed: Sequence[CoordinatorRecord],
        producer: tuple[int, int] | None = None,
    ) -> None:
        now_ms = self._host.now_ms()
        new_records: list[batch.NewRecord] = [(now_ms, key, value, ()) for key, value in stored]
        if producer is None:
            data = batch.build(new_records)
        else:
            data = batch.build(
                new_records, producer_id=producer[0], producer_epoch=producer[1], transactional=True
            )
        self._ports.append(self.index, data, lambda error: self._committed(results, error, replayed))
        self._pending_appends += 1

    def _replay(self, records: Sequence[CoordinatorRecord]) -> None:
        for record in records:
            self.transactional.supersede_held((record.key, record.value))
            if not record.applied:
                self.machine.record_pending(record.key)
                self.machine.replay(record.key, record.value)

    def on_transaction_completed(self, producer_id: int, *, commit: bool) -> None:
        """A marker is in this partition's log: what the producer wrote counts from now on, or never."""
        for key, value in self.transactional.end_transaction(producer_id, commit=commit):
            self.machine.replay_transactional(key, value)

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
        self.is_load_committed = True  # it comes before everything that was appended
        for record in replayed:
            if not record.applied:
                self.machine.record_committed(record.key)
        for waiting in results:
            waiting.appends -= 1
            if error is not None:
                # It is committed, by fewer than were asked for: as if that had taken too long.
                waiting.tell(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        queue = self._pending_results
        while queue and not queue[0].appends:
            queue.popleft().tell(None)
            if self.is_closed:
                return

    def _append_lost(self, results: Sequence[_PendingResult], error: ApiError) -> None:
        """The machine knows what its log will never hold."""
        self.logger("kwire.coordinator").error(
            "%s-%d: an append was lost: %s", self._coordinator_type.topic, self.index, error.code.name
        )
        for waiting in results:
            waiting.tell(error)
        self.close(ErrorCode.NOT_COORDINATOR)
        self._reload_if_needed()

    def _reload_if_needed(self) -> None:
        # Not while something is under way: the log is read only as far as it is committed, without that.
        if self._needs_reload and not self._pending_appends:
            self._needs_reload = False
            if self._reload_delay_ms:
                self._host.internode_clock.schedule(self._reload_delay_ms, self._reload)
            else:
                self._host.call_soon(self._reload)

    def _time_out_results(self) -> None:
        """Tell those whose time is over. There is one timer for all, which is due when the first one's is."""
        self._timeout_timer = None
        now_ms = self._host.internode_clock.monotonic_ms()
        for waiting in list(self._pending_results):
            if waiting.committed is None:
                continue
            if waiting.deadline_ms > now_ms:
                if not self.is_closed:
                    self._timeout_timer = self._host.internode_clock.schedule(
                        waiting.deadline_ms - now_ms, self._time_out_results
                    )
                return
            waiting.tell(ApiError(ErrorCode.REQUEST_TIMED_OUT))

    # --- life

    def finish_loading(self) -> None:
        """The log is read. From here on there are commands, and answers when what was read is committed.

        ApiError: the partition is not led here any more.
        """
        waiting = _PendingResult(None)
        waiting.appends = self._pending_appends = 1
        self._pending_results.append(waiting)
        self._ports.when_committed(self.index, lambda error: self._committed((waiting,), error))
        self.is_loading = False
        if not self.is_closed:
            self.machine.on_loaded()

    def close(self, code: ErrorCode) -> None:
        """Stop for good: whoever waits is told `code`."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        self._batch_encoded = []
        self._batch_records = []
        self._batch_results = []
        waiting, self._pending_results = self._pending_results, deque()
        for one in waiting:
            one.tell(ApiError(code))
        self.machine.on_unloaded(code)


class CoordinatorRuntime(Generic[M]):
    """The shards of this broker, and which of them a group or a transactional id belongs to."""

    def __init__(self, coordinator_type: CoordinatorType[M], host: Host, ports: StatePorts) -> None:
        self._coordinator_type = coordinator_type
        self._host = host
        self._ports = ports
        self._shards: dict[int, CoordinatorShard[M]] = {}

    def partition_for(self, name: str) -> int | None:
        """The partition of the topic that holds this name's state; None while there is no such topic."""
        count = self._ports.partition_count()
        return None if count is None else partition_of(name, count)

    def shard_for(self, name: str) -> CoordinatorShard[M]:
        """The loaded shard of a name, which a client asks.

        ApiError: NOT_COORDINATOR; COORDINATOR_LOAD_IN_PROGRESS also where it is stuck.
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
        """Whether some shard is being loaded."""
        return any(shard.is_loading and not shard.is_closed for shard in self._shards.values())

    def active_shards(self) -> list[CoordinatorShard[M]]:
        """The shards that are loaded."""
        return [shard for shard in self._shards.values() if not shard.is_loading and not shard.is_closed]

    def elected(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition now: load it, unless that was done for this epoch."""
        known = self._shards.get(index)
        if known is not None and not known.is_closed:
            known.leader_epoch = max(known.leader_epoch, leader_epoch)
            return
        shard = CoordinatorShard(
            index, leader_epoch, self._coordinator_type, self._host, self._ports, lambda: self._reload(shard)
        )
        self._shards[index] = shard
        self._load(shard, self._ports.stored_batches(index))

    def _reload(self, shard: CoordinatorShard[M]) -> None:
        """Take a discarded shard's place, unless this broker has resigned or was elected since."""
        if self._shards.get(shard.index) is shard:
            self.elected(shard.index, shard.leader_epoch)

    def resigned(self, index: int, leader_epoch: int) -> None:
        """This broker does not lead a partition any more, as it did in this epoch.

        Who hears of that after it was elected again, in a later one, goes on.
        """
        shard = self._shards.get(index)
        if shard is not None and shard.leader_epoch <= leader_epoch:
            del self._shards[index]
            shard.close(ErrorCode.NOT_COORDINATOR)

    def flush_batch(self, index: int) -> None:
        """Append now what the commands of this turn have left for a partition."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.flush_batch()

    def on_transaction_completed(self, index: int, producer_id: int, *, commit: bool) -> None:
        """A marker is in the log of a partition. One that is still loading reads it there."""
        shard = self._shards.get(index)
        if shard is not None and not shard.is_loading and not shard.is_closed:
            shard.on_transaction_completed(producer_id, commit=commit)

    def shutdown(self) -> None:
        """End all shards: whoever waits looks for another coordinator."""
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.close(ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: CoordinatorShard[M], batches: Iterator[memoryview]) -> None:
        """Replay the next part of a log, and leave the rest for a later turn."""
        if shard.is_closed:
            return
        size_bytes = 0
        try:
            for data in batches:
                for key, value in shard.transactional.committed_by(data):
                    shard.machine.replay(key, value)
                size_bytes += len(data)
                if size_bytes >= LOAD_STEP_BYTES:
                    self._host.call_soon(lambda: self._load(shard, batches))
                    return
            shard.finish_loading()
        except Exception as error:
            is_known = isinstance(error, ApiError | WireError | batch.CorruptBatch)
            self._host.logger("kwire.coordinator").error(
                "%s-%d cannot be loaded: %s",
                self._coordinator_type.topic,
                shard.index,
                error,
                exc_info=not is_known,
            )
            shard.close(ErrorCode.NOT_COORDINATOR)


def partition_of(name: str, count: int) -> int:
    """The partition of a name: Java's hash of it, made positive as Kafka's `Utils.abs` does."""
    return (
        _known_partition_of(name, count)
        if len(name) <= MAX_CACHED_NAME_LENGTH
        else _partition_of(name, count)
    )


def _partition_of(name: str, count: int) -> int:
    value = string_hash(name)
    if value >= 0x80000000:
        value = 0x100000000 - value
    # The absolute value of the least int32 is not an int32; Kafka takes 0.
    return 0 if value == 0x80000000 else value % count


_known_partition_of = lru_cache(PARTITION_CACHE_SIZE)(_partition_of)


def _stored_bytes(record: CoordinatorRecord) -> EncodedRecord:
    value = record.value
    return encode_record(record.key, 0), None if value is None else encode_record(value, record.value_version)


def _batches(records: Sequence[CoordinatorRecord]) -> list[Sequence[CoordinatorRecord]]:
    if not records:
        return []
    if len(records) <= MAX_TOMBSTONES_PER_BATCH or any(record.value is not None for record in records):
        return [records]
    return [
        records[at : at + MAX_TOMBSTONES_PER_BATCH] for at in range(0, len(records), MAX_TOMBSTONES_PER_BATCH)
    ]
