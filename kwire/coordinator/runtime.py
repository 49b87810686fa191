"""Runs a coordinator's machines: one shard for each partition of its topic that this broker leads.

A shard is loaded from its log, runs commands one at a time, appends their records, and tells whoever waits
once everything appended until then is committed, what was loaded included: who has just been elected does not
know how much of its log is. A shard whose append is lost knows more than its log does, so it is discarded; it
comes back, loaded anew, when its partition does.

Where the kind of coordinator `gathers`, commands of one turn of the loop share a record batch, which is
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

from kwire.coordinator.committed_records import CommittedRecords
from kwire.coordinator.machine import Committed, CoordinatorRecord, CoordinatorResult, TimerHandle
from kwire.coordinator.ports import StatePorts
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

RELOAD_MS = 1000
"""How long a shard that a fault of ours has ended stays away: the fault may come again."""

NAMES_KNOWN = 20_000
"""Of how many groups and transactional ids the partition is remembered: each request asks for it."""

LONGEST_KNOWN = 200
"""Names may have 32 KiB, and what is remembered of them is to stay small."""

MOST_WAITING = 10_000
"""How many commands of a shard may wait for its replicas; what clients ask beyond that is refused."""

RECORD_OVERHEAD_BYTES = 32
"""More than a record needs beside its key and its value: lengths, deltas, attributes."""

TOMBSTONES_A_BATCH = 1000
"""Tombstones need not survive together, so many of them go into several batches."""


class Machine(Protocol):
    """What the runtime asks of a machine."""

    def replay(self, key: Message, value: Message | None) -> None:
        """Take a record into account."""

    def pending(self, key: Message) -> None:
        """A record of this key is about to be replayed, and is not committed yet."""

    def committed(self, key: Message) -> None:
        """The oldest of those that were pending is."""

    def held(self, key: Message) -> None:
        """A record was written within a transaction."""

    def released(self, key: Message, value: Message | None) -> None:
        """A transaction has committed: take a record of it into account, which was `held` before."""

    def loaded(self) -> None:
        """The log is read: from here on there are commands."""

    def unload(self, code: ErrorCode) -> None:
        """The machine is gone: tell whoever waits in it."""


M = TypeVar("M", bound=Machine)

StoredPair = tuple[Message, Message | None]


class Kind(NamedTuple, Generic[M]):
    """What makes one coordinator's runtime different from another's."""

    topic: str
    make_machine: Callable[[Shard[M]], M]
    records_of: Callable[[memoryview], Iterator[StoredPair]]
    """Decodes the records of one stored batch. CorruptBatch, WireError."""
    commit_timeout_ms: int
    """How long an append may take before whoever waits is told REQUEST_TIMED_OUT."""
    gathers: bool = False
    """Whether commands of one turn share a record batch."""
    key_in_transactions: Callable[[StoredPair], Hashable | None] = lambda record: None
    """What tells which records of transactions overtake each other; None for one that no other does."""


StoredBytes = tuple[bytes, bytes | None]
"""A record's key and value as they are stored."""


class _Waiting:
    """A result on its way: appends that are not committed yet, gathered ones too, and who is to be told."""

    __slots__ = ("appends", "committed", "until_ms")

    def __init__(self, committed: Committed | None, until_ms: int = 0) -> None:
        self.committed = committed
        self.appends = 0
        self.until_ms = until_ms
        """Until when who waits does so; a moment of the monotonic clock."""

    def tell(self, error: ApiError | None) -> None:
        """Call back, unless that has happened."""
        committed, self.committed = self.committed, None
        if committed is not None:
            committed(error)


