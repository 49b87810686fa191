"""Faults of nodes in a simulation: crashes, pauses, network cuts, shutdowns, failed and replaced disks.

A power failure loses data that is only in the page cache. Apache Kafka has the same weakness, since it does
not sync before it acknowledges. So power failures and wiped disks happen only while all replicas are in sync
and no other node is down. No other node goes down until all replicas are in sync again. (The controller
cannot distinguish a crashed process from a crashed machine, so it may elect the replica that lost data.)
Processes may die at any time. A broker whose replicas are all out of the ISR may lose everything.

The metadata log is synced before a record counts, so machines of dedicated controllers lose power at any
time, several of them at once. Many of these power failures follow an election or a commit, while the disks of
voters are slow: a vote or record that was acknowledged before it is durable is then lost. A voter that loses
its disk also forgets its votes. That happens only while all voters are caught up and agree on the leader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from kwire.broker.raft.quorum import Quorum
from kwire.testing.network import NetworkFaults
from kwire.testing.simulated.environment import SimulatedEnvironment
from kwire.testing.simulated.nodes import ClusterNode

MAX_FAULT_MS: Final = 5_000
"""The longest duration of a fault."""
MAX_SHUTDOWN_MS: Final = 2_000
"""The timeout of a controlled shutdown. After that, the node stops without it."""
MAX_NODES_DOWN: Final = 2
RELIABLE_NETWORK: Final = NetworkFaults(shortest_ms=1, longest_ms=5)


def random_network_faults(rng: random.Random) -> NetworkFaults:
    """Choose delays and connection faults of the network."""
    return rng.choice(
        (
            RELIABLE_NETWORK,
            NetworkFaults(shortest_ms=1, longest_ms=30),
            NetworkFaults(shortest_ms=1, longest_ms=10, slow=0.02, slowest_ms=700),
            NetworkFaults(shortest_ms=1, longest_ms=20, slow=0.01, slowest_ms=300, breaks=0.005),
        )
    )


WeightedFault = tuple[Callable[[], None], int]
"""A fault, and how often it is chosen in relation to others."""


class FaultInjector:
    """An injector of random faults, which also schedules the end of each fault."""

    def __init__(
        self,
        environment: SimulatedEnvironment,
        rng: random.Random,
        more_faults: Sequence[WeightedFault] = (),
    ) -> None:
        """Create an injector, which draws from `rng`. `more_faults` are added to the general faults."""
        self._environment = environment
        self._rng = rng
        self._may_have_lost_data = False
        """Whether a node has lost data that may not be replicated again yet."""
        self.is_stopped = False
        self._down: dict[int, None] = {}
        """Nodes that are down, or about to go down."""
        self._faults: list[WeightedFault] = [
            (self._kill, 6),
            (self._cut_power, 2),
            (self._stop, 3),
            (self._pause, 4),
            (self._isolate, 3),
            (self._cut_link, 4),
            (self._break_connections, 2),
            (self._wipe, 1),
            (self._wipe_unneeded, 4),
            *more_faults,
        ]
        if len(environment.spec.controllers) > 1:
            self._faults += [
                (self._cut_power_of_controllers, 3),
                (self._cut_power_during_replication, 6),
                (self._kill_quorum_leader, 3),
                (self._isolate_quorum_leader, 6),
                (self._wipe_voter, 3),
            ]

    def inject_one(self) -> None:
        """Choose a fault and inject it, unless no node may fail now."""
        kinds, weights = zip(*self._faults, strict=True)
        self._rng.choices(kinds, weights)[0]()

    # --- choice of nodes

    def _pick_node(self) -> ClusterNode | None:
        """Choose a node that may go down, or return None."""
        environment = self._environment
        if len(self._down) >= min(MAX_NODES_DOWN, len(environment.spec.brokers) - 1 or 1):
            return None
        if self._may_have_lost_data and not self._all_in_sync():
            return None
        self._may_have_lost_data = False
        alive = [node for node in environment.nodes.values() if node.is_running and not node.host.is_paused]
        return self._rng.choice(alive) if alive else None

    def _pick_replaceable_node(self, *, forgets: bool) -> ClusterNode | None:
        """Choose a node whose data is replicated, or return None.

        With `forgets`, the node will lose its disk. A node that is also a controller then loses its votes, so
        it is chosen only if all voters are caught up and agree on the leader.
        """
        if self._down or not self._all_in_sync():
            return None
        node = self._pick_node()
        if node is not None and node.is_controller:
            is_needed = forgets and not self._quorum_is_caught_up()
            return None if is_needed or len(self._environment.spec.controllers) == 1 else node
        return node

    def _quorum_is_caught_up(self) -> bool:
        """Return whether all voters run, agree on the leader, and have all records of the leader."""
        environment = self._environment
        voters = [environment.nodes[node_id] for node_id in environment.spec.controllers]
        if not all(node.is_running and not node.host.is_paused for node in voters):
            return False
        quorums = [node.node.quorum for node in voters]
        if len({(quorum.epoch, quorum.leader_id) for quorum in quorums}) > 1:
            return False
        [found] = [quorum.describe() for quorum in quorums if quorum.leads] or [None]
        return found is not None and {one.end_offset for one in found.voters} == {found.high_watermark}

    @property
    def _only_controllers(self) -> list[ClusterNode]:
        """Running nodes that are only controllers."""
        return [node for node in self._environment.nodes.values() if node.is_running and not node.is_broker]

    def is_needed(self, node: ClusterNode) -> bool:
        """Return whether the data of a broker may be needed, now or by an ISR change in progress."""
        return self.is_relied_on(node) or any(
            self.is_joining_isr(node, leader) for leader in self._environment.nodes.values()
        )

    def is_relied_on(self, node: ClusterNode) -> bool:
        """Return whether the controller may have the broker in an ISR or ELR."""
        controllers = (each for each in self._environment.nodes.values() if each.is_controller)
        if node.is_controller or not all(each.is_running and not each.host.is_paused for each in controllers):
            return True  # a controller that is down or paused may have written more than the others know
        partitions = [
            self._environment.invariants.partition(topic_partition)
            for topic_partition in self._environment.invariants.partitions
        ]
        return any(
            node.node_id in (*each.isr, *each.elr, *each.last_known_elr)
            for each in partitions
            if each is not None
        )

    def is_joining_isr(self, node: ClusterNode, leader: ClusterNode) -> bool:
        """Return whether a leader is adding a broker to an ISR."""
        if not leader.is_running or not leader.is_broker:
            return False
        partitions = (
            leader.node.replica_manager.get(*topic_partition)
            for topic_partition in self._environment.invariants.partitions
        )
        pending = (
            each.remote_replicas.pending
            for each in partitions
            if each is not None and each.remote_replicas is not None
        )
        return any(each is not None and each.new_member == node.node_id for each in pending)

    def _all_in_sync(self) -> bool:
        environment = self._environment
        known = environment.invariants.image.brokers
        for broker_id in environment.spec.brokers:
            node = environment.nodes[broker_id]
            if (
                not node.is_running
                or node.host.is_paused
                or node.disk.broken_directories
                or broker_id not in known
            ):
                return False
            if known[broker_id].broker_epoch != node.node.lifecycle.broker_epoch:
                return False  # the controller does not know yet that the broker's process has died
        partitions = [
            environment.invariants.partition(topic_partition)
            for topic_partition in environment.invariants.partitions
        ]
        return all(
            each is None or (set(each.isr) == set(each.replicas) and len(each.replicas) > 1)
            for each in partitions
        )

    def _schedule_end(self, call: Callable[[], None]) -> None:
        """Schedule `call`, which ends a fault unless `stop` has ended the fault before."""
        self._environment.events.timers.add(self._rng.randrange(100, MAX_FAULT_MS), call)

    # --- faults

    def _mark_down(self, node: ClusterNode, how: str) -> None:
        self._environment.note(f"--- {node.name} {how}")
        self._down[node.node_id] = None
        self._schedule_end(lambda: self._start(node))

    def _start(self, node: ClusterNode) -> None:
        """Start a node that is down, unless another fault has begun since and will start it."""
        if node.node_id in self._down and not node.is_running:
            del self._down[node.node_id]
            self._environment.note(f"--- {node.name} starts again")
            node.start()
            if self._rng.random() < 0.3:
                # Wipe the disk just before the replicas join the ISR again, while leaders know the old disk.
                delay_ms = self._rng.randrange(100, 700)
                self._environment.events.timers.add(delay_ms, lambda: self._wipe_if_unneeded(node))

    def _kill(self) -> None:
        node = self._pick_node()
        if node is not None:
            self._mark_down(node, "is killed")
            node.die()

    def _cut_power(self) -> None:
        node = self._pick_replaceable_node(forgets=False)
        if node is not None:
            self._may_have_lost_data = True
            self._mark_down(node, "loses power")
            node.die(power_failure=self._rng)

    def _cut_power_of_controllers(self) -> None:
        """Cut the power of a random number of the dedicated controllers."""
        nodes = [] if self.is_stopped else self._only_controllers
        for node in self._rng.sample(nodes, self._rng.randint(min(1, len(nodes)), len(nodes))):
            self._mark_down(node, "loses power")
            node.die(power_failure=self._rng)

    def _cut_power_during_replication(self) -> None:
        """Cut the power of controllers while one of them appends to the metadata log."""
        self._cut_power_on_change(lambda quorum: (quorum.epoch, quorum.log.end_offset))

    def _cut_power_on_change(self, observe: Callable[[Quorum], object]) -> None:
        nodes = self._only_controllers

        def known() -> list[object]:
            return [observe(node.node.quorum) for node in nodes if node.is_running]

        before, ends_ms = known(), self._environment.now_ms + MAX_FAULT_MS

        def poll() -> None:
            if self.is_stopped or self._environment.now_ms > ends_ms:
                return
            if known() == before:
                self._environment.events.timers.add(2, poll)
            else:
                self._environment.events.timers.add(self._rng.randrange(40), self._cut_power_of_controllers)

        poll()

    def _isolate_quorum_leader(self) -> None:
        """Cut the quorum leader off from the other controllers only, so that it stays leader for a while."""
        environment = self._environment
        names = {node_id: environment.nodes[node_id].host.name for node_id in environment.spec.controllers}
        for leader_id in names:
            node = environment.nodes[leader_id]
            if node.is_running and node.node.quorum.leads:
                for other_id in [each for each in names if each != leader_id]:
                    environment.network.cut(names[leader_id], names[other_id])
                self._schedule_end(self.heal)

    def _kill_quorum_leader(self) -> None:
        """Kill the node that a random node believes to be the quorum leader."""
        node = self._pick_node()
        if node is not None:
            leader = self._environment.nodes.get(node.node.quorum.leader_id)
            if leader is not None and leader.is_running and not leader.host.is_paused:
                self._mark_down(leader, "is killed, the quorum leader")
                leader.die()

    def _stop(self) -> None:
        """Shut a node down as SIGTERM does, with a limited time for the controlled shutdown."""
        node = self._pick_node()
        if node is None or node.disk.is_faulty:
            return
        self._environment.note(f"--- {node.name} begins a controlled shutdown")
        self._down[node.node_id] = None
        host = node.host

        def shut_down(why: str) -> None:
            if node.host is host and not host.is_dead and node.node_id in self._down:
                self._environment.note(f"--- {node.name} shuts down {why}")
                node.stop()
                self._environment.invariants.check_node(node)
                self._schedule_end(lambda: self._start(node))

        node.node.controlled_shutdown(lambda: shut_down("with the controller's permission"))
        self._environment.events.timers.add(
            MAX_SHUTDOWN_MS, lambda: shut_down("without the controller's permission")
        )

    def _wipe(self) -> None:
        self._kill_and_wipe(self._pick_replaceable_node(forgets=True))

    def _wipe_voter(self) -> None:
        nodes = self._only_controllers
        if nodes and self._quorum_is_caught_up():
            self._kill_and_wipe(self._rng.choice(nodes))

    def _kill_and_wipe(self, node: ClusterNode | None) -> None:
        if node is not None:
            self._may_have_lost_data = self._may_have_lost_data or node.is_broker
            self._mark_down(node, "is killed and loses its disk")
            node.die()
            node.wipe()
            node.reformat()

    def _wipe_unneeded(self) -> None:
        """Wipe the disks of nodes whose data nothing depends on."""
        for node in self._environment.nodes.values():
            self._wipe_if_unneeded(node)

    def _wipe_if_unneeded(self, node: ClusterNode) -> None:
        if self.is_stopped or self.is_needed(node):
            return
        if node.is_running:
            self._mark_down(node, "is killed and loses its disk, which is not needed")
            node.die()
        else:
            self._environment.note(f"--- {node.name} loses its disk, which is not needed")
        node.wipe()
        node.reformat()

    def _pause(self) -> None:
        node = self._pick_node()
        if node is None:
            return
        self._environment.note(f"--- {node.name} is paused")
        host = node.host
        host.pause()

        def resume() -> None:
            if host.is_paused:
                self._environment.note(f"--- {node.name} goes on")
                host.resume()

        self._schedule_end(resume)

    def _isolate(self) -> None:
        node = self._rng.choice(list(self._environment.nodes.values()))
        self._environment.network.isolate(node.host.name)
        self._schedule_end(self.heal)

    def _cut_link(self) -> None:
        nodes = list(self._environment.nodes.values())
        if len(nodes) < 2:
            return
        one, other = self._rng.sample(nodes, 2)
        self._environment.network.cut(one.host.name, other.host.name, both_ways=self._rng.random() < 0.5)
        self._schedule_end(self.heal)

    def heal(self) -> None:
        """Restore all links."""
        self._environment.network.heal()

    def _break_connections(self) -> None:
        self._environment.network.break_some(self._rng.choice((0.2, 0.6, 1.0)))

    def stop(self) -> None:
        """End all faults, and start all nodes that are down."""
        environment = self._environment
        self.is_stopped = True
        environment.note("--- no more faults from here on")
        environment.network.faults = RELIABLE_NETWORK
        self.heal()
        for node in environment.nodes.values():
            node.restore_disk_speed()
            if node.is_running and node.host.is_paused:
                node.host.resume()
            if node.is_running and (node.disk.broken_directories or node.disk.is_faulty):
                node.die()
            if not node.is_running:
                node.disk.repair()
                self._down[node.node_id] = None
                self._start(node)
