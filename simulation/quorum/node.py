"""A simulated node of a quorum: the machine, and a shell around it that does what it says.

The shell is as slow, and crashes as badly, as a real one may: what is written is durable only after a sync,
`quorum-state` is written beside the loop, and what comes behind a promise waits for it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, assert_never

from kwire.broker.metadata.features import KRAFT_VERSION
from kwire.broker.raft import outputs
from kwire.broker.raft.machine import Machine
from kwire.broker.raft.outputs import Output
from kwire.broker.raft.positions import EndOfEpoch, answer_to_fetch
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.terms import Terms
from kwire.broker.raft.voters import KRAFT_VERSIONS, ReplicaKey, VoterSet, address_of, endpoints_of
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC, METADATA_TOPIC_ID
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import fetch, fetch_snapshot
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from kwire.wire.messages.fetch import FetchRequest, FetchResponse
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.wire.schema import Message
from simulation.quorum.log import Batch, SavedSnapshot, SimulatedLog

Reply = Callable[[Message], None]

MOST_BATCHES = 16
"""How many are sent in one answer."""
PIECES = 3
"""In how many a snapshot is loaded."""


class World(Protocol):
    """What a node asks of the simulation."""

    rng: random.Random

    def now_ms(self) -> int: ...
    def later(self, node: SimulatedNode, delay_ms: int, act: Callable[[], None]) -> None:
        """In the node's own time, and its present life."""

    def send(self, node: SimulatedNode, send: outputs.Send) -> None: ...
    def note(self, node: SimulatedNode, text: str) -> None: ...
    def batches_of(self, records: bytes) -> list[Batch]: ...
    def records_of(self, batches: list[Batch]) -> bytes: ...
    def snapshot_of(self, snapshot: Snapshot) -> SavedSnapshot: ...
    def watch(self, node: SimulatedNode, output: Output) -> None:
        """Look at what a node is about to do."""

    def appended(self, node: SimulatedNode, batch: Batch, prev_epoch: int) -> None: ...
    def leads(self, node: SimulatedNode) -> None:
        """Others hear that it does."""

    def cannot_go_on(self, node: SimulatedNode, reason: str) -> None: ...


class _Parked(NamedTuple):
    request: FetchRequest
    reply: Reply
    role: QuorumRole


class Disk(NamedTuple):
    """How slow a node's disk is, at least and at most."""

    least_ms: int
    most_ms: int


