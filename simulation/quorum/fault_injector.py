"""Random faults of a simulated quorum: its network, its nodes, and changes of its voters."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kwire.broker.raft.machine import Machine
from kwire.broker.raft.outputs import Output
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.voters import Voter, VoterSet
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages import add_raft_voter as adding
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.wire.schema import Message
from simulation.quorum.invariants import Invariants
from simulation.quorum.log import SavedSnapshot
from simulation.quorum.node import SimulatedNode

Act = Callable[[], None]


class SimulatedQuorum(Protocol):
    """The interface of a simulated quorum that the fault injector uses."""

    rng: random.Random
    nodes: dict[int, SimulatedNode]
    is_dynamic: bool
    invariants: Invariants

    @property
    def leader(self) -> SimulatedNode | None: ...
    def run_after(self, delay_ms: float, act: Act) -> None: ...
    def log_event(self, text: str) -> None: ...
    def log_node(self, node: SimulatedNode, text: str) -> None: ...
    def on_snapshot(self, saved: SavedSnapshot) -> None: ...
    def voter(self, node: SimulatedNode) -> Voter: ...
    def make_node(self, node_id: int, number: int, *, may_vote: bool, port: int = 1) -> SimulatedNode: ...


class QuorumFaultInjector:
    """An injector of random faults into a quorum, from `start` until `heal`."""

    def __init__(self, history: SimulatedQuorum) -> None:
        self._history = history
        self._rng = history.rng
        self._blocked_links: set[tuple[int, int]] = set()
        """Links that lose every message, as (sender, receiver)."""
        rng = self._rng
        self._loss = rng.choice([0.0, 0.0, 0.02, 0.15])
        self._duplication = rng.choice([0.0, 0.05])
        self._slowest_ms = rng.choice([3, 10, 10, 60])
        self._pause_ms = rng.choice([60, 150, 400])
        self._targeted_crash_probability = rng.choice([0.0, 0.05, 0.2])
        self._is_over = False
        self._directory_counts: dict[int, int] = {}
        """The number of replaced directories of each node, by node id."""
        self._may_wipe = True
        acts: list[tuple[int, Act]] = [
            (8, self._crash),
            (5, self._block_links),
            (6, self._restore_links),
            (3, self._isolate),
            (4, self._snapshot),
            (2, self._resign),
            (2, self._stop),
            (1, self._wipe),
            *([(6, self._add), (5, self._remove), (1, self._remove_leader)] if history.is_dynamic else []),
            *([] if history.is_dynamic else [(4, self._upgrade)]),
        ]
        # Each run has only some kinds of faults, because with all kinds at once the quorum commits little.
        self._acts = [(weight * rng.choice([0.0, 0.3, 1.0, 3.0]), act) for weight, act in acts]
        self._acts.append((0.5, self._restore_links))

    # --- the network

    def delays_ms(self, sender: int, receiver: int) -> list[float]:
        """Return a delay for each delivered copy of a message; empty if the message is lost."""
        rng = self._rng
        if (sender, receiver) in self._blocked_links or rng.random() < self._loss:
            return []
        times = 2 if rng.random() < self._duplication else 1
        return [rng.uniform(0.2, self._slowest_ms) for _ in range(times)]

    def _block_links(self) -> None:
        ids = list(self._history.nodes)
        for _ in range(self._rng.randint(1, 3)):
            link = self._rng.choice(ids), self._rng.choice(ids)
            self._blocked_links.add(link)
            if self._rng.random() < 0.5:
                self._blocked_links.add(link[::-1])
        self._history.log_event(f"blocked links: {sorted(self._blocked_links)}")

    def _restore_links(self) -> None:
        self._blocked_links.clear()
        self._history.log_event("links are restored")

    def _isolate(self) -> None:
        """Block the links from and to one node, or one direction only. The leader is preferred."""
        leader = self._history.leader
        ids = list(self._history.nodes)
        alone = self._rng.choice(ids) if leader is None or self._rng.random() < 0.4 else leader.key.replica_id
        one_way = self._rng.random()
        for other in ids:
            if one_way < 0.7:
                self._blocked_links.add((alone, other))
            if one_way > 0.3:
                self._blocked_links.add((other, alone))
        self._history.log_event(f"n{alone} is disconnected")

    # --- nodes

    def start(self, until_ms: int) -> None:
        """Inject faults from now on, until `heal` is called. `until_ms` has no effect."""

        def act() -> None:
            if self._is_over:
                return
            chosen = self._rng.choices([one for _, one in self._acts], [weight for weight, _ in self._acts])
            chosen[0]()
            self._history.run_after(self._rng.uniform(0.3, 1.7) * self._pause_ms, act)

        self._history.run_after(self._pause_ms, act)

    def stop(self) -> None:
        """Inject no more faults, and restore the network."""
        self._is_over = True
        self._blocked_links.clear()
        self._loss, self._duplication = 0.0, 0.0
        self._slowest_ms = min(self._slowest_ms, 10)

    def heal(self) -> None:
        """Stop injecting faults, restore the network and start all nodes."""
        self.stop()
        for node in self._history.nodes.values():
            if not node.is_up:
                self.start_node(node)

    def _any(self) -> SimulatedNode:
        return self._rng.choice(list(self._history.nodes.values()))

    def _crash(self) -> None:
        rng, nodes = self._rng, list(self._history.nodes.values())
        leader = self._history.leader
        chosen = rng.sample(nodes, min(len(nodes), rng.choice([1, 1, 1, 2, len(nodes)])))
        if leader is not None and leader not in chosen and rng.random() < 0.3:
            chosen = [leader]
        loses_power = rng.random() < 0.6
        for node in chosen:
            if node.is_up:
                self._history.log_node(node, "loses power" if loses_power else "is killed")
                node.crash(rng, loses_power=loses_power)
                self._history.run_after(rng.choice([1, 50, 500, 1500]), partial(self.start_node, node))

    def maybe_cut_power(self, node: SimulatedNode) -> None:
        """Sometimes cut a node's power soon.

        Called when the node votes, wins an election, truncates its log or installs a snapshot.
        """
        incarnation = node.incarnation

        def die() -> None:
            if (
                node.is_up
                and node.incarnation == incarnation
                and self._history.nodes[node.key.replica_id] is node
            ):
                self._history.log_node(node, "loses power at a critical moment")
                node.crash(self._rng, loses_power=True)
                self._history.run_after(1, partial(self.start_node, node))

        if self._rng.random() < self._targeted_crash_probability and not self._is_over:
            self._history.run_after(self._rng.choice([0, 1, 5, 30]), die)

    def start_node(self, node: SimulatedNode) -> None:
        if not node.is_up and self._history.nodes[node.key.replica_id] is node:
            self._history.log_node(node, f"starts with a log up to {node.log.end_offset}")
            node.start()

    def _stop(self) -> None:
        """Stop a random node cleanly."""
        node = self._any()
        if not node.is_up:
            return
        self._history.log_node(node, "is stopped")
        node.run_on_machine(lambda machine: machine.stop(node.local_ms))

        def gone() -> None:
            if node.is_up and node.incarnation == incarnation:
                node.crash(self._rng, loses_power=False)
                self._history.run_after(self._rng.choice([1, 300]), lambda: self.start_node(node))

        incarnation = node.incarnation
        self._history.run_after(self._rng.choice([5, 100]), gone)

    def _resign(self) -> None:
        leader = self._history.leader
        if leader is not None:
            self._history.log_node(leader, "resigns")
            leader.run_on_machine(
                lambda machine: machine.resign(leader.local_ms, ErrorCode.KAFKA_STORAGE_ERROR)
            )

    def _snapshot(self) -> None:
        node = self._any()
        if not node.is_up:
            return
        saved = node.log.take_snapshot(self._rng.choice([1, 7, 30]))
        if saved is not None:
            self._history.on_snapshot(saved)
            self._history.log_node(node, f"takes snapshot {saved.snapshot}")
            is_durable = node.log.synced_offset >= saved.snapshot.end_offset or not node.terms.may_vote
            if is_durable and self._rng.random() < 0.7:
                node.log.trim()

    def _wipe(self) -> None:
        """Replace a node's directory, so that the node has no data and another replica key."""
        history = self._history
        node = self._any()
        if not history.is_dynamic or not self._survives_without(node):
            return
        node_id = node.key.replica_id
        self._directory_counts[node_id] = self._directory_counts.get(node_id, 0) + 1
        if node.is_up:
            node.crash(self._rng, loses_power=True)
        port = self._rng.randint(1, 3)
        fresh = history.make_node(
            node_id, self._directory_counts[node_id], may_vote=node.terms.may_vote, port=port
        )
        fresh.knows_pre_vote = node.knows_pre_vote
        history.nodes[node_id] = fresh
        history.invariants.wiped_nodes[node.key] = node
        history.log_node(fresh, f"replaces {node}, without its data")
        fresh.start()

    def _survives_without(self, node: SimulatedNode) -> bool:
        """Return whether every known voter set keeps a majority of its directories without this node.

        This includes voter sets to which this node is added, because a leader may be adding the node.
        """
        sets = [one.log.voters for one in self._history.nodes.values() if len(one.log.voters)]
        if node.terms.may_vote:
            sets += [voters.replaced(self._history.voter(node)) for voters in sets]
        return all(self._has_majority(voters, excluding=node) for voters in sets)

    def _has_majority(self, voters: VoterSet, excluding: SimulatedNode | None = None) -> bool:
        """Return whether a majority of `voters` still have the directories in the voter set.

        The node `excluding` does not count.
        """
        nodes = (self._history.nodes.get(voter.key.replica_id) for voter in voters)
        kept = sum(
            node is not None and node is not excluding and node.key == voter.key
            for node, voter in zip(nodes, voters, strict=True)
        )
        return kept >= voters.majority

    # --- voter changes

    def _send_to_leader(self, request: Message, what: str) -> None:
        leaders = [one for one in self._history.nodes.values() if one.is_up]
        leader = self._history.leader
        if not leaders:
            return
        receiver = leader if leader is not None and self._rng.random() < 0.9 else self._rng.choice(leaders)

        def reply(response: Message) -> None:
            assert isinstance(response, adding.AddRaftVoterResponse | RemoveRaftVoterResponse)
            self._history.log_node(receiver, f"responds to {what}: {ErrorCode(response.error_code).name}")

        self._history.log_node(receiver, f"gets a request: {what}")
        receiver.receive(request, reply)

    def _add(self) -> None:
        node = self._any()
        if not node.terms.may_vote:
            return
        request = adding.AddRaftVoterRequest(
            cluster_id=node.terms.cluster_id,
            timeout_ms=1000,
            voter_id=node.key.replica_id,
            voter_directory_id=node.key.directory_id,
            listeners=[
                adding.Listener(name=one.name, host=one.host, port=one.port) for one in node.terms.endpoints
            ],
            ack_when_committed=self._rng.random() < 0.5,
        )
        self._send_to_leader(request, f"add {node}")

    def _remove(self) -> None:
        leader = self._history.leader
        if leader is None:
            return
        voter = self._rng.choice(list(leader.log.voters))
        if not self._has_majority(leader.log.voters.without(voter.key.replica_id)):
            return
        request = RemoveRaftVoterRequest(
            cluster_id=leader.terms.cluster_id,
            voter_id=voter.key.replica_id,
            voter_directory_id=voter.key.directory_id,
        )
        self._send_to_leader(request, f"remove {voter.key.replica_id}")

    def _remove_leader(self) -> None:
        leader = self._history.leader
        if leader is not None and self._has_majority(leader.log.voters.without(leader.key.replica_id)):
            request = RemoveRaftVoterRequest(
                cluster_id=leader.terms.cluster_id,
                voter_id=leader.key.replica_id,
                voter_directory_id=leader.key.directory_id,
            )
            self._send_to_leader(request, "leave")

    def _upgrade(self) -> None:
        leader = self._history.leader
        if leader is None or leader.machine.role is not QuorumRole.LEADER:
            return
        self._history.log_node(leader, "changes the static quorum to a dynamic one")

        def upgrade(machine: Machine) -> list[Output]:
            try:
                return machine.raise_kraft_version(1, validate_only=False)
            except ApiError as error:
                self._history.log_event(str(error))
                return []

        leader.run_on_machine(upgrade)
