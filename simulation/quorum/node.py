"""A simulated node of a quorum: the state machine, and simulated I/O that executes its outputs.

The I/O is as slow and unreliable as real I/O. Written data is durable only after a sync. `quorum-state` is
written while other events run. After a vote or a new epoch, the node executes further outputs only when the
vote or epoch is durable.
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
from kwire.broker.raft.positions import EndOfEpoch, check_fetch_position
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.terms import Terms
from kwire.broker.raft.voters import KRAFT_VERSIONS, ReplicaKey, VoterSet, address_of, endpoints_of
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC, METADATA_TOPIC_ID
from kwire.host.host import InternodeTime, PeerAddress, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import fetch, fetch_snapshot
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from kwire.wire.messages.fetch import FetchRequest, FetchResponse
from kwire.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from kwire.wire.schema import Message
from simulation.quorum.log import Batch, SavedSnapshot, SimulatedLog

Reply = Callable[[Message], None]

MAX_BATCHES = 16
"""The maximum number of batches in a Fetch response."""
SNAPSHOT_CHUNKS = 3
"""The number of FetchSnapshot responses that a snapshot takes."""


class NodeEnvironment(Protocol):
    """The interface of the simulation that a node uses."""

    rng: random.Random

    def now_ms(self) -> int: ...
    def schedule(self, node: SimulatedNode, delay_ms: int, act: Callable[[], None]) -> None:
        """Call `act` after a delay on the node's clock, unless the node crashes before that."""

    def send(self, node: SimulatedNode, send: outputs.Send) -> None: ...
    def log_node(self, node: SimulatedNode, text: str) -> None: ...
    def decode_batches(self, records: bytes) -> list[Batch]: ...
    def encode_batches(self, batches: list[Batch]) -> bytes: ...
    def find_snapshot(self, snapshot: Snapshot) -> SavedSnapshot: ...
    def before_output(self, node: SimulatedNode, output: Output) -> None:
        """Check an output of the state machine before the node executes it."""

    def on_append(self, node: SimulatedNode, batch: Batch, prev_epoch: int) -> None: ...
    def on_leader_visible(self, node: SimulatedNode) -> None:
        """Note that other nodes may now see this node as leader."""

    def on_node_failure(self, node: SimulatedNode, reason: str) -> None: ...


class _DelayedFetch(NamedTuple):
    request: FetchRequest
    reply: Reply
    role: QuorumRole


class DiskLatency(NamedTuple):
    """The minimum and maximum latencies of a disk."""

    min_ms: int
    max_ms: int


