"""Conditions that a quorum must meet after every event: the properties of Raft, and more.

- Election safety: an epoch has at most one leader. No node votes for two candidates in one epoch, even after
  a restart.
- Leader append-only: a leader never truncates, and appends only in its epoch.
- Log matching: two logs with the same epoch at an offset are equal up to this offset.
- Leader completeness: a leader has all records that earlier leaders have committed.
- State machine safety: committed records are the same on every node.
- Records that a leader commits are durable on a majority of its voters. Its high watermark never decreases.
- Voter changes: consecutive voter sets have overlapping majorities.
- A node starts a new epoch only after a majority has granted pre-votes.
- A leader resigns if a majority no longer fetches.
"""

from __future__ import annotations

from collections.abc import Callable

from kwire.broker.raft import outputs
from kwire.broker.raft.outputs import Output
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.voters import ReplicaKey, VoterSet
from kwire.host.host import InternodeTime
from kwire.testing.simulated.violation import Violation
from kwire.wire.messages.vote import VoteRequest, VoteResponse
from kwire.wire.plural import plural
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.records.raft import VotersRecord
from simulation.quorum.log import Batch
from simulation.quorum.node import SimulatedNode


class GrantedVotes:
    """The granted votes and pre-votes of all epochs."""

    def __init__(self) -> None:
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.pre_votes: dict[tuple[ReplicaKey, int], set[ReplicaKey]] = {}


