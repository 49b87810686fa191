"""One seed's history of a cluster: it starts, is used, gets into trouble, and has to be whole again."""

from __future__ import annotations

import random
from typing import Final

from kwire.testing.simulated.convergence import replica_differences, why_not_converged
from kwire.testing.simulated.environment import (
    FIVE_NODES,
    FOUR_NODES,
    MAX_PARTITIONS,
    ONE_NODE,
    THREE_NODES,
    ClusterSpec,
    SimulatedEnvironment,
    collect_node_errors,
)
from kwire.testing.simulated.fault_injector import RELIABLE_NETWORK, FaultInjector, random_network_faults
from kwire.testing.simulated.node_sasl import REAUTHENTICATION_MS, count_reauthentications
from kwire.testing.simulated.nodes import NO_DRIFT, RACKS, ClockDrift
from kwire.testing.simulated.simulated_client import SimulatedClient
from kwire.testing.simulated.violation import Violation
from simulation.cluster.ambush import Ambush, LateCommits
from simulation.cluster.consumers import Consumer
from simulation.cluster.copier import Copier
from simulation.cluster.groups import Group
from simulation.cluster.members import ClassicMember, ConsumerMember, Member
from simulation.cluster.offsets import Committer
from simulation.cluster.operator import Operator
from simulation.cluster.producers import Producer
from simulation.cluster.transactions import TransactionalProducer

TROUBLE_MS: Final = 10_000
MEMBER: Final = "member"
UNCLEAN: Final = "unclean leaders"
CONVERGES_MS: Final = 20_000
"""How long a cluster may take to be whole again."""