class SimulatedNode:
    """A node with one metadata log directory. The object stays the same when the node restarts."""

    def __init__(
        self,
        environment: NodeEnvironment,
        terms: Terms,
        static: VoterSet,
        *,
        disk: DiskLatency,
        speed: float,
        knows_pre_vote: bool,
    ) -> None:
        self.terms = terms
        self.key = terms.key
        self.log = SimulatedLog(static)
        self.static = static
        self.machine: Machine
        self.incarnation = 0
        self.is_up = False
        self.failed = ""
        self.disk = disk
        self.speed = speed
        self.knows_pre_vote = knows_pre_vote
        self.quorum_state = QuorumState()
        """The durable content of quorum-state."""
        self.committed = 0
        """The high watermark when this process started, or when it last installed a snapshot."""
        self._environment = environment
        self._queue: deque[Output] = deque()
        self._pending_states: list[tuple[int, QuorumState]] = []
        self._state_in_flight: QuorumState | None = None
        self._last_state_number = self._durable_state_number = self._awaited_state_number = 0
        """The numbers of three states: the last requested state, the last durable state, and the last state
        that must be durable before the node executes further outputs."""
        self._syncing_to: int | None = None
        self._delayed_fetches: list[_DelayedFetch] = []
        self._held_requests: list[tuple[Message, Reply]] = []
        self._fetched_snapshot: SavedSnapshot | None = None
        self._tick_at_ms: InternodeTime | None = None
        self.last_logged: object = None
        """The role, epoch and leader in the node's last line of the transcript."""

    def __str__(self) -> str:
        return f"n{self.key.replica_id}.{self.key.directory_id[-1]}"

    @property
    def local_ms(self) -> InternodeTime:
        """The time on the node's clock."""
        return InternodeTime(round(self._environment.now_ms() * self.speed))

    @property
    def address(self) -> PeerAddress:
        found = address_of(endpoints_of(self.terms.endpoints), self.terms.listener)
        assert found is not None
        return found

    def describe(self) -> str:
        """Return the node's state for the transcript."""
        log, machine = self.log, self.machine
        return (
            f"{machine.role.name.lower()} ({machine.stage.name.lower()}) in {machine.epoch}: log from "
            f"{log.start_offset} to {log.synced_offset}, {log.end_offset} of epoch {log.last_epoch}, "
            f"committed {log.high_watermark}, {log.voters} at {log.voters_offset}, "
            f"due {machine.due_ms} at {self.local_ms}"
        )

    # --- crashes and restarts

    def start(self) -> None:
        self.incarnation += 1
        self.is_up = True
        self.committed = self.log.high_watermark
        self.machine = Machine(
            self.terms,
            self.log,
            random.Random(self._environment.rng.random()),
            remembered=self.quorum_state,
            now_ms=self.local_ms,
        )
        self._handle(lambda: self.machine.start(self.local_ms))

    def crash(self, rng: random.Random, *, loses_power: bool) -> None:
        """Crash the node. A power loss may remove unsynced data; a kill does not."""
        self.is_up = False
        self._queue.clear()
        self._delayed_fetches.clear()
        self._held_requests.clear()
        self._fetched_snapshot, self._syncing_to, self._tick_at_ms = None, None, None
        states = [self._state_in_flight] if self._state_in_flight is not None else []
        if states and rng.random() < 0.5:
            self.quorum_state = states[0]
        self._state_in_flight = None
        self._pending_states.clear()
        self._durable_state_number = self._awaited_state_number = self._last_state_number
        kept_offset = self.log.end_offset
        if loses_power:
            if self.log.awaits_sync and rng.random() < 0.5:
                self.log.undo_unsynced()
            ends = [one.end_offset for one in self.log.batches if one.end_offset >= self.log.synced_offset]
            kept_offset = rng.choice([self.log.synced_offset, *ends])
        self.log.crash(kept_offset, self.static)

    # --- driving the state machine

    def _handle(self, act: Callable[[], list[Output]]) -> None:
        """Run an event and the timers that are due, and execute their outputs."""
        if not self.is_up or self.failed:
            return
        self._enqueue(act())
        for _ in range(50):
            due_ms = self.machine.due_ms
            if not self.is_up or due_ms is None or due_ms > self.local_ms or self.failed:
                break
            self._enqueue(self.machine.tick(self.local_ms))
        else:
            raise AssertionError(f"{self} has timers that stay due as {self.machine.role.name}")
        self._serve_delayed_fetches()
        due_ms = self.machine.due_ms
        if self.is_up and due_ms is not None and due_ms != self._tick_at_ms:
            self._tick_at_ms = due_ms
            delay_ms = due_ms - self.local_ms
            self._environment.schedule(self, delay_ms, lambda: self._on_tick(due_ms))

    def _on_tick(self, due_ms: InternodeTime) -> None:
        if self._tick_at_ms == due_ms:
            self._tick_at_ms = None
            self._handle(list)

    def _enqueue(self, done: list[Output]) -> None:
        self._queue.extend(done)
        self._drain()

    def _drain(self) -> None:
        while self._queue and self.is_up and not self.failed:
            if self._awaits_durable_state:
                return
            output = self._queue.popleft()
            self._environment.before_output(self, output)
            self._execute(output)

    @property
    def _awaits_durable_state(self) -> bool:
        """Whether outputs wait until a vote or an epoch in quorum-state is durable."""
        return self._awaited_state_number > self._durable_state_number

    def _execute(self, output: Output) -> None:
        environment, log, machine = self._environment, self.log, self.machine
        match output:
            case outputs.Send():
                environment.send(self, output)
            case outputs.Respond():
                assert callable(output.requester)
                output.requester(output.response)
            case outputs.Remember():
                self._remember(output)
            case outputs.AppendControls():
                if machine.role is QuorumRole.LEADER and machine.epoch == output.epoch:
                    offset = self._append(Batch(log.end_offset, output.epoch, tuple(output.controls)))
                    self._queue.extendleft(reversed(machine.controls_appended(offset, self.local_ms)))
            case outputs.Append():
                assert machine.role is not QuorumRole.LEADER
                for batch in environment.decode_batches(bytes(output.records)):
                    self._append(batch)
            case outputs.Truncate():
                assert machine.role is not QuorumRole.LEADER, "a leader truncates its log"
                assert output.offset >= log.high_watermark
                environment.log_node(self, f"truncates from {log.end_offset} to {output.offset}")
                assert self._syncing_to is None
                log.truncate(output.offset)
                self._sync()
            case outputs.Advance():
                log.advance(output.high_watermark)
            case outputs.BeginSnapshot():
                self._fetched_snapshot = environment.find_snapshot(output.snapshot)
            case outputs.AddToSnapshot() | outputs.Tell() | outputs.Reached():
                pass  # connections of this network have no backoff
            case outputs.DropSnapshot():
                self._fetched_snapshot = None
            case outputs.Install():
                environment.schedule(self, self._disk_ms(), self._install)
            case outputs.Unlead():
                pass
            case outputs.Complain():
                environment.log_node(self, f"warns: {output.text}")
            case outputs.Fail():
                self.failed = output.reason
                environment.on_node_failure(self, output.reason)
            case _:
                assert_never(output)

    # --- the disk

    def _disk_ms(self) -> int:
        return self._environment.rng.randint(self.disk.min_ms, self.disk.max_ms)

    def _remember(self, output: outputs.Remember) -> None:
        self._last_state_number += 1
        if output.is_promise:
            self._awaited_state_number = self._last_state_number
        self._pending_states = [(self._last_state_number, output.state)]
        if self._state_in_flight is None:
            self._write_state()

    def _write_state(self) -> None:
        if not self._pending_states:
            return
        [(number, state)] = self._pending_states
        self._pending_states, self._state_in_flight = [], state

        def written() -> None:
            self.quorum_state, self._state_in_flight, self._durable_state_number = state, None, number
            self._write_state()
            self._handle(self._resume_outputs)
            if not self._awaits_durable_state:
                held, self._held_requests = self._held_requests, []
                for request, reply in held:
                    self.receive(request, reply)

        self._environment.schedule(self, self._disk_ms(), written)

    def _resume_outputs(self) -> list[Output]:
        self._drain()
        return []

    def _append(self, batch: Batch) -> int:
        self._environment.on_append(self, batch, self.log.epoch_at(self.log.end_offset))
        self.log.append(batch)
        self._sync()
        return batch.base_offset

    def _sync(self) -> None:
        """Sync the log up to its end. Only one sync runs at a time."""
        log = self.log
        is_durable = not self.terms.may_vote or log.synced_offset >= log.end_offset
        if self._syncing_to is not None or (is_durable and not log.awaits_sync):
            return
        self._syncing_to = log.end_offset

        def synced() -> None:
            offset, self._syncing_to = self._syncing_to, None
            assert offset is not None
            log.synced_offset = max(log.synced_offset, min(offset, log.end_offset))
            log.awaits_sync = False
            self._sync()
            self._handle(lambda: self.machine.synced(offset, self.local_ms))

        self._environment.schedule(self, self._disk_ms(), synced)

    def _install(self) -> None:
        if self._fetched_snapshot is not None:
            self._environment.log_node(self, f"installs snapshot {self._fetched_snapshot.snapshot}")
            assert self._syncing_to is None
            self.log.install(self._fetched_snapshot)
            self._sync()
            self._fetched_snapshot = None
            self.committed = max(self.committed, self.log.high_watermark)

        def installed() -> list[Output]:
            self.machine.installed(self.local_ms)
            return []

        self._handle(installed)

    # --- requests and responses

    def propose(self, command: str) -> int | None:
        """Append a command and return its offset, or None if this node cannot append a command now.

        The node must be leader, have records of its epoch, and have executed all outputs.
        """
        if not self.is_up or self.failed or self._queue or self.machine.role is not QuorumRole.LEADER:
            return None
        machine, log = self.machine, self.log
        if log.last_epoch != machine.epoch:
            return None
        offset = self._append(Batch(log.end_offset, machine.epoch, (), command))
        self._handle(list)
        return offset

    def receive(self, request: Message, reply: Reply) -> None:
        """Handle a request from another node."""
        if not self.is_up or self.failed:
            return
        if self._awaits_durable_state and isinstance(request, FetchRequest | FetchSnapshotRequest):
            self._held_requests.append(
                (request, reply)
            )  # a response could reveal a vote or an epoch before it is durable
        elif isinstance(request, FetchRequest):
            self._serve_fetch(_DelayedFetch(request, reply, self.machine.role), may_delay=True)
        elif isinstance(request, FetchSnapshotRequest):
            reply(self._serve_snapshot_fetch(request))
        elif isinstance(request, ApiVersionsRequest):
            low, high = KRAFT_VERSIONS
            feature = SupportedFeatureKey(name=KRAFT_VERSION, min_version=low, max_version=high)
            reply(ApiVersionsResponse(api_keys=[], supported_features=[feature]))
        else:
            self._handle(lambda: self.machine.handle_request(request, reply, self.local_ms, api_version=1))

    def receive_response(self, number: int, response: Message | PeerUnreachable) -> None:
        """Handle the response to a request of this node, or the failure of the request."""
        self._handle(lambda: self.machine.handle_response(number, response, self.local_ms))

    def run_on_machine(self, act: Callable[[Machine], list[Output]]) -> None:
        """Call `act` with the state machine, and execute the outputs that `act` returns."""
        self._handle(lambda: act(self.machine))

    # --- serving the log

    def _leader_and_epoch(self) -> tuple[int, int]:
        return self.machine.leader_id, self.machine.epoch

    def _epoch_error(self, epoch: int) -> ErrorCode:
        machine = self.machine
        if epoch != machine.epoch:
            is_behind = epoch < machine.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if machine.role is QuorumRole.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _serve_fetch(self, delayed: _DelayedFetch, *, may_delay: bool) -> bool:
        """Respond to a Fetch request or delay it. Returns whether the node has responded."""
        request = delayed.request
        [partition] = request.topics[0].partitions
        code = self._epoch_error(partition.current_leader_epoch)
        if code == ErrorCode.NONE:
            self._environment.on_leader_visible(self)
        elif may_delay:
            self._handle(lambda: self.machine.heard_from(request.replica_state.replica_id))
        data = fetch.PartitionData(partition_index=0, error_code=code, high_watermark=-1, records=b"")
        is_enough = code != ErrorCode.NONE
        if code == ErrorCode.NONE:
            log = self.log
            other = check_fetch_position(log, partition.fetch_offset, partition.last_fetched_epoch)
            if isinstance(other, EndOfEpoch):
                data.diverging_epoch = fetch.EpochEndOffset(epoch=other.epoch, end_offset=other.end_offset)
            elif isinstance(other, Snapshot):
                data.snapshot_id = fetch.SnapshotId(end_offset=other.end_offset, epoch=other.epoch)
            else:
                key = ReplicaKey(request.replica_state.replica_id, partition.replica_directory_id)
                if may_delay:
                    self._handle(lambda: self.machine.fetched_by(key, partition.fetch_offset, self.local_ms))
                data.records = self._environment.encode_batches(log.read(partition.fetch_offset, MAX_BATCHES))
            data.high_watermark = self.machine.high_watermark
            is_enough = (
                other is not None or bool(data.records) or data.high_watermark > partition.high_watermark
            )
            if self._epoch_error(partition.current_leader_epoch) != ErrorCode.NONE:
                is_enough = False  # the role or epoch has changed since
        leader_id, epoch = self._leader_and_epoch()
        data.current_leader = fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)
        if not is_enough and may_delay:
            self._delayed_fetches.append(delayed)
            self._environment.schedule(self, request.max_wait_ms, lambda: self._on_fetch_expired(delayed))
            return False
        if not is_enough and delayed in self._delayed_fetches:
            return False
        delayed.reply(
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

    def _serve_delayed_fetches(self) -> None:
        if self._awaits_durable_state:
            return
        self._delayed_fetches = [
            delayed for delayed in self._delayed_fetches if not self._serve_fetch(delayed, may_delay=False)
        ]

    def _on_fetch_expired(self, delayed: _DelayedFetch) -> None:
        if delayed in self._delayed_fetches and not self._awaits_durable_state:
            self._delayed_fetches.remove(delayed)
            self._serve_fetch(delayed, may_delay=False)

    def _serve_snapshot_fetch(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        [partition] = request.topics[0].partitions
        code = self._epoch_error(partition.current_leader_epoch)
        leader_id, epoch = self._leader_and_epoch()
        data = fetch_snapshot.ResponsePartitionSnapshot(
            index=0, error_code=code, unaligned_records=b"",
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=0, epoch=0),
            current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        )  # fmt: skip
        if code == ErrorCode.NONE:
            snapshot = Snapshot(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
            found = [one for one in self.log.snapshots if one.snapshot == snapshot]
            if not found:
                data.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
            else:
                size = found[0].size
                data.snapshot_id = partition.snapshot_id
                data.size, data.position = size, partition.position
                data.unaligned_records = bytes(min(-(-size // SNAPSHOT_CHUNKS), size - partition.position))
                key = ReplicaKey(request.replica_id, partition.replica_directory_id)
                self.machine.loaded_by(key, self.local_ms)
        return FetchSnapshotResponse(
            topics=[fetch_snapshot.ResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[data])],
            node_endpoints=[
                fetch_snapshot.NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port)
                for one in self._endpoints(fetch.NodeEndpoint)
            ],
        )
