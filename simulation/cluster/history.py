"""The run of one seed: a cluster starts, serves clients, has faults, and must converge afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from kwire.testing.simulated.convergence import replica_differences, why_not_converged
from kwire.testing.simulated.environment import ClusterSpec, collect_node_errors
from kwire.testing.simulated.fault_injector import RELIABLE_NETWORK, random_network_faults
from kwire.testing.simulated.node_sasl import REAUTHENTICATION_MS
from kwire.testing.simulated.nodes import NO_DRIFT, RACKS, ClockDrift
from kwire.testing.simulated.violation import Violation
from kwire.testing.virtual_node import VirtualNode
from simulation.cluster.consumers import Consumer
from simulation.cluster.delayed_requests import DelayedAlterPartition, DelayedCommits
from simulation.cluster.environment import MAX_PARTITIONS, ClusterEnvironment
from simulation.cluster.fault_injector import ClusterFaultInjector
from simulation.cluster.group_members import ClassicMember, ConsumerMember, Member
from simulation.cluster.group_oracle import GroupOracle
from simulation.cluster.offset_committer import OffsetCommitter
from simulation.cluster.operator import Operator
from simulation.cluster.producers import Producer
from simulation.cluster.simulated_client import SimulatedClient
from simulation.cluster.transactional_copier import TransactionalCopier
from simulation.cluster.transactional_producer import TransactionalProducer

ONE_NODE: Final = ClusterSpec({1: "broker,controller"}, replicas=1, min_insync_replicas=1)
THREE_NODES: Final = ClusterSpec({1: "broker,controller", 2: "broker", 3: "broker"})
FIVE_NODES: Final = ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "broker", 5: "controller"})
FOUR_NODES: Final = ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "controller"})

FAULTS_MS: Final = 10_000
MEMBER_PREFIX: Final = "member"
UNCLEAN: Final = "unclean leaders"
CONVERGENCE_MS: Final = 20_000
"""The time after the last fault in which the cluster must converge."""


class History:
    """A run of the simulation, with its transcript."""

    def __init__(self, seed: int, *, spec: ClusterSpec | None = None) -> None:
        self.seed = seed
        self._rng = random.Random(f"kwire cluster {seed}")
        self._spec = spec or self._rng.choice(
            (ONE_NODE, THREE_NODES, THREE_NODES, FOUR_NODES, FIVE_NODES)
        )._replace(
            # Small fetches make a follower that was down send many fetches until it has caught up.
            fetch_bytes=self._rng.choice((150, 600, 1 << 20))
        )
        disks = self._random_for("disks")
        if disks.random() < 0.2:
            self._spec = self._spec._replace(log_dirs=2)
        if disks.random() < 0.15:
            # An election needs four syncs in a row. With fast clocks, it has half the election timeout.
            slow_ms = 300 if len(self._spec.controllers) == 1 else 100
            self._spec = self._spec._replace(max_work_ms=slow_ms)
        if self._random_for("racks").random() < 0.25:
            self._spec = self._spec._replace(uses_racks=True)
        if self._random_for(UNCLEAN).random() < 0.1 and spec is None:
            self._spec = self._spec._replace(nodes=FOUR_NODES.nodes, replicas=3, min_insync_replicas=2)
            self._spec = self._spec._replace(unclean_elections=True)
        if self._random_for("logins").random() < 0.2:
            self._spec = self._spec._replace(uses_sasl=True)
        if self._random_for("encryption").random() < 0.1:
            self._spec = self._spec._replace(uses_tls=True)
        self._spec = _with_clock_drift(self._spec, self._random_for("clocks"))
        self._environment: ClusterEnvironment | None = None
        self._group: GroupOracle | None = None

    def _random_for(self, purpose: str) -> random.Random:
        """Return a separate generator for a choice, so that a new choice does not change existing runs."""
        return random.Random(f"kwire cluster {self.seed}: {purpose}")

    @property
    def transcript(self) -> list[str]:
        """The events so far."""
        return self._environment.transcript if self._environment is not None else []

    def run(self) -> None:
        """Run the simulation. Raises Violation, or an error that a node must not raise."""
        rng = self._rng
        topics = {"a": rng.choice((1, 2))}
        self._environment = environment = ClusterEnvironment(
            random.Random(rng.getrandbits(64)), self._spec, RELIABLE_NETWORK, topics
        )
        with collect_node_errors(environment.node_errors):
            environment.start()
            environment.create_topics()
            self._start_clients(environment)
            try:
                self._inject_faults(environment)
                self._converge(environment)
                self._check_reauthentication(environment)
            except Exception:
                environment.log_state()
                raise

    def _start_clients(self, environment: ClusterEnvironment) -> None:
        rng, oracle, partitions = self._rng, environment.oracle, environment.partitions
        if environment.spec.unclean_elections:
            self._start_clients_that_tolerate_loss(environment)
            return
        for number in range(rng.choice((1, 2))):
            environment.add_client(Producer, f"producer {number}", oracle=oracle, partitions=partitions)
        if rng.random() < 0.5:
            environment.add_client(
                Producer, "careless", oracle=oracle, partitions=partitions, acks=1, is_idempotent=False
            )
        environment.add_client(Consumer, "consumer", oracle=oracle, partitions=partitions)
        if rng.random() < 0.5:
            environment.add_client(
                TransactionalProducer, "transactions", oracle=oracle, partitions=partitions
            )
            environment.add_client(
                Consumer, "careful", oracle=oracle, partitions=partitions, read_committed=True
            )
        if rng.random() < 0.6:
            environment.add_client(OffsetCommitter, "committer", oracle=oracle, tp=partitions[0])
        if rng.random() < 0.5:
            spec = environment.spec
            environment.add_client(
                Operator,
                "operator",
                oracle=oracle,
                partitions=partitions,
                brokers=spec.brokers,
                replicas=spec.replicas,
                max_partitions=MAX_PARTITIONS if self._random_for("growth").random() < 0.3 else 0,
            )
        if self.seed % 9 == 8:  # not a random choice, so that the runs of other seeds do not change
            environment.add_client(
                TransactionalCopier, "copier", oracle=oracle, partitions=partitions, source=partitions[0]
            )
        if self._random_for("plain").random() < 0.15:
            environment.add_client(
                Producer, "plain", oracle=oracle, partitions=partitions, is_idempotent=False
            )
        self._start_group(environment, self._random_for("groups"))
        if environment.spec.uses_racks:
            rack_rng = self._random_for("where consumers stand")
            for client in environment.clients:
                if isinstance(client, Consumer):
                    client.rack = rack_rng.choice(RACKS)

    def _start_clients_that_tolerate_loss(self, environment: ClusterEnvironment) -> None:
        """Start clients that tolerate lost records: no transactions, groups or idempotent producers."""
        oracle, partitions = environment.oracle, environment.partitions
        for name, acks in (("plain", -1), ("other", -1), ("careless", 1)):
            environment.add_client(
                Producer, name, oracle=oracle, partitions=partitions, acks=acks, is_idempotent=False
            )
        for name in ("consumer", "reader"):
            environment.add_client(Consumer, name, oracle=oracle, partitions=partitions)
        environment.add_client(OffsetCommitter, "committer", oracle=oracle, tp=partitions[0])

    def _start_group(self, environment: ClusterEnvironment, rng: random.Random) -> None:
        if rng.random() < 0.4:
            self._group = group = GroupOracle(
                "group", environment.oracle, environment.partitions, environment.note
            )
            kind: type[Member] = rng.choice((ClassicMember, ConsumerMember))
            for number in range(rng.choice((1, 2, 3))):
                environment.add_client(
                    kind, f"{MEMBER_PREFIX} {number}", oracle=environment.oracle, group=group
                )

    def _inject_faults(self, environment: ClusterEnvironment) -> None:
        rng = self._rng
        environment.network.faults = random_network_faults(rng)
        injector = ClusterFaultInjector(
            environment,
            random.Random(rng.getrandbits(64)),
            kills_during_writes=self._random_for("half writes").random() < 0.2,
        )
        if self._random_for("late words").random() < 0.15:
            DelayedAlterPartition(environment, injector)
        elif self._group is not None and self._random_for("old commits").random() < 0.3:
            DelayedCommits(environment, injector, MEMBER_PREFIX)
        ends_ms = environment.now_ms + FAULTS_MS
        while environment.now_ms < ends_ms:
            environment.advance(rng.randrange(100, 2_500))
            injector.inject_one()
        environment.advance(rng.randrange(1_000))
        injector.stop()

    def _converge(self, environment: ClusterEnvironment) -> None:
        writers = [client for client in environment.clients if not _is_plain_consumer(client)]
        for client in writers:
            client.is_stopping = True

        def has_converged() -> bool:
            return all(client.is_done for client in writers) and why_not_converged(environment) is None

        def why_not() -> str:
            waiting = [client.name for client in writers if not client.is_done]
            group = None if self._group is None or self._group.is_finished else self._group.why_not_complete()
            return group or why_not_converged(environment) or f"{', '.join(waiting)} cannot finish"

        slowest = min([100, *(drift.speed_percent for drift in environment.spec.clock_drifts.values())])
        environment.advance_until(has_converged, CONVERGENCE_MS * 100 // slowest, why_not)
        environment.note("--- all replicas are in sync")
        different = replica_differences(environment)
        if different:
            raise Violation("; ".join(different))
        self._read_to_the_end(environment)
        environment.oracle.check()

    def _check_reauthentication(self, environment: ClusterEnvironment) -> None:
        """Check after the faults that sessions are reauthenticated and no connection outlives its session."""
        spec = environment.spec
        if (
            not spec.uses_sasl
            or len(spec.nodes) == 1
            or any(each != NO_DRIFT for each in spec.clock_drifts.values())
        ):
            return
        environment.advance(REAUTHENTICATION_MS)
        before = renewed, ended = _count_reauthentications(environment.nodes.values())
        environment.advance(2 * REAUTHENTICATION_MS)
        now_renewed, now_ended = _count_reauthentications(environment.nodes.values())
        if now_ended > ended or now_renewed == renewed:
            raise Violation(
                f"reauthentications and expired connections: {before}, later {(now_renewed, now_ended)}"
            )

    def _read_to_the_end(self, environment: ClusterEnvironment) -> None:
        readers = [
            client
            for client in environment.clients
            if isinstance(client, Consumer) and _is_plain_consumer(client)
        ]

        def has_read() -> bool:
            return all(
                reader.positions[tp] >= environment.oracle.committed_in(tp).end
                for reader in readers
                for tp in environment.partitions
            )

        environment.advance_until(has_read, 5_000, lambda: "consumers are not at the end")
        for reader in readers:
            if reader.reads_committed and not any(
                environment.oracle.committed_in(tp).start for tp in environment.partitions
            ):
                environment.oracle.check_transactions(reader.name, reader.received)


def _with_clock_drift(spec: ClusterSpec, rng: random.Random) -> ClusterSpec:
    """Return the spec, in some seeds with clocks of different speeds or with clocks hours apart."""
    if rng.random() < 0.7:
        return spec
    speeds, hours = ((50, 80, 100, 125, 200), 4) if rng.random() < 0.7 else ((100,), 10)
    drifts = {
        node_id: ClockDrift(rng.choice(speeds), rng.randrange(-hours, hours + 1) * 3_600_000)
        for node_id in spec.nodes
    }
    return spec._replace(clock_drifts=drifts)


def _is_plain_consumer(client: SimulatedClient) -> bool:
    """Return whether the client is a consumer that must read to the end of its partitions."""
    return isinstance(client, Consumer) and not isinstance(client, Member)


def _count_reauthentications(nodes: Iterable[VirtualNode]) -> tuple[int, int]:
    """Return the numbers of reauthenticated sessions, and of connections closed for an expired session."""
    sessions = [node.node.sessions for node in nodes]
    counts = [each for one in sessions if one is not None for each in one.counts.values()]
    renewed = sum(each.successful_reauthentication for each in counts)
    return renewed, sum(each.expired_connections_killed for each in counts)