class History:
    """A run, with its transcript."""

    def __init__(self, seed: int, *, shape: ClusterSpec | None = None) -> None:
        self.seed = seed
        self._rng = random.Random(f"kwire cluster {seed}")
        self._shape = shape or self._rng.choice(
            (ONE_NODE, THREE_NODES, THREE_NODES, FOUR_NODES, FIVE_NODES)
        )._replace(
            # Few bytes at once: a follower that was away needs many fetches to catch up.
            fetch_bytes=self._rng.choice((150, 600, 1 << 20))
        )
        disks = self._chance("disks")
        if disks.random() < 0.2:
            self._shape = self._shape._replace(log_dirs=2)
        if disks.random() < 0.15:
            # An election has four syncs in a row, within half its timeout where clocks are fast.
            slow_ms = 300 if len(self._shape.controllers) == 1 else 100
            self._shape = self._shape._replace(max_work_ms=slow_ms)
        if self._chance("racks").random() < 0.25:
            self._shape = self._shape._replace(uses_racks=True)
        if self._chance(UNCLEAN).random() < 0.1 and shape is None:
            self._shape = self._shape._replace(nodes=FOUR_NODES.nodes, replicas=3, min_insync_replicas=2)
            self._shape = self._shape._replace(unclean_elections=True)
        if self._chance("logins").random() < 0.2:
            self._shape = self._shape._replace(uses_sasl=True)
        self._shape = _drifting(self._shape, self._chance("clocks"))
        self._world: SimulatedEnvironment | None = None
        self._group: Group | None = None

    def _chance(self, purpose: str) -> random.Random:
        """Decides upon something that most seeds do without, who go on in their ways."""
        return random.Random(f"kwire cluster {self.seed}: {purpose}")

    @property
    def transcript(self) -> list[str]:
        """What has happened so far."""
        return self._world.transcript if self._world is not None else []

    def run(self) -> None:
        """All of it. Violation, or whatever a node raises that it must not."""
        rng = self._rng
        topics = {"a": rng.choice((1, 2))}
        self._world = world = SimulatedEnvironment(
            random.Random(rng.getrandbits(64)), self._shape, RELIABLE_NETWORK, topics
        )
        with collect_node_errors(world.node_errors):
            world.start()
            world.create_topics()
            self._start_clients(world)
            try:
                self._get_into_trouble(world)
                self._become_whole(world)
                self._keep_logins(world)
            except Exception:
                world.log_state()
                raise

    def _start_clients(self, world: SimulatedEnvironment) -> None:
        rng, ledger, places = self._rng, world.oracle, world.partitions
        if world.spec.unclean_elections:
            self._start_careless(world)
            return
        for number in range(rng.choice((1, 2))):
            world.add_client(Producer, f"producer {number}", ledger=ledger, places=places)
        if rng.random() < 0.5:
            world.add_client(Producer, "careless", ledger=ledger, places=places, acks=1, is_idempotent=False)
        world.add_client(Consumer, "consumer", ledger=ledger, places=places)
        if rng.random() < 0.5:
            world.add_client(TransactionalProducer, "transactions", ledger=ledger, places=places)
            world.add_client(Consumer, "careful", ledger=ledger, places=places, read_committed=True)
        if rng.random() < 0.6:
            world.add_client(Committer, "committer", ledger=ledger, place=places[0])
        if rng.random() < 0.5:
            shape = world.spec
            world.add_client(
                Operator,
                "operator",
                ledger=ledger,
                places=places,
                brokers=shape.brokers,
                replicas=shape.replicas,
                grows_to=MAX_PARTITIONS if self._chance("growth").random() < 0.3 else 0,
            )
        if self.seed % 9 == 8:  # chance is not asked, so that the other seeds go on in their ways
            world.add_client(Copier, "copier", ledger=ledger, places=places, source=places[0])
        if self._chance("plain").random() < 0.15:
            world.add_client(Producer, "plain", ledger=ledger, places=places, is_idempotent=False)
        self._start_group(world, self._chance("groups"))
        if world.spec.uses_racks:
            chance = self._chance("where consumers stand")
            for client in world.clients:
                if isinstance(client, Consumer):
                    client.rack = chance.choice(RACKS)

    def _start_careless(self, world: SimulatedEnvironment) -> None:
        """Those who know nothing of transactions, groups and sequences, which do not survive a loss."""
        ledger, places = world.oracle, world.partitions
        for name, acks in (("plain", -1), ("other", -1), ("careless", 1)):
            world.add_client(Producer, name, ledger=ledger, places=places, acks=acks, is_idempotent=False)
        for name in ("consumer", "reader"):
            world.add_client(Consumer, name, ledger=ledger, places=places)
        world.add_client(Committer, "committer", ledger=ledger, place=places[0])

    def _start_group(self, world: SimulatedEnvironment, rng: random.Random) -> None:
        if rng.random() < 0.4:
            self._group = group = Group("group", world.oracle, world.partitions, world.note)
            kind: type[Member] = rng.choice((ClassicMember, ConsumerMember))
            for number in range(rng.choice((1, 2, 3))):
                world.add_client(kind, f"{MEMBER} {number}", ledger=world.oracle, group=group)

    def _get_into_trouble(self, world: SimulatedEnvironment) -> None:
        rng = self._rng
        world.network.faults = random_network_faults(rng)
        trouble = FaultInjector(
            world,
            random.Random(rng.getrandbits(64)),
            kills_amid_writes=self._chance("half writes").random() < 0.2,
            cuts_power_amid_elections=self._chance("elections").random() < 0.15,
        )
        if self._chance("late words").random() < 0.15:
            Ambush(world, trouble)
        elif self._group is not None and self._chance("old commits").random() < 0.3:
            LateCommits(world, trouble, MEMBER)
        ends_ms = world.now_ms + TROUBLE_MS
        while world.now_ms < ends_ms:
            world.advance(rng.randrange(100, 2_500))
            trouble.inject_one()
        world.advance(rng.randrange(1_000))
        trouble.stop()

    def _become_whole(self, world: SimulatedEnvironment) -> None:
        writers = [client for client in world.clients if not _only_reads(client)]
        for client in writers:
            client.is_stopping = True

        def is_whole() -> bool:
            return all(client.is_done for client in writers) and why_not_converged(world) is None

        def why_not() -> str:
            waiting = [client.name for client in writers if not client.is_done]
            group = None if self._group is None or self._group.is_over else self._group.what_is_missing()
            return group or why_not_converged(world) or f"{', '.join(waiting)} cannot end"

        slowest = min([100, *(drift.speed_percent for drift in world.spec.clock_drifts.values())])
        world.advance_until(is_whole, CONVERGES_MS * 100 // slowest, why_not)
        world.note("--- all replicas are in sync")
        different = replica_differences(world)
        if different:
            raise Violation("; ".join(different))
        self._read_to_the_end(world)
        world.oracle.check()

    def _keep_logins(self, world: SimulatedEnvironment) -> None:
        """Where nothing is wrong, nodes renew their logins before they end: no connection is lost by it."""
        shape = world.spec
        if (
            not shape.uses_sasl
            or len(shape.nodes) == 1
            or any(each != NO_DRIFT for each in shape.clock_drifts.values())
        ):
            return
        world.advance(REAUTHENTICATION_MS)
        before = renewed, ended = count_reauthentications(world.nodes.values())
        world.advance(2 * REAUTHENTICATION_MS)
        now_renewed, now_ended = count_reauthentications(world.nodes.values())
        if now_ended > ended or now_renewed == renewed:
            raise Violation(
                f"logins that were renewed, and that ended: {before}, now {(now_renewed, now_ended)}"
            )

    def _read_to_the_end(self, world: SimulatedEnvironment) -> None:
        readers = [client for client in world.clients if isinstance(client, Consumer) and _only_reads(client)]

        def has_read() -> bool:
            return all(
                reader.positions[place] >= world.oracle.committed_in(place).end
                for reader in readers
                for place in world.partitions
            )

        world.advance_until(has_read, 5_000, lambda: "consumers are not at the end")
        for reader in readers:
            if reader.is_careful and not any(
                world.oracle.committed_in(place).start for place in world.partitions
            ):
                world.oracle.check_transactions(reader.name, reader.given)


def _drifting(shape: ClusterSpec, rng: random.Random) -> ClusterSpec:
    """Its clocks may go at their own speed, and be hours apart."""
    if rng.random() < 0.7:
        return shape
    speeds, hours = ((50, 80, 100, 125, 200), 4) if rng.random() < 0.7 else ((100,), 10)
    drifts = {
        node_id: ClockDrift(rng.choice(speeds), rng.randrange(-hours, hours + 1) * 3_600_000)
        for node_id in shape.nodes
    }
    return shape._replace(clock_drifts=drifts)


def _only_reads(client: SimulatedClient) -> bool:
    """Whether it goes on until all has been read, and has no end of its own."""
    return isinstance(client, Consumer) and not isinstance(client, Member)