class Shard(Generic[M]):
    """The machine of one partition of the coordinator's topic, while this broker leads it."""

    def __init__(
        self,
        index: int,
        leader_epoch: int,
        kind: Kind[M],
        host: Host,
        ports: StatePorts,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_refused` is called once if the log has refused what was gathered, and has all the rest."""
        self._kind = kind
        self._host = host
        self.index = index
        self.leader_epoch = leader_epoch
        self.loading = True
        self.ended = False
        self.machine = kind.make_machine(self)
        self.stored = CommittedRecords(
            kind.records_of,
            lambda record: self.machine.held(record[0]),
            kind.key_in_transactions,
            lambda record: record[1] is None,
        )
        self._ports = ports
        self._waiting: deque[_Waiting] = deque()
        self._watch: Timer | None = None
        self.is_load_committed = False
        """Whether all that was loaded is committed, so that reading answers need not wait for anything."""
        self._gathered: list[StoredBytes] = []
        self._gathered_records: list[CoordinatorRecord] = []
        self._gathered_for: list[_Waiting] = []
        self._gathered_bytes = 0
        self._under_way = 0
        """Appends that are neither committed nor lost."""
        self._on_refused = on_refused
        self._refused = False
        self._reload_ms = 0
        self._refusal: ErrorCode | None = None
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

    def later(self, delay_ms: int, command: Callable[[], CoordinatorResult]) -> TimerHandle:
        def due() -> None:
            if not self.ended:
                self.execute(command())

        return self._host.schedule(delay_ms, due)

    # --- commands

    @property
    def is_stuck(self) -> bool:
        """Whether its replicas have been waited for by so many that nobody else should."""
        return len(self._waiting) >= MOST_WAITING

    @property
    def settled(self) -> bool:
        """Whether an answer that changes nothing need not wait for the records of earlier ones."""
        return not self._waiting and not self.ended

    def execute(self, result: CoordinatorResult) -> None:
        """Append the records of a command, apply them, and tell when they are committed."""
        if self.ended:
            # Whoever was told of the end may have had something to decide.
            result.committed(ApiError(ErrorCode.NOT_COORDINATOR))
            return
        records = result.records
        if not records and not self._waiting:
            result.committed(None)
            return
        until_ms = self._host.internode_clock.monotonic_ms() + self._kind.commit_timeout_ms
        waiting = _Waiting(result.committed, until_ms)
        self._waiting.append(waiting)
        try:
            if not (self._kind.gathers and records and self._gather(result, waiting)):
                for part in _parts(records):
                    self.append_gathered()
                    if self.ended:
                        return
                    self._append(part, waiting, result.producer)
        except ApiError as error:
            if error.code is not self._refusal:
                self._refusal = error.code
                self.logger("kwire.coordinator").warning(
                    "%s-%d: an append was refused: %s", self._kind.topic, self.index, error.code.name
                )
            if not waiting.appends and not self.ended:  # its disk may have failed, which ends it
                self._waiting.remove(waiting)
            waiting.tell(error)
            return
        except Exception:
            self._failed((waiting,))
            return
        if self._watch is None and not self.ended:
            self._watch = self._host.internode_clock.schedule(
                self._kind.commit_timeout_ms, self._look_who_waits
            )

    def _gather(self, result: CoordinatorResult, waiting: _Waiting) -> bool:
        """Keep the records for the end of the turn, and apply them. ApiError: refused, as an append would be.

        False, and nothing is done, where they need batches of their own.
        """
        records = result.records
        if result.producer is not None or len(records) > TOMBSTONES_A_BATCH:
            return False
        max_bytes = self._ports.max_batch_bytes(self.index) - batch.HEADER_BYTES
        stored = [_stored_bytes(record) for record in records]
        size_bytes = len(stored) * RECORD_OVERHEAD_BYTES
        for key, value in stored:
            size_bytes += len(key) + (0 if value is None else len(value))
        if size_bytes > max_bytes:
            return False
        if self._gathered_bytes + size_bytes > max_bytes:
            self.append_gathered()
            if self.ended:
                return True
        if not self._gathered:
            self._host.call_soon(self.append_gathered)
        self._gathered += stored
        self._gathered_records += records
        self._gathered_bytes += size_bytes
        self._gathered_for.append(waiting)
        waiting.appends += 1
        self._replay(records)
        return True

    def append_gathered(self) -> None:
        """Append what the commands of this turn have left so far."""
        if self.ended or not self._gathered:
            return
        stored, self._gathered = self._gathered, []
        records, self._gathered_records = self._gathered_records, []
        gathered_for, self._gathered_for = self._gathered_for, []
        self._gathered_bytes = 0
        try:
            self._write(stored, gathered_for, records)
        except ApiError as error:
            self._refused = True
            self._lost(gathered_for, error)
        except Exception:
            self._failed(gathered_for)

    def _failed(self, written_for: Sequence[_Waiting]) -> None:
        """By a fault of ours. The machine may know what its log does not, and nobody behind is to wait."""
        self.logger("kwire.coordinator").exception("%s-%d: an append failed", self._kind.topic, self.index)
        self._refused = True
        self._reload_ms = RELOAD_MS
        self._lost(written_for, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _append(
        self, records: Sequence[CoordinatorRecord], waiting: _Waiting, producer: tuple[int, int] | None
    ) -> None:
        """Append the records as a batch of their own, and apply them. ApiError: refused."""
        replayed = records if producer is None else ()
        self._write([_stored_bytes(record) for record in records], (waiting,), replayed, producer)
        waiting.appends += 1
        if producer is not None:
            self.stored.hold(producer[0], [(record.key, record.value) for record in records])
        else:
            self._replay(records)

    def _write(
        self,
        stored: Sequence[StoredBytes],
        written_for: Sequence[_Waiting],
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
        self._ports.append(self.index, data, lambda error: self._committed(written_for, error, replayed))
        self._under_way += 1

    def _replay(self, records: Sequence[CoordinatorRecord]) -> None:
        for record in records:
            self.stored.written((record.key, record.value))
            if not record.applied:
                self.machine.pending(record.key)
                self.machine.replay(record.key, record.value)

    def transaction_ended(self, producer_id: int, *, commit: bool) -> None:
        """A marker is in this partition's log: what the producer wrote counts from now on, or never."""
        for key, value in self.stored.end(producer_id, commit=commit):
            self.machine.released(key, value)

    def _committed(
        self,
        written_for: Sequence[_Waiting],
        error: ApiError | None,
        replayed: Sequence[CoordinatorRecord] = (),
    ) -> None:
        self._under_way -= 1
        if self.ended:
            self._settle()
            return
        if error is not None and error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            self._lost(written_for, error)
            return
        self._refusal = None
        self.is_load_committed = True  # it comes before everything that was appended
        for record in replayed:
            if not record.applied:
                self.machine.committed(record.key)
        for waiting in written_for:
            waiting.appends -= 1
            if error is not None:
                # It is committed, by fewer than were asked for: as if that had taken too long.
                waiting.tell(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        queue = self._waiting
        while queue and not queue[0].appends:
            queue.popleft().tell(None)
            if self.ended:
                return

    def _lost(self, written_for: Sequence[_Waiting], error: ApiError) -> None:
        """The machine knows what its log will never hold."""
        self.logger("kwire.coordinator").error(
            "%s-%d: an append was lost: %s", self._kind.topic, self.index, error.code.name
        )
        for waiting in written_for:
            waiting.tell(error)
        self.end(ErrorCode.NOT_COORDINATOR)
        self._settle()

    def _settle(self) -> None:
        # Not while something is under way: the log is read only as far as it is committed, without that.
        if self._refused and not self._under_way:
            self._refused = False
            if self._reload_ms:
                self._host.internode_clock.schedule(self._reload_ms, self._on_refused)
            else:
                self._host.call_soon(self._on_refused)

    def _look_who_waits(self) -> None:
        """Tell those whose time is over. There is one timer for all, which is due when the first one's is."""
        self._watch = None
        now_ms = self._host.internode_clock.monotonic_ms()
        for waiting in list(self._waiting):
            if waiting.committed is None:
                continue
            if waiting.until_ms > now_ms:
                if not self.ended:
                    self._watch = self._host.internode_clock.schedule(
                        waiting.until_ms - now_ms, self._look_who_waits
                    )
                return
            waiting.tell(ApiError(ErrorCode.REQUEST_TIMED_OUT))

    # --- life

    def loaded(self) -> None:
        """The log is read. From here on there are commands, and answers when what was read is committed.

        ApiError: the partition is not led here any more.
        """
        waiting = _Waiting(None)
        waiting.appends = self._under_way = 1
        self._waiting.append(waiting)
        self._ports.when_committed(self.index, lambda error: self._committed((waiting,), error))
        self.loading = False
        if not self.ended:
            self.machine.loaded()

    def end(self, code: ErrorCode) -> None:
        """Stop for good: whoever waits is told `code`."""
        if self.ended:
            return
        self.ended = True
        if self._watch is not None:
            self._watch.cancel()
        self._gathered = []
        self._gathered_records = []
        self._gathered_for = []
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.tell(ApiError(code))
        self.machine.unload(code)


class Runtime(Generic[M]):
    """The shards of this broker, and which of them a group or a transactional id belongs to."""

    def __init__(self, kind: Kind[M], host: Host, ports: StatePorts) -> None:
        self._kind = kind
        self._host = host
        self._ports = ports
        self._shards: dict[int, Shard[M]] = {}

    def partition_for(self, name: str) -> int | None:
        """The partition of the topic that holds this name's state; None while there is no such topic."""
        count = self._ports.partition_count()
        return None if count is None else partition_of(name, count)

    def shard_for(self, name: str) -> Shard[M]:
        """The loaded shard of a name, which a client asks.

        ApiError: NOT_COORDINATOR; COORDINATOR_LOAD_IN_PROGRESS also where it is stuck.
        """
        index = self.partition_for(name)
        shard = None if index is None else self._shards.get(index)
        if shard is None or shard.ended:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if shard.loading or shard.is_stuck:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    @property
    def loading(self) -> bool:
        """Whether some shard is being loaded."""
        return any(shard.loading and not shard.ended for shard in self._shards.values())

    def active(self) -> list[Shard[M]]:
        """The shards that are loaded."""
        return [shard for shard in self._shards.values() if not shard.loading and not shard.ended]

    def elected(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition now: load it, unless that was done for this epoch."""
        known = self._shards.get(index)
        if known is not None and not known.ended:
            known.leader_epoch = max(known.leader_epoch, leader_epoch)
            return
        shard = Shard(
            index, leader_epoch, self._kind, self._host, self._ports, lambda: self._load_anew(shard)
        )
        self._shards[index] = shard
        self._load(shard, self._ports.stored_batches(index))

    def _load_anew(self, shard: Shard[M]) -> None:
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
            shard.end(ErrorCode.NOT_COORDINATOR)

    def append_gathered(self, index: int) -> None:
        """Append now what the commands of this turn have left for a partition."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.append_gathered()

    def transaction_ended(self, index: int, producer_id: int, *, commit: bool) -> None:
        """A marker is in the log of a partition. One that is still loading reads it there."""
        shard = self._shards.get(index)
        if shard is not None and not shard.loading and not shard.ended:
            shard.transaction_ended(producer_id, commit=commit)

    def shutdown(self) -> None:
        """End all shards: whoever waits looks for another coordinator."""
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.end(ErrorCode.NOT_COORDINATOR)

    def _load(self, shard: Shard[M], batches: Iterator[memoryview]) -> None:
        """Replay the next part of a log, and leave the rest for a later turn."""
        if shard.ended:
            return
        size_bytes = 0
        try:
            for data in batches:
                for key, value in shard.stored.of(data):
                    shard.machine.replay(key, value)
                size_bytes += len(data)
                if size_bytes >= LOAD_STEP_BYTES:
                    self._host.call_soon(lambda: self._load(shard, batches))
                    return
            shard.loaded()
        except Exception as error:
            is_known = isinstance(error, ApiError | WireError | batch.CorruptBatch)
            self._host.logger("kwire.coordinator").error(
                "%s-%d cannot be loaded: %s", self._kind.topic, shard.index, error, exc_info=not is_known
            )
            shard.end(ErrorCode.NOT_COORDINATOR)


def partition_of(name: str, count: int) -> int:
    """The partition of a name: Java's hash of it, made positive as Kafka's `Utils.abs` does."""
    return _known_partition_of(name, count) if len(name) <= LONGEST_KNOWN else _partition_of(name, count)


def _partition_of(name: str, count: int) -> int:
    value = string_hash(name)
    if value >= 0x80000000:
        value = 0x100000000 - value
    # The absolute value of the least int32 is not an int32; Kafka takes 0.
    return 0 if value == 0x80000000 else value % count


_known_partition_of = lru_cache(NAMES_KNOWN)(_partition_of)


def _stored_bytes(record: CoordinatorRecord) -> StoredBytes:
    value = record.value
    return encode_record(record.key, 0), None if value is None else encode_record(value, record.value_version)


def _parts(records: Sequence[CoordinatorRecord]) -> list[Sequence[CoordinatorRecord]]:
    if not records:
        return []
    if len(records) <= TOMBSTONES_A_BATCH or any(record.value is not None for record in records):
        return [records]
    return [records[at : at + TOMBSTONES_A_BATCH] for at in range(0, len(records), TOMBSTONES_A_BATCH)]