class Invariants:
    """The checks, with access to all nodes."""

    def __init__(
        self, find_node: Callable[[ReplicaKey], SimulatedNode | None], fetch_timeout_ms: int
    ) -> None:
        self.leaders: dict[int, ReplicaKey] = {}
        self.committed: list[Batch] = []
        """The batches that leaders have committed, in offset order."""
        self.committed_offset = 0
        self.wiped_nodes: dict[ReplicaKey, SimulatedNode] = {}
        """Nodes whose directories were replaced, by their previous replica keys."""
        self._committed_by_epoch: list[tuple[int, int]] = []
        """The end offsets up to which leaders have committed, and the epochs of these leaders."""
        self._find_node = find_node
        self._fetch_timeout_ms = fetch_timeout_ms
        self._batches: dict[tuple[int, int], tuple[Batch, int]] = {}
        self._granted = GrantedVotes()
        self._last_state: dict[ReplicaKey, tuple[int, QuorumRole, int]] = {}
        self._last_fetch_ms: dict[ReplicaKey, dict[int, InternodeTime]] = {}
        self._leader_since_ms: dict[ReplicaKey, InternodeTime] = {}
        self._leader_voters: dict[ReplicaKey, VoterSet] = {}

    # --- events of nodes

    def before_output(self, node: SimulatedNode, output: Output) -> None:
        """Check an output of the state machine before the node executes it."""
        if isinstance(output, outputs.Advance):
            self._advance(node, output.high_watermark)
        elif isinstance(output, outputs.AppendControls) and node.machine.epoch == output.epoch:
            self.on_leader_visible(node)
        elif isinstance(output, outputs.Send) and isinstance(output.request, VoteRequest):
            requested = output.request.topics[0].partitions[0]
            if not requested.pre_vote:  # a candidate also votes for itself
                self._vote(node.key, requested.replica_epoch, node.key)

    def on_vote(self, voter: SimulatedNode, request: VoteRequest, response: VoteResponse) -> None:
        """Check a voter's response to a Vote request, and record a granted vote."""
        if response.error_code or not response.topics:
            return
        requested, granted = request.topics[0].partitions[0], response.topics[0].partitions[0]
        if not granted.vote_granted:
            return
        candidate = ReplicaKey(requested.replica_id, requested.replica_directory_id)
        if requested.pre_vote:
            self._granted.pre_votes.setdefault((candidate, requested.replica_epoch), set()).add(voter.key)
        else:
            self._vote(voter.key, requested.replica_epoch, candidate)

    def _vote(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        given = self._granted.votes.setdefault((voter, epoch), candidate)
        if given != candidate:
            raise Violation(f"{voter} votes in epoch {epoch} for {candidate}, after a vote for {given}")

    def on_append(self, node: SimulatedNode, batch: Batch, prev_epoch: int) -> None:
        """Check an append. `prev_epoch` is the epoch of the last record before the append."""
        machine = node.machine
        if machine.role is QuorumRole.LEADER and batch.epoch != machine.epoch:
            raise Violation(f"{node} is leader of epoch {machine.epoch} and appends {batch}")
        known, known_prev = self._batches.setdefault((batch.epoch, batch.base_offset), (batch, prev_epoch))
        if known != batch:
            raise Violation(f"{node} appends {batch}, but another log has {known} there")
        if -1 not in (known_prev, prev_epoch) and known_prev != prev_epoch:
            raise Violation(f"{node} appends {batch} after epoch {prev_epoch}, other logs after {known_prev}")
        for _, control in batch.controls:
            if isinstance(control, VotersRecord) and machine.role is QuorumRole.LEADER:
                self._check_change(node, VoterSet.of_record(control))

    def _check_change(self, node: SimulatedNode, voters: VoterSet) -> None:
        log = node.log
        before = log.voters
        if log.kraft_version > 0 and not before.overlaps(voters):
            raise Violation(f"{node} changes voters from {before} to {voters}, without a common majority")
        if before.ids != voters.ids and log.voters_offset >= max(0, log.high_watermark):
            raise Violation(f"{node} changes voters to {voters}, but {before} is not committed")

    def _advance(self, node: SimulatedNode, offset: int) -> None:
        log = node.log
        end_offset = min(offset, log.end_offset)
        if node.machine.role is not QuorumRole.LEADER:
            if end_offset > self.committed_offset:
                raise Violation(f"{node} has the high watermark {end_offset}, which no leader has committed")
        elif end_offset < log.high_watermark:
            raise Violation(f"the high watermark of {node} decreases from {log.high_watermark} to {offset}")
        else:
            self._check_majority(node, end_offset)
        self._check_committed(node, end_offset)

    def _check_majority(self, leader: SimulatedNode, offset: int) -> None:
        epoch = leader.log.epoch_at(offset)
        durable = 0
        for voter in leader.log.voters:
            key = voter.key
            node = self._find_node(key) or self.wiped_nodes.get(key)  # wiped directories count, too
            if node is None or node.log.synced_offset < offset:
                continue
            there = node.log.epoch_at(offset)
            durable += there == epoch or (there < 0 and node.log.start_offset >= offset)
        if durable < leader.log.voters.majority:
            raise Violation(
                f"{leader} commits {offset} with {durable} of {plural(len(leader.log.voters), 'voter')}"
            )

    def _check_committed(self, node: SimulatedNode, offset: int) -> None:
        """Check that the node's batches before `offset` are the batches that leaders have committed."""
        if offset > self.committed_offset:
            for batch in node.log.read(self.committed_offset, offset - self.committed_offset):
                if batch.end_offset <= offset:
                    self.committed.append(batch)
                    self.committed_offset = batch.end_offset
                    self._committed_by_epoch.append((batch.end_offset, node.machine.epoch))
        last = next((batch for batch in reversed(node.log.batches) if batch.end_offset <= offset), None)
        if last is not None and last != self._committed_at(last.base_offset):
            raise Violation(
                f"{node} has {last} committed, other nodes {self._committed_at(last.base_offset)}"
            )

    def _committed_at(self, base_offset: int) -> Batch | None:
        low, high = 0, len(self.committed)
        while low < high:
            middle = (low + high) // 2
            if self.committed[middle].base_offset < base_offset:
                low = middle + 1
            else:
                high = middle
        return self.committed[low] if low < len(self.committed) else None

    def on_leader_visible(self, node: SimulatedNode) -> None:
        """Check that an epoch has only one leader. Called when other nodes can see the leader."""
        epoch = node.machine.epoch
        first = self.leaders.setdefault(epoch, node.key)
        if first != node.key:
            raise Violation(f"epoch {epoch} has two leaders, {first} and {node}")

    # --- after each event

    def check(self, node: SimulatedNode, local_ms: InternodeTime) -> None:
        """Check the node that has processed an event, at `local_ms` on the node's clock."""
        machine = node.machine
        was = self._last_state.get(node.key)
        now = (machine.epoch, machine.role, node.incarnation)
        if was == now:
            if machine.role is QuorumRole.LEADER:
                self._check_leader_is_followed(node, local_ms)
            return
        self._last_state[node.key] = now
        if was is not None and was[2] == node.incarnation and machine.epoch < was[0]:
            raise Violation(f"the epoch of {node} decreases from {was[0]} to {machine.epoch}")
        if machine.role is QuorumRole.LEADER:
            self._check_leader_completeness(node)
            self._leader_since_ms[node.key] = local_ms
            self._last_fetch_ms[node.key] = {}
        if machine.role in (QuorumRole.CANDIDATE, QuorumRole.LEADER) and (
            was is None or was[0] < machine.epoch
        ):
            self._check_candidate(node, machine.epoch)

    def _check_candidate(self, node: SimulatedNode, epoch: int) -> None:
        voters = node.log.voters
        would = self._granted.pre_votes.get((node.key, epoch - 1), set()) | {node.key}
        counted = sum(1 for voter in voters if any(voter.is_named(key) for key in would))
        knowing = [self._find_node(ReplicaKey(voter_id, ZERO_UUID)) for voter_id in voters.ids]
        if counted < voters.majority and all(one is None or one.knows_pre_vote for one in knowing):
            raise Violation(f"{node} begins epoch {epoch} with {counted} of {len(voters)} votes")

    def _check_leader_completeness(self, node: SimulatedNode) -> None:
        """Check that a leader has all records that earlier leaders have committed."""
        epoch = node.machine.epoch
        offset = max((end for end, by in self._committed_by_epoch if by < epoch), default=0)
        if node.log.end_offset < offset:
            raise Violation(
                f"{node} is leader of epoch {epoch} with {node.log.end_offset} of {plural(offset, 'record')}"
            )
        if offset > node.log.start_offset:
            last = next(batch for batch in reversed(node.log.batches) if batch.base_offset < offset)
            if last != self._committed_at(last.base_offset):
                raise Violation(f"{node} is leader of epoch {epoch} with {last}, unlike what is committed")

    def on_fetch(self, leader: SimulatedNode, voter_id: int, local_ms: InternodeTime) -> None:
        """Note that a voter has fetched from the leader, at `local_ms` on the leader's clock."""
        self._last_fetch_ms.setdefault(leader.key, {})[voter_id] = local_ms

    def _check_leader_is_followed(self, node: SimulatedNode, local_ms: InternodeTime) -> None:
        voters = node.log.voters
        needed = voters.majority - (voters.find(node.key) is not None)
        if needed <= 0:
            self._leader_since_ms[node.key] = local_ms
            return
        if self._leader_voters.get(node.key) != voters:  # the majority now depends on other voters
            self._leader_voters[node.key], self._leader_since_ms[node.key] = voters, local_ms
        heard, since_ms = self._last_fetch_ms[node.key], self._leader_since_ms[node.key]
        heard_ms = (max(since_ms, heard.get(voter_id, since_ms)) for voter_id in voters.ids)
        times = sorted(heard_ms, reverse=True)
        if local_ms - times[needed - 1] > 4 * self._fetch_timeout_ms:
            raise Violation(f"{node} stays leader without fetches for {local_ms - times[needed - 1]} ms")