class SimulatedNode:
    """A node with one directory, over all of its lives."""

    def __init__(
        self, world: World, terms: Terms, static: VoterSet, *, disk: Disk, speed: float, knows_pre_vote: bool
    ) -> None:
        self.terms = terms
        self.key = terms.key
        self.log = SimulatedLog(static)
        self.static = static
        self.machine: Machine
        self.life = 0
        self.is_up = False
        self.failed = ""
        self.disk = disk
        self.speed = speed
        self.knows_pre_vote = knows_pre_vote
        self.remembered = QuorumState()
        """What quorum-state says, durably."""
        self.committed = 0
        """How far this life has been told that all is committed."""
        self._world = world
        self._queue: deque[Output] = deque()
        self._wanted: list[tuple[int, QuorumState]] = []
        self._writing: QuorumState | None = None
        self._asked_states = self._durable_states = self._promised = 0
        """The numbers of the last state to be remembered, that is durable, and that is a promise."""
        self._sync_to: int | None = None
        self._parked: list[_Parked] = []
        self._held: list[tuple[Message, Reply]] = []
        self._pieces = 0
        self._incoming: SavedSnapshot | None = None
        self._tick_at_ms: int | None = None
        self.shown: object = None
        """What the transcript has said of it last."""

    def __str__(self) -> str:
        return f"n{self.key.replica_id}.{self.key.directory_id[-1]}"

    @property
    def own_ms(self) -> int:
        """The time by the node's own clock."""
        return round(self._world.now_ms() * self.speed)

    @property
    def address(self) -> PeerAddress:
        found = address_of(endpoints_of(self.terms.endpoints), self.terms.listener)
        assert found is not None
        return found

    def describe(self) -> str:
        """How it is doing, for whoever reads a transcript."""
        log, machine = self.log, self.machine
        return (
            f"{machine.role.name.lower()} ({machine.stage.name.lower()}) in {machine.epoch}: log from "
            f"{log.start_offset} to {log.synced_offset}, {log.end_offset} of epoch {log.last_epoch}, "
            f"committed {log.high_watermark}, {log.voters} at {log.voters_offset}, "
            f"due {machine.due_ms} at {self.own_ms}"
        )

    # --- lives

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.committed = self.log.high_watermark
        self.machine = Machine(
            self.terms,
            self.log,
            random.Random(self._world.rng.random()),
            remembered=self.remembered,
            now_ms=self.own_ms,
        )
        self._handle(lambda: self.machine.start(self.own_ms))

    def crash(self, rng: random.Random, *, loses_power: bool) -> None:
        """Die, and lose of what is not durable some, or nothing if only the process dies."""
        self.is_up = False
        self._queue.clear()
        self._parked.clear()
        self._held.clear()
        self._incoming, self._sync_to, self._tick_at_ms = None, None, None
        states = [self._writing] if self._writing is not None else []
        if states and rng.random() < 0.5:
            self.remembered = states[0]
        self._writing = None
        self._wanted.clear()
        self._durable_states = self._promised = self._asked_states
        kept_offset = self.log.end_offset
        if loses_power:
            if self.log.awaits_sync and rng.random() < 0.5:
                self.log.bring_back()
            ends = [one.end_offset for one in self.log.batches if one.end_offset >= self.log.synced_offset]
            kept_offset = rng.choice([self.log.synced_offset, *ends])
        self.log.crash(kept_offset, self.static)

    # --- driving the machine

    def _handle(self, act: Callable[[], list[Output]]) -> None:
        """Do what comes of an event, and of the time that it is then."""
        if not self.is_up or self.failed:
            return
        self._do(act())
        for _ in range(50):
            due_ms = self.machine.due_ms
            if not self.is_up or due_ms is None or due_ms > self.own_ms or self.failed:
                break
            self._do(self.machine.tick(self.own_ms))
        else:
            raise AssertionError(f"{self} has no end of things to do as {self.machine.role.name}")
        self._serve_parked()
        due_ms = self.machine.due_ms
        if self.is_up and due_ms is not None and due_ms != self._tick_at_ms:
            self._tick_at_ms = due_ms
            delay_ms = due_ms - self.own_ms
            self._world.later(self, delay_ms, lambda: self._ticked(due_ms))

    def _ticked(self, due_ms: int) -> None:
        if self._tick_at_ms == due_ms:
            self._tick_at_ms = None
            self._handle(list)

    def _do(self, done: list[Output]) -> None:
        self._queue.extend(done)
        self._drain()

    def _drain(self) -> None:
        while self._queue and self.is_up and not self.failed:
            if self._is_promising:
                return
            output = self._queue.popleft()
            self._world.watch(self, output)
            self._do_one(output)

    @property
    def _is_promising(self) -> bool:
        """Whether something waits until a promise is durable."""
        return self._promised > self._durable_states

    def _do_one(self, output: Output) -> None:
        world, log, machine = self._world, self.log, self.machine
        match output:
            case outputs.Send():
                world.send(self, output)
            case outputs.Answer():
                assert callable(output.asker)
                output.asker(output.response)
            case outputs.Remember():
                self._remember(output)
            case outputs.AppendControls():
                if machine.role is QuorumRole.LEADER and machine.epoch == output.epoch:
                    offset = self._append(Batch(log.end_offset, output.epoch, tuple(output.controls)))
                    self._queue.extendleft(reversed(machine.controls_appended(offset, self.own_ms)))
            case outputs.Append():
                assert machine.role is not QuorumRole.LEADER
                for batch in world.batches_of(bytes(output.records)):
                    self._append(batch)
            case outputs.Cut():
                assert machine.role is not QuorumRole.LEADER, "a leader cuts its log"
                assert output.offset >= log.high_watermark
                world.note(self, f"cuts at {output.offset} of {log.end_offset}")
                assert self._sync_to is None
                log.cut(output.offset)
                self._sync()
            case outputs.Advance():
                log.advance(output.high_watermark)
            case outputs.BeginSnapshot():
                self._incoming = world.snapshot_of(output.snapshot)
            case outputs.AddToSnapshot() | outputs.Tell():
                pass
            case outputs.DropSnapshot():
                self._incoming = None
            case outputs.Install():
                world.later(self, self._disk_ms(), self._install)
            case outputs.Unlead():
                pass
            case outputs.Complain():
                world.note(self, f"complains: {output.text}")
            case outputs.Fail():
                self.failed = output.reason
                world.cannot_go_on(self, output.reason)
            case _:
                assert_never(output)

    # --- the disk

    def _disk_ms(self) -> int:
        return self._world.rng.randint(self.disk.least_ms, self.disk.most_ms)

    def _remember(self, output: outputs.Remember) -> None:
        self._asked_states += 1
        if output.is_promise:
            self._promised = self._asked_states
        self._wanted = [(self._asked_states, output.state)]
        if self._writing is None:
            self._write_state()

    def _write_state(self) -> None:
        if not self._wanted:
            return
        [(number, state)] = self._wanted
        self._wanted, self._writing = [], state

        def written() -> None:
            self.remembered, self._writing, self._durable_states = state, None, number
            self._write_state()
            self._handle(self._go_on)
            if not self._is_promising:
                held, self._held = self._held, []
                for request, reply in held:
                    self.receive(request, reply)

        self._world.later(self, self._disk_ms(), written)

    def _go_on(self) -> list[Output]:
        self._drain()
        return []

    def _append(self, batch: Batch) -> int:
        self._world.appended(self, batch, self.log.epoch_at(self.log.end_offset))
        self.log.append(batch)
        self._sync()
        return batch.base_offset

    def _sync(self) -> None:
        """Have the end of the log become durable, one sync at a time."""
        log = self.log
        is_durable = not self.terms.may_vote or log.synced_offset >= log.end_offset
        if self._sync_to is not None or (is_durable and not log.awaits_sync):
            return
        self._sync_to = log.end_offset

        def synced() -> None:
            offset, self._sync_to = self._sync_to, None
            assert offset is not None
            log.synced_offset = max(log.synced_offset, min(offset, log.end_offset))
            log.awaits_sync = False
            self._sync()
            self._handle(lambda: self.machine.synced(offset, self.own_ms))

        self._world.later(self, self._disk_ms(), synced)

    def _install(self) -> None:
        if self._incoming is not None:
            self._world.note(self, f"installs {self._incoming.snapshot}")
            assert self._sync_to is None
            self.log.install(self._incoming)
            self._sync()
            self._incoming = None
            self.committed = max(self.committed, self.log.high_watermark)

        def installed() -> list[Output]:
            self.machine.installed(self.own_ms)
            return []

        self._handle(installed)

    # --- what comes from outside

    def propose(self, command: str) -> int | None:
        """Have the leader append a command; its offset, or None if this is not the leader."""
        machine, log = self.machine, self.log
        if not self.is_up or self.failed or self._queue or machine.role is not QuorumRole.LEADER:
            return None
        if log.last_epoch != machine.epoch:
            return None
        offset = self._append(Batch(log.end_offset, machine.epoch, (), command))
        self._handle(list)
        return offset

    def receive(self, request: Message, reply: Reply) -> None:
        """Another node asks something."""
        if not self.is_up or self.failed:
            return
        if self._is_promising and isinstance(request, FetchRequest | FetchSnapshotRequest):
            self._held.append((request, reply))  # it would hear of what is only being promised
        elif isinstance(request, FetchRequest):
            self._fetched(_Parked(request, reply, self.machine.role), may_park=True)
        elif isinstance(request, FetchSnapshotRequest):
            reply(self._load(request))
        elif isinstance(request, ApiVersionsRequest):
            low, high = KRAFT_VERSIONS
            feature = SupportedFeatureKey(name=KRAFT_VERSION, min_version=low, max_version=high)
            reply(ApiVersionsResponse(api_keys=[], supported_features=[feature]))
        else:
            self._handle(lambda: self.machine.asked(request, reply, self.own_ms, api_version=1))

    def hear(self, number: int, answer: Message | PeerUnreachable) -> None:
        """What this node has asked is answered, or is not."""
        self._handle(lambda: self.machine.answered(number, answer, self.own_ms))

    def do(self, act: Callable[[Machine], list[Output]]) -> None:
        """Have the machine do something."""
        self._handle(lambda: act(self.machine))

    # --- serving the log

    def _known(self) -> tuple[int, int]:
        return self.machine.leader_id, self.machine.epoch

    def _unfit(self, epoch: int) -> ErrorCode:
        machine = self.machine
        if epoch != machine.epoch:
            is_behind = epoch < machine.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if machine.role is QuorumRole.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _fetched(self, parked: _Parked, *, may_park: bool) -> bool:
        """Answer a Fetch, or park it; whether it is answered."""
        request = parked.request
        [asked] = request.topics[0].partitions
        code = self._unfit(asked.current_leader_epoch)
        if code == ErrorCode.NONE:
            self._world.leads(self)
        data = fetch.PartitionData(partition_index=0, error_code=code, high_watermark=-1, records=b"")
        is_enough = code != ErrorCode.NONE
        if code == ErrorCode.NONE:
            log = self.log
            other = answer_to_fetch(log, asked.fetch_offset, asked.last_fetched_epoch)
            if isinstance(other, EndOfEpoch):
                data.diverging_epoch = fetch.EpochEndOffset(epoch=other.epoch, end_offset=other.end_offset)
            elif isinstance(other, Snapshot):
                data.snapshot_id = fetch.SnapshotId(end_offset=other.end_offset, epoch=other.epoch)
            else:
                key = ReplicaKey(request.replica_state.replica_id, asked.replica_directory_id)
                if may_park:
                    self._handle(lambda: self.machine.fetched_by(key, asked.fetch_offset, self.own_ms))
                data.records = self._world.records_of(log.read(asked.fetch_offset, MOST_BATCHES))
            data.high_watermark = self.machine.high_watermark
            is_enough = other is not None or bool(data.records) or data.high_watermark > asked.high_watermark
            if self._unfit(asked.current_leader_epoch) != ErrorCode.NONE:
                is_enough = False  # to be answered anew
        leader_id, epoch = self._known()
        data.current_leader = fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)
        if not is_enough and may_park:
            self._parked.append(parked)
            self._world.later(self, request.max_wait_ms, lambda: self._wait_is_over(parked))
            return False
        if not is_enough and parked in self._parked:
            return False
        parked.reply(
            FetchResponse(
                responses=[
                    fetch.FetchableTopicResponse(
                        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[data]
                    )
                ],
                node_endpoints=self._endpoints(fetch.NodeEndpoint),
            )
        )
        return True

    def _endpoints(self, kind: type[fetch.NodeEndpoint]) -> list[fetch.NodeEndpoint]:
        machine = self.machine
        at = machine.leader_address if machine.leader_id != self.key.replica_id else self.address
        if at is None:
            return []
        return [kind(node_id=machine.leader_id, host=at.host, port=at.port)]

    def _serve_parked(self) -> None:
        if self._is_promising:
            return
        self._parked = [parked for parked in self._parked if not self._fetched(parked, may_park=False)]

    def _wait_is_over(self, parked: _Parked) -> None:
        if parked in self._parked and not self._is_promising:
            self._parked.remove(parked)
            self._fetched(parked, may_park=False)

    def _load(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        [asked] = request.topics[0].partitions
        code = self._unfit(asked.current_leader_epoch)
        leader_id, epoch = self._known()
        data = fetch_snapshot.ResponsePartitionSnapshot(
            index=0, error_code=code, unaligned_records=b"",
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=0, epoch=0),
            current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        )  # fmt: skip
        if code == ErrorCode.NONE:
            snapshot = Snapshot(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
            found = [one for one in self.log.snapshots if one.snapshot == snapshot]
            if not found:
                data.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
            else:
                size = found[0].size
                data.snapshot_id = asked.snapshot_id
                data.size, data.position = size, asked.position
                data.unaligned_records = bytes(min(-(-size // PIECES), size - asked.position))
                key = ReplicaKey(request.replica_id, asked.replica_directory_id)
                self.machine.loaded_by(key, self.own_ms)
        return FetchSnapshotResponse(
            topics=[fetch_snapshot.ResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[data])],
            node_endpoints=[
                fetch_snapshot.NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port)
                for one in self._endpoints(fetch.NodeEndpoint)
            ],
        )
