"""What goes wrong in a history: who dies, is paused, cut off, stopped, wiped; and when that is over.

Data that only the page cache of a machine has is lost with it, as with Apache Kafka, which syncs nothing
before it acknowledges: so power is cut, and disks are wiped, only where all replicas are in sync, and nobody
else is down; and nobody else goes down until all are in sync again. (To the controller a process that died is
as bad as a machine that did: of two it cannot tell which one has everything.) Otherwise processes may die at
any time, and a machine on which nobody counts (its replicas are not in sync) may lose everything.

What the quorum keeps is synced before anybody counts on it: machines of controllers, which are nothing else,
lose power at any time, and all at once. A voter that loses its disk forgets what it has promised: that
happens only where all voters have everything, and agree on who leads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from kwire.broker.raft.quorum import Quorum
from kwire.testing.network import NetworkFaults
from kwire.testing.simulated.environment import SimulatedEnvironment
from kwire.testing.simulated.nodes import LOG_DIRS, ClusterNode

MAX_FAULT_MS: Final = 5_000
"""How long something stays broken at most."""
MAX_SHUTDOWN_MS: Final = 2_000
"""How long a node that is to stop waits for the controller to let it go."""
MAX_NODES_DOWN: Final = 2
MAX_DISK_CHANGES: Final = 60
"""How many more a process may make to its disk before it dies in one."""
RELIABLE_NETWORK: Final = NetworkFaults(shortest_ms=1, longest_ms=5)


def random_network_faults(rng: random.Random) -> NetworkFaults:
    """How the network is while there is trouble."""
    return rng.choice(
        (
            RELIABLE_NETWORK,
            NetworkFaults(shortest_ms=1, longest_ms=30),
            NetworkFaults(shortest_ms=1, longest_ms=10, slow=0.02, slowest_ms=700),
            NetworkFaults(shortest_ms=1, longest_ms=20, slow=0.01, slowest_ms=300, breaks=0.005),
        )
    )


class FaultInjector:
    """Makes it, and ends it."""

    def __init__(
        self,
        world: SimulatedEnvironment,
        rng: random.Random,
        *,
        kills_amid_writes: bool = False,
        cuts_power_amid_elections: bool = False,
    ) -> None:
        """`kills_amid_writes`: some processes die in the middle of what they do to their disks.

        `cuts_power_amid_elections`: machines of controllers lose power as one of them is elected.
        """
        self._environment = world
        self._rng = rng
        self._may_have_lost_data = False
        """Whether somebody has lost data, and perhaps not got it back."""
        self.is_stopped = False
        self.permanent_cuts: set[tuple[str, str]] = set()
        """Ways that must stay cut for now."""
        self._down: dict[int, None] = {}
        """Nodes without a process."""
        self._faults: list[tuple[Callable[[], None], int]] = [
            (self._kill, 6),
            (self._cut_power, 2),
            (self._stop, 3),
            (self._pause, 4),
            (self._isolate, 3),
            (self._cut_link, 4),
            (self._break_connections, 2),
            (self._wipe, 1),
            (self._wipe_unneeded, 4),
        ]

        if world.spec.log_dirs > 1:
            self._faults.append((self._break_directory, 5))
        if kills_amid_writes:
            self._faults.append((self._kill_during_disk_change, 8))
        if world.spec.unclean_elections:
            self._faults.append((self._kill_isr, 12))
        if len(world.spec.controllers) > 1:
            self._faults += [
                (self._cut_power_of_controllers, 3),
                (self._cut_power_during_replication, 6),
                (self._kill_quorum_leader, 3),
                (self._isolate_quorum_leader, 6),
                (self._wipe_voter, 3),
            ]
            if cuts_power_amid_elections:
                self._faults.append((self._cut_power_during_election, 40))

    def inject_one(self) -> None:
        """Do something."""
        kinds, weights = zip(*self._faults, strict=True)
        self._rng.choices(kinds, weights)[0]()

    # --- whom

    def _pick_node(self) -> ClusterNode | None:
        """A node that may go down."""
        world = self._environment
        if len(self._down) >= min(MAX_NODES_DOWN, len(world.spec.brokers) - 1 or 1):
            return None
        if self._may_have_lost_data and not self._all_in_sync():
            return None
        self._may_have_lost_data = False
        alive = [node for node in world.nodes.values() if node.is_running and not node.host.is_paused]
        return self._rng.choice(alive) if alive else None

    def _pick_replaceable_node(self, *, forgets: bool) -> ClusterNode | None:
        """A node whose data all others have; also what it has promised, if it `forgets` that."""
        if self._down or not self._all_in_sync():
            return None
        node = self._pick_node()
        if node is not None and node.is_controller:
            is_needed = forgets and not self._quorum_is_caught_up()
            return None if is_needed or len(self._environment.spec.controllers) == 1 else node
        return node

    def _quorum_is_caught_up(self) -> bool:
        """Whether all voters run, agree on who leads, and have all that the leader has."""
        world = self._environment
        voters = [world.nodes[node_id] for node_id in world.spec.controllers]
        if not all(node.is_running and not node.host.is_paused for node in voters):
            return False
        quorums = [node.node.quorum for node in voters]
        if len({(quorum.epoch, quorum.leader_id) for quorum in quorums}) > 1:
            return False
        [found] = [quorum.describe() for quorum in quorums if quorum.leads] or [None]
        return found is not None and {one.end_offset for one in found.voters} == {found.high_watermark}

    @property
    def _only_controllers(self) -> list[ClusterNode]:
        """Those that run, and are no brokers."""
        return [node for node in self._environment.nodes.values() if node.is_running and not node.is_broker]

    def is_needed(self, node: ClusterNode) -> bool:
        """Whether anything may depend on what a broker has."""
        return self.is_relied_on(node) or any(
            self.is_joining_isr(node, leader) for leader in self._environment.nodes.values()
        )

    def is_relied_on(self, node: ClusterNode) -> bool:
        """Whether anything depends on what a broker has, as the controller knows it."""
        controllers = (each for each in self._environment.nodes.values() if each.is_controller)
        if node.is_controller or not all(each.is_running and not each.host.is_paused for each in controllers):
            return True  # a controller that died or stands still may have written, or been told, more
        partitions = [
            self._environment.invariants.partition(place) for place in self._environment.invariants.partitions
        ]
        return any(
            node.node_id in (*each.isr, *each.elr, *each.last_known_elr)
            for each in partitions
            if each is not None
        )

    def is_joining_isr(self, node: ClusterNode, leader: ClusterNode) -> bool:
        """Whether a leader is telling the controller that a broker is in sync."""
        if not leader.is_running or not leader.is_broker:
            return False
        partitions = (
            leader.node.replica_manager.get(*place) for place in self._environment.invariants.partitions
        )
        pending = (
            each.remote_replicas.pending
            for each in partitions
            if each is not None and each.remote_replicas is not None
        )
        return any(each is not None and each.new_member == node.node_id for each in pending)

    def _all_in_sync(self) -> bool:
        world = self._environment
        known = world.invariants.image.brokers
        for broker_id in world.spec.brokers:
            node = world.nodes[broker_id]
            if (
                not node.is_running
                or node.host.is_paused
                or node.disk.broken_directories
                or broker_id not in known
            ):
                return False
            if known[broker_id].broker_epoch != node.node.lifecycle.broker_epoch:
                return False  # the controller does not know yet that it has died
        partitions = [world.invariants.partition(place) for place in world.invariants.partitions]
        return all(
            each is None or (set(each.isr) == set(each.replicas) and len(each.replicas) > 1)
            for each in partitions
        )

    def _schedule_end(self, call: Callable[[], None]) -> None:
        """Once it has lasted long enough, or all trouble is over."""
        self._environment.events.timers.add(self._rng.randrange(100, MAX_FAULT_MS), call)

    # --- what

    def _mark_down(self, node: ClusterNode, how: str) -> None:
        self._environment.note(f"--- {node.name} {how}")
        self._down[node.node_id] = None
        self._schedule_end(lambda: self._start(node))

    def _start(self, node: ClusterNode) -> None:
        """Unless that was done, and other trouble with it has begun since, which sees to its own end."""
        if node.node_id in self._down and not node.is_running:
            del self._down[node.node_id]
            self._environment.note(f"--- {node.name} starts again")
            node.start()
            if self._rng.random() < 0.3:
                # As it is about to be in sync again: leaders know it from before, and perhaps ask for it.
                delay_ms = self._rng.randrange(100, 700)
                self._environment.events.timers.add(delay_ms, lambda: self._wipe_if_unneeded(node))

    def _kill(self) -> None:
        node = self._pick_node()
        if node is not None:
            self._mark_down(node, "is killed")
            node.die()

    def _kill_during_disk_change(self) -> None:
        """Of what it is writing just then a part may be there; what it is syncing may be durable."""
        node = self._pick_node()
        if node is not None and node.node_id not in self._down:
            self._environment.note(f"--- {node.name} is about to be killed amid what it does to its disk")
            node.disk.dies_after = self._rng.randrange(MAX_DISK_CHANGES)
            self._down[node.node_id] = None
            self._schedule_end(lambda: self._restart_with_repaired_disk(node))

    def _kill_isr(self) -> None:
        """All who have everything, when somebody else has not."""
        world = self._environment
        place = self._rng.choice(world.partitions)
        known = world.invariants.partition(place)
        if known is None or known.leader < 0 or len(known.isr) < 2 or self._down:
            return
        follower = world.nodes[self._rng.choice([each for each in known.isr if each != known.leader])]
        world.network.cut(follower.host.name, world.nodes[known.leader].host.name)

        def kill() -> None:
            self.heal()
            known = world.invariants.partition(place)
            if known is None or follower.node_id in known.isr or self.is_stopped:
                return
            for broker_id in known.isr:
                node = world.nodes[broker_id]
                if node.is_running and not node.is_controller:
                    self._mark_down(node, "is killed, as all who are in sync")
                    node.die()

        world.events.timers.add(self._rng.randrange(2_500, 4_500), kill)

    def _cut_power(self) -> None:
        node = self._pick_replaceable_node(forgets=False)
        if node is not None:
            self._may_have_lost_data = True
            self._mark_down(node, "loses power")
            node.die(power=self._rng)

    def _cut_power_of_controllers(self) -> None:
        """Of one or more."""
        nodes = [] if self.is_stopped else self._only_controllers
        for node in self._rng.sample(nodes, self._rng.randint(min(1, len(nodes)), len(nodes))):
            self._mark_down(node, "loses power")
            node.die(power=self._rng)

    def _cut_power_during_replication(self) -> None:
        """Of some, as one of them is writing what the others are to hear, or have heard."""
        self._cut_power_on_change(lambda quorum: (quorum.epoch, quorum.log.end_offset))

    def _cut_power_during_election(self) -> None:
        self._kill_quorum_leader()
        self._cut_power_on_change(lambda quorum: quorum.leads)

    def _cut_power_on_change(self, look_at: Callable[[Quorum], object]) -> None:
        nodes = self._only_controllers

        def known() -> list[object]:
            return [look_at(node.node.quorum) for node in nodes if node.is_running]

        before, ends_ms = known(), self._environment.now_ms + MAX_FAULT_MS

        def look() -> None:
            if self.is_stopped or self._environment.now_ms > ends_ms:
                return
            if known() == before:
                self._environment.events.timers.add(2, look)
            else:
                self._environment.events.timers.add(self._rng.randrange(40), self._cut_power_of_controllers)

        look()

    def _isolate_quorum_leader(self) -> None:
        """Of the quorum, from the other controllers, and nobody else: it goes on deciding for a while."""
        world = self._environment
        names = {node_id: world.nodes[node_id].host.name for node_id in world.spec.controllers}
        for leader_id in names:
            node = world.nodes[leader_id]
            if node.is_running and node.node.quorum.leads:
                for other_id in [each for each in names if each != leader_id]:
                    world.network.cut(names[leader_id], names[other_id])
                self._schedule_end(self.heal)

    def _kill_quorum_leader(self) -> None:
        """Kill who leads the quorum, as that is asked of a node."""
        node = self._pick_node()
        if node is not None:
            leader = self._environment.nodes.get(node.node.quorum.leader_id)
            if leader is not None and leader.is_running and not leader.host.is_paused:
                self._mark_down(leader, "is killed, who leads the quorum")
                leader.die()

    def _break_directory(self) -> None:
        """It can be written no more, or not even read, until somebody replaces it; nothing on it is lost."""
        node = self._pick_node()
        if node is None or not node.is_broker:
            return
        directory, is_unreadable = self._rng.choice(LOG_DIRS), self._rng.random() < 0.5
        what = "breaks" if is_unreadable else "is full"
        self._environment.note(f"--- {directory} of {node.name} {what}")
        node.disk.broken_directories[directory] = is_unreadable
        self._down[node.node_id] = None
        self._schedule_end(lambda: self._restart_with_repaired_disk(node))

    def _restart_with_repaired_disk(self, node: ClusterNode) -> None:
        """Have another process in its place, whose disk is well."""
        if node.node_id in self._down:
            if node.is_running:
                self._environment.note(f"--- {node.name} is killed, to start anew")
                node.die()
            self._start(node)

    def _stop(self) -> None:
        """As a process that gets a SIGTERM: it has others lead, but does not wait for that without end."""
        node = self._pick_node()
        if node is None or node.disk.is_faulty:
            return
        self._environment.note(f"--- {node.name} is asked to stop")
        self._down[node.node_id] = None
        host = node.host

        def left(why: str) -> None:
            if node.host is host and not host.is_dead and node.node_id in self._down:
                self._environment.note(f"--- {node.name} is stopped, {why}")
                node.stop()
                self._environment.invariants.check_node(node)
                self._schedule_end(lambda: self._start(node))

        node.node.controlled_shutdown(lambda: left("let go"))
        self._environment.events.timers.add(MAX_SHUTDOWN_MS, lambda: left("though nobody lets it go"))

    def _wipe(self) -> None:
        self._kill_and_wipe(self._pick_replaceable_node(forgets=True))

    def _wipe_voter(self) -> None:
        nodes = self._only_controllers
        if nodes and self._quorum_is_caught_up():
            self._kill_and_wipe(self._rng.choice(nodes))

    def _kill_and_wipe(self, node: ClusterNode | None) -> None:
        if node is not None:
            self._may_have_lost_data = self._may_have_lost_data or node.is_broker
            self._mark_down(node, "is killed, and loses its disk")
            node.die()
            node.wipe()
            node.reformat()

    def _wipe_unneeded(self) -> None:
        """What is being caught up with, say."""
        for node in self._environment.nodes.values():
            self._wipe_if_unneeded(node)

    def _wipe_if_unneeded(self, node: ClusterNode) -> None:
        if self.is_stopped or self.is_needed(node):
            return
        if node.is_running:
            self._mark_down(node, "is killed, and loses its disk, on which nobody counts")
            node.die()
        else:
            self._environment.note(f"--- {node.name} loses its disk, on which nobody counts")
        node.wipe()
        node.reformat()

    def replace(self, node: ClusterNode) -> None:
        """Have another, empty machine take a broker's place at once."""
        self._environment.note(f"--- {node.name} is killed, loses its disk, and starts again at once")
        node.die()
        node.wipe()
        node.reformat()
        node.start()

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
        """No way is cut any more, but what must stay so."""
        self._environment.network.heal(self.permanent_cuts)

    def _break_connections(self) -> None:
        self._environment.network.break_some(self._rng.choice((0.2, 0.6, 1.0)))

    def stop(self) -> None:
        """All that was broken is whole again, and all that is down starts."""
        world = self._environment
        self.is_stopped = True
        world.note("--- all is well from here on")
        world.network.faults = RELIABLE_NETWORK
        self.heal()
        for node in world.nodes.values():
            if node.is_running and node.host.is_paused:
                node.host.resume()
            if node.is_running and (node.disk.broken_directories or node.disk.is_faulty):
                node.die()
            if not node.is_running:
                node.disk.repair()
                self._down[node.node_id] = None
                self._start(node)
