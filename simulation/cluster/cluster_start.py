"""The start of a cluster without faults, with the timeouts of Apache Kafka: the time to the first write.

The nodes start at different times, and one of three controllers may be missing. After the first write, all
nodes stop and start again.
"""

from __future__ import annotations

import random
from typing import Final

from kwire.testing.simulated.environment import ClusterSpec, collect_node_errors
from kwire.testing.simulated.fault_injector import RELIABLE_NETWORK
from kwire.testing.simulated.violation import Violation
from simulation.cluster.environment import ClusterEnvironment
from simulation.cluster.producers import Producer
from simulation.cluster.simulated_client import Steps
from simulation.storage.run import main

MODULE: Final = "simulation.cluster.cluster_start"
SPECS: Final = (
    ClusterSpec(dict.fromkeys((1, 2, 3), "broker,controller")),
    ClusterSpec(
        {1: "broker,controller", 2: "broker,controller", 3: "controller"}, replicas=2, min_insync_replicas=2
    ),
    ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "controller"}),
    ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "controller", 5: "controller", 6: "controller"}),
)
DEFAULTS: Final = {
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.request.timeout.ms": "2000",
    "metadata.max.idle.interval.ms": "500",
    "replica.fetch.backoff.ms": "1000",
    "replica.fetch.wait.max.ms": "500",
}
"""Apache Kafka's defaults. Other simulations use shorter timeouts."""
DISK_MS: Final = 4
"""The longest time of a sync."""
SHUTDOWN_MS: Final = 2_000
STEP_MS: Final = 5
LIMIT_MS: Final = 30_000


class OneRecordProducer(Producer):
    """A producer that ends after its first acknowledged batch."""

    def run(self) -> Steps[None]:
        [tp] = self.partitions
        while not (yield from self.deliver(tp, self.new_records(tp))):
            pass


class ClusterStart:
    """The start and the restart of one cluster, each until a producer has written a record."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(f"kwire start {seed}")
        spec = rng.choice(SPECS)._replace(config=DEFAULTS, max_work_ms=DISK_MS)
        self._environment = ClusterEnvironment(
            random.Random(rng.getrandbits(64)), spec, RELIABLE_NETWORK, {"a": 1}
        )
        separate = [node_id for node_id in spec.controllers if node_id not in spec.brokers]
        self._missing = rng.choice([None, *separate]) if len(spec.controllers) > 2 else None
        self.start_ms = self.restart_ms = 0
        """The times from the last start of a node to an acknowledged write."""

    @property
    def transcript(self) -> list[str]:
        return self._environment.transcript

    def run(self) -> None:
        """Run the simulation. Raises Violation if no write is acknowledged."""
        environment, rng = self._environment, self._rng
        with collect_node_errors(environment.node_errors):
            environment.start()
            for node in environment.nodes.values():
                node.die()
            began_ms = self._start_nodes()
            environment.create_topics()
            self.start_ms = self._write_one() - began_ms
            environment.note(f"acknowledged {self.start_ms} ms after the start")
            environment.advance(rng.randrange(10_000))
            self._stop_nodes()
            environment.advance(rng.randrange(60_000))
            began_ms = self._start_nodes()
            self.restart_ms = self._write_one() - began_ms
            environment.note(f"acknowledged {self.restart_ms} ms after the restart")

    def _start_nodes(self) -> int:
        """Start all nodes except for the missing node. Return the time of the last start."""
        rng, environment = self._rng, self._environment
        longest_ms = rng.choice((0, 30, 300, 3_000))
        begin_ms = environment.now_ms
        starts_ms = sorted(
            (begin_ms + rng.randrange(longest_ms + 1), node_id)
            for node_id in environment.nodes
            if node_id != self._missing
        )
        for start_ms, node_id in starts_ms:
            environment.advance(start_ms - environment.now_ms)
            environment.note(f"node {node_id} starts")
            environment.nodes[node_id].start()
        return environment.now_ms

    def _stop_nodes(self) -> None:
        """Stop all nodes as `kwire cluster stop` does: brokers first, each with a controlled shutdown."""
        environment = self._environment
        running = [node for node in environment.nodes.values() if node.is_running]
        for node in running:
            if node.is_broker:
                node.node.controlled_shutdown(node.stop)
        environment.advance(SHUTDOWN_MS)
        for node in running:
            if node.is_running:  # a controller, or the last nodes without a majority of the controllers
                node.stop()

    def _write_one(self) -> int:
        """Write a record, and return the time of the acknowledgment."""
        environment = self._environment
        oracle, partitions = environment.oracle, environment.partitions
        name = f"producer {len(environment.clients)}"
        producer = environment.add_client(
            OneRecordProducer, name, oracle=oracle, partitions=partitions, is_idempotent=False
        )
        ends_ms = environment.now_ms + LIMIT_MS
        while not producer.is_done:
            if environment.now_ms > ends_ms:
                environment.log_state()
                raise Violation(f"no write is acknowledged after {LIMIT_MS} ms")
            environment.advance(STEP_MS)
        return environment.now_ms


if __name__ == "__main__":
    raise SystemExit(main(ClusterStart, MODULE))
