"""The run of one seed: the nodes, their network, the injected faults, and the convergence afterwards.

Within a limited time after the last fault, the quorum must elect a leader, the leader must commit a command,
and every node must receive the command.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from kwire.broker.raft import outputs
from kwire.broker.raft.outputs import Output
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.snapshots import Snapshot
from kwire.broker.raft.terms import Terms
from kwire.broker.raft.voters import KRAFT_VERSIONS, ReplicaKey, Voter, VoterSet, endpoints_of
from kwire.host.host import PeerAddress, PeerTooOld, PeerUnreachable
from kwire.testing.simulated.violation import Violation
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.vote import VoteRequest, VoteResponse
from kwire.wire.primitives import ZERO_UUID, Uuid
from kwire.wire.records.raft import Endpoint
from kwire.wire.schema import Message
from simulation.quorum.fault_injector import QuorumFaultInjector
from simulation.quorum.invariants import Invariants
from simulation.quorum.log import Batch, SavedSnapshot
from simulation.quorum.node import DiskLatency, SimulatedNode

CLUSTER_ID: Final = "c2ltdWxhdGVkIHF1b3J1bQ"
LISTENER: Final = "CONTROLLER"
ELECTION_TIMEOUT_MS: Final = 300
FETCH_TIMEOUT_MS: Final = 600
LATE_START_MS: Final = 4_000
"""The time at which a node starts that misses the first elections."""
FAULTS_MS: Final = 8_000
"""The part of a run in which faults are injected."""
CONVERGENCE_MS: Final = 10_000
"""The time after the last fault in which the quorum must converge."""
MAX_EVENTS: Final = 200_000


def directory_id(node_id: int, number: int) -> Uuid:
    return Uuid(bytes([*[0] * 13, node_id, 0, 1 + number]))


class History:
    """A run of the simulation, with its transcript."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.transcript: list[str] = []
        self.nodes: dict[int, SimulatedNode] = {}
        """The nodes by id. A node whose directory was replaced is a new object."""
        self.is_dynamic = self.rng.random() < 0.7
        self.invariants = Invariants(self._find_node, FETCH_TIMEOUT_MS)
        self._seed = seed
        self._now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._batches: list[Batch] = []
        self._snapshots: dict[Snapshot, SavedSnapshot] = {}
        self.starts_ms: dict[int, float] = {}
        """The time of the first start of each node."""
        self._commands = count()
        self.faults = QuorumFaultInjector(self)
        self._make_nodes()
        self._start_nodes()

    # --- setup

    def _make_nodes(self) -> None:
        rng = self.rng
        voters = list(range(1, 1 + rng.choice([1, 2, 3, 3, 3, 3, 4, 5, 5, 7])))
        others = list(range(len(voters) + 1, len(voters) + 1 + rng.choice([0, 1, 1, 2, 3])))
        self.static = VoterSet()
        if not self.is_dynamic:
            self.static = VoterSet.of_addresses({one: PeerAddress(f"n{one}", 1) for one in voters}, LISTENER)
        self.auto_joins = self.is_dynamic and rng.random() < 0.3
        self._ids = [*voters, *others]
        for node_id in self._ids:
            may_vote = node_id in voters or (self.is_dynamic and rng.random() < 0.8)
            self.nodes[node_id] = self.make_node(node_id, 0, may_vote=may_vote)
        if self.is_dynamic:
            first = voters if rng.random() < 0.7 else voters[:1]
            saved = SavedSnapshot(
                Snapshot(0, 0), VoterSet(self.voter(self.nodes[one]) for one in first), KRAFT_VERSIONS[1], 3
            )
            for one in first:
                self.nodes[one].log.snapshots.append(saved)
                self.nodes[one].log.load(saved)
        kind = "dynamic" if self.is_dynamic else "static"
        self.log_event(f"{kind} quorum with voters {voters} and other nodes {others}")

    def _start_nodes(self) -> None:
        """Start the nodes together or one after another. One node may start late, long after the others."""
        rng = self.rng
        longest_ms = rng.choice([0, 0, 30, 300, 1_000])
        late = rng.choice([None, None, *self._ids])
        for node in self.nodes.values():
            delay_ms = LATE_START_MS if node.key.replica_id == late else rng.uniform(0, longest_ms)
            self.starts_ms[node.key.replica_id] = delay_ms
            self.run_after(delay_ms, partial(self.faults.start_node, node))

    def voter(self, node: SimulatedNode) -> Voter:
        return Voter(node.key, endpoints_of(node.terms.endpoints), *KRAFT_VERSIONS)

    def make_node(self, node_id: int, number: int, *, may_vote: bool, port: int = 1) -> SimulatedNode:
        rng = self.rng
        terms = Terms(
            node_id=node_id,
            directory_id=directory_id(node_id, number),
            cluster_id=CLUSTER_ID,
            servers=[PeerAddress(f"n{one}", 1) for one in self._ids],
            may_vote=may_vote,
            listener=LISTENER,
            endpoints=[Endpoint(name=LISTENER, host=f"n{node_id}", port=port)],
            auto_join=self.auto_joins,
            election_timeout_ms=ELECTION_TIMEOUT_MS,
            election_backoff_max_ms=ELECTION_TIMEOUT_MS,
            fetch_timeout_ms=FETCH_TIMEOUT_MS,
            request_timeout_ms=FETCH_TIMEOUT_MS,
            retry_backoff_ms=20,
            fetch_max_bytes=1 << 20,
            snapshot_max_bytes=1 << 20,
            missing_rights="",
        )
        disk = DiskLatency(0, 3) if rng.random() < 0.7 else DiskLatency(5, rng.choice([60, 200]))
        speed = rng.choice([1.0, 1.0, 1.0, 0.8, 1.25])
        knows_pre_vote = rng.random() < 0.95
        return SimulatedNode(self, terms, self.static, disk=disk, speed=speed, knows_pre_vote=knows_pre_vote)

    def _find_node(self, key: ReplicaKey) -> SimulatedNode | None:
        node = self.nodes.get(key.replica_id)
        return node if node is not None and key.directory_id in (ZERO_UUID, node.key.directory_id) else None

    # --- NodeEnvironment

    def now_ms(self) -> int:
        return round(self._now_ms)

    def schedule(self, node: SimulatedNode, delay_ms: int, act: Callable[[], None]) -> None:
        incarnation = node.incarnation

        def now() -> None:
            if node.incarnation == incarnation and node.is_up and self.nodes.get(node.key.replica_id) is node:
                act()
                self._check(node)

        # Despite rounding, the event must not run before the node's own clock has reached the time.
        self.run_at(self._now_ms + (max(0, delay_ms) + (node.speed != 1.0)) / node.speed, now)

    def run_at(self, when_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._order), act))

    def run_after(self, delay_ms: float, act: Callable[[], None]) -> None:
        self.run_at(self._now_ms + delay_ms, act)

    def send(self, node: SimulatedNode, send: outputs.Send) -> None:
        is_pending = True
        incarnation = node.incarnation

        def complete(response: Message | PeerUnreachable) -> None:
            nonlocal is_pending
            if is_pending and node.incarnation == incarnation and node.is_up:
                is_pending = False
                node.receive_response(send.number, response)
                self._check(node)

        timeout_ms = send.deadline_ms - node.local_ms
        self.schedule(node, timeout_ms, lambda: complete(PeerUnreachable("request timeout")))
        other = self.nodes.get(int(send.to.host[1:]))
        request = send.request
        if other is None:
            return
        is_pre_vote = isinstance(request, VoteRequest) and request.topics[0].partitions[0].pre_vote
        if is_pre_vote and not other.knows_pre_vote:
            self.deliver(node, other, lambda: complete(PeerTooOld("no pre-votes")))
            return

        def reply(response: Message) -> None:
            if isinstance(response, VoteResponse):
                assert isinstance(request, VoteRequest)
                self.invariants.on_vote(other, request, response)
                self.faults.maybe_cut_power(other)
            self.deliver(other, node, lambda: complete(response))

        def arrive() -> None:
            receiver = self.nodes.get(other.key.replica_id)
            if receiver is not other or not other.is_up:
                self.deliver(other, node, lambda: complete(PeerUnreachable("connection refused")))
                return
            if isinstance(request, FetchRequest):
                self.invariants.on_fetch(other, node.key.replica_id, other.local_ms)
            other.receive(request, reply)
            self._check(other)

        self.deliver(node, other, arrive)

    def deliver(self, sender: SimulatedNode, receiver: SimulatedNode, arrive: Callable[[], None]) -> None:
        """Call `arrive` when a message arrives. The network may lose, delay or duplicate the message."""
        for delay_ms in self.faults.delays_ms(sender.key.replica_id, receiver.key.replica_id):
            self.run_after(delay_ms, arrive)

    def log_node(self, node: SimulatedNode, text: str) -> None:
        self.log_event(f"{node} {text}")

    def log_event(self, text: str) -> None:
        self.transcript.append(f"{self.now_ms():6} {text}")

    def decode_batches(self, records: bytes) -> list[Batch]:
        positions = range(0, len(records), 4)
        return [
            self._batches[int.from_bytes(records[position : position + 4], "big")] for position in positions
        ]

    def encode_batches(self, batches: list[Batch]) -> bytes:
        first = len(self._batches)
        self._batches.extend(batches)
        return b"".join(position.to_bytes(4, "big") for position in range(first, len(self._batches)))

    def find_snapshot(self, snapshot: Snapshot) -> SavedSnapshot:
        return self._snapshots[snapshot]

    def on_snapshot(self, saved: SavedSnapshot) -> None:
        known = self._snapshots.setdefault(saved.snapshot, saved)
        if known._replace(size=saved.size) != saved:
            raise Violation(f"{saved} and {known} differ, but have the same id")

    def before_output(self, node: SimulatedNode, output: Output) -> None:
        self.invariants.before_output(node, output)
        if isinstance(output, outputs.Truncate | outputs.Install):
            self.faults.maybe_cut_power(node)

    def on_append(self, node: SimulatedNode, batch: Batch, prev_epoch: int) -> None:
        self.invariants.on_append(node, batch, prev_epoch)
        if batch.controls and node.machine.role is QuorumRole.LEADER:
            self.log_node(node, f"appends {batch} for {node.log.voters}")

    def on_leader_visible(self, node: SimulatedNode) -> None:
        self.invariants.on_leader_visible(node)

    def on_node_failure(self, node: SimulatedNode, reason: str) -> None:
        raise Violation(f"{node} failed: {reason}")

    def _check(self, node: SimulatedNode) -> None:
        machine = node.machine
        shown = (machine.role, machine.epoch, machine.leader_id)
        if node.last_logged != shown:
            node.last_logged = shown
            if machine.role is QuorumRole.LEADER:
                self.faults.maybe_cut_power(node)
            self.log_node(
                node, f"{machine.role.name.lower()} in epoch {machine.epoch}, leader {machine.leader_id}"
            )
        self.invariants.check(node, node.local_ms)

    # --- the run

    @property
    def leader(self) -> SimulatedNode | None:
        """The leader with the latest epoch, or None if no node is leader."""
        leading = [
            node for node in self.nodes.values() if node.is_up and node.machine.role is QuorumRole.LEADER
        ]
        return max(leading, key=lambda node: node.machine.epoch, default=None)

    def propose(self) -> None:
        """Append a command on every node that considers itself leader."""
        for node in self.nodes.values():
            if node.propose(f"c{next(self._commands)}") is not None:
                self._check(node)

    def run(self) -> None:
        """Run the simulation. Raises Violation, or an error that a node must not raise."""
        self._keep_proposing()
        self.faults.start(FAULTS_MS)
        self.run_until(FAULTS_MS, lambda: False)
        self.log_event("no more faults")
        self.faults.heal()
        self.run_until(FAULTS_MS + CONVERGENCE_MS, self._has_converged)
        if not self._has_converged():
            for node in self.nodes.values():
                self.log_node(node, node.describe())
            raise Violation(
                f"not converged {CONVERGENCE_MS} ms after the last fault: {self._why_not_converged()}"
            )
        self.log_event(f"converged with committed offset {self.invariants.committed_offset}")

    def _keep_proposing(self) -> None:
        self.propose()
        is_over = self._now_ms > FAULTS_MS  # nodes with slow disks must be able to catch up
        self.run_after(150 if is_over else self.rng.choice([15, 40, 120]), self._keep_proposing)

    def run_until(self, end_ms: int, is_enough: Callable[[], bool]) -> None:
        """Run events until `end_ms`, or until `is_enough` returns True after some event."""
        for number in range(MAX_EVENTS):
            if not self._events or self._events[0][0] > end_ms or (number % 20 == 0 and is_enough()):
                self._now_ms = max(self._now_ms, min(end_ms, self._events[0][0] if self._events else end_ms))
                return
            self._now_ms, _, act = heapq.heappop(self._events)
            act()
        raise Violation(f"more than {MAX_EVENTS} events")

    def _has_converged(self) -> bool:
        return not self._why_not_converged()

    def _why_not_converged(self) -> str:
        leader = self.leader
        if leader is None:
            return "no leader"
        if leader.log.epoch_at(leader.log.high_watermark) != leader.machine.epoch:
            return f"{leader} has committed nothing in its epoch"
        for node in self.nodes.values():
            if not node.is_up or (node.machine.epoch, node.machine.leader_id) != (
                leader.machine.epoch,
                leader.key.replica_id,
            ):
                return f"{node} does not follow {leader}"
            if node.log.high_watermark < leader.log.high_watermark - 10:
                return f"{node} is behind {leader}"
        return ""
