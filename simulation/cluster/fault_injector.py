"""Faults that only the simulation of kwire injects, in addition to those of `kwire.testing`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from kwire.testing.simulated.fault_injector import FaultInjector, WeightedFault
from kwire.testing.simulated.nodes import LOG_DIRS, ClusterNode
from simulation.cluster.environment import ClusterEnvironment

SLOW_DISK_MS: Final = (100, 300, 1_000)
"""The longest delays of syncs on a slow disk, in ms. With the last one, elections may time out."""
MAX_DISK_CHANGES: Final = 60
"""The maximum number of disk changes of a process before it dies during one."""


class ClusterFaultInjector(FaultInjector):
    """An injector that also fails disks, writes, complete ISRs and elections."""

    def __init__(
        self, environment: ClusterEnvironment, rng: random.Random, *, kills_during_writes: bool
    ) -> None:
        """Create an injector, which draws from `rng`.

        With `kills_during_writes`, processes also die during disk operations.
        """
        self._partitions = environment.partitions
        self.permanent_cuts: set[tuple[str, str]] = set()
        """Cut links that `heal` does not restore."""
        more: list[WeightedFault] = []
        if environment.spec.log_dirs > 1:
            more.append((self._break_directory, 5))
        if kills_during_writes:
            more.append((self._kill_during_disk_change, 8))
        if environment.spec.unclean_elections:
            more.append((self._kill_isr, 12))
        super().__init__(environment, rng, more)
        if len(environment.spec.controllers) > 1 and self._only_controllers:
            self._faults += [(self._cut_power_during_election, 12), (self._cut_power_after_commit, 12)]

    def _kill_during_disk_change(self) -> None:
        """Kill a process during a disk operation. A write may be partial; a sync may have been done."""
        node = self._pick_node()
        if node is not None and node.node_id not in self._down:
            self._environment.note(f"--- {node.name} is about to be killed during a disk operation")
            node.disk.dies_after = self._rng.randrange(MAX_DISK_CHANGES)
            self._down[node.node_id] = None
            self._schedule_end(lambda: self._restart_with_repaired_disk(node))

    def _kill_isr(self) -> None:
        """Kill all replicas of an ISR while another replica is out of sync."""
        environment = self._environment
        topic_partition = self._rng.choice(self._partitions)
        known = environment.invariants.partition(topic_partition)
        if known is None or known.leader < 0 or len(known.isr) < 2 or self._down:
            return
        follower = environment.nodes[self._rng.choice([each for each in known.isr if each != known.leader])]
        environment.network.cut(follower.host.name, environment.nodes[known.leader].host.name)

        def kill() -> None:
            self.heal()
            known = environment.invariants.partition(topic_partition)
            if known is None or follower.node_id in known.isr or self.is_stopped:
                return
            for broker_id in known.isr:
                node = environment.nodes[broker_id]
                if node.is_running and not node.is_controller:
                    self._mark_down(node, "is killed, as is the whole ISR")
                    node.die()

        environment.events.timers.add(self._rng.randrange(2_500, 4_500), kill)

    def _break_directory(self) -> None:
        """Fail a log directory until its node restarts: writes fail, perhaps reads too. No data is lost."""
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
        if node.node_id in self._down:
            if node.is_running:
                self._environment.note(f"--- {node.name} is killed, to be restarted")
                node.die()
            self._start(node)

    def _cut_power_after_commit(self) -> None:
        """Cut the power of controllers just after the leader has committed records, while followers are slow.

        The leader's disk stays fast, because the leader commits only records that it has synced.
        """
        self._slow_disks([node for node in self._only_controllers if not node.node.quorum.leads])
        self._cut_power_on_change(lambda quorum: quorum.leads and quorum.log.high_watermark)

    def _cut_power_during_election(self) -> None:
        """Cut the power of controllers just after one of them has become leader."""
        self._kill_quorum_leader()
        if self._rng.random() < 0.5:
            self._slow_disks(self._only_controllers)
        self._cut_power_on_change(lambda quorum: quorum.leads)

    def _slow_disks(self, nodes: Sequence[ClusterNode]) -> None:
        """Make the disks of nodes slow, until the processes end or the fault ends."""
        slow_ms = self._rng.choice(SLOW_DISK_MS)
        for node in nodes:
            self._environment.note(f"--- the disk of {node.name} becomes slow: up to {slow_ms} ms")
            node.host.max_work_ms = slow_ms
            self._schedule_end(node.restore_disk_speed)

    def replace(self, node: ClusterNode) -> None:
        """Replace a broker by an empty machine at once."""
        self._environment.note(f"--- {node.name} is killed, loses its disk, and starts again at once")
        node.die()
        node.wipe()
        node.reformat()
        node.start()

    def heal(self) -> None:
        """Restore all links except `permanent_cuts`."""
        self._environment.network.heal(self.permanent_cuts)
