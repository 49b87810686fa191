"""A cluster on virtual time, in which asyncio programs run unchanged and a seed determines the faults.

    with SimulatedCluster(seed=7) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.run(produce(cluster.bootstrap_servers))     # a coroutine that uses aiokafka, for example
        cluster.stop_faults()
        assert len(cluster.records("orders")) == 100

The seed decides the delay of each response and the pieces in which it arrives. It also decides which
connections break, and which brokers crash, pause, lose their network, their power or their disk, and when.
Time is virtual, so a minute takes a second. The same seed reproduces a failure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack, suppress
from itertools import count, cycle
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kwire.broker.metadata.image import TopicImage
from kwire.client.errors import UnknownPartition
from kwire.host.host import PeerUnreachable
from kwire.testing.arguments import (
    check_configs,
    check_delay,
    check_number,
    check_seconds,
    check_size,
    check_text,
)
from kwire.testing.lookup_table import LookupTable, describe_choice
from kwire.testing.results import Record, TopicPartition
from kwire.testing.simulated.broker import SimulatedBroker
from kwire.testing.simulated.client_guard import SUPPORTED_CLIENTS, ClientGuard, UnsupportedClient
from kwire.testing.simulated.convergence import replica_differences, why_not_converged
from kwire.testing.simulated.environment import ClusterSpec, SimulatedEnvironment, collect_node_errors
from kwire.testing.simulated.fault_injector import RELIABLE_NETWORK, FaultInjector, random_network_faults
from kwire.testing.simulated.nodes import address_of
from kwire.testing.simulated.patched_time import patch_time_and_random
from kwire.testing.simulated.program_oracle import ProduceObserver, ProgramOracle
from kwire.testing.simulated.violation import Violation
from kwire.testing.simulated.virtual_loop import ProgramKilled, VirtualLoop
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.plural import plural

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

MAX_CONTROLLERS: Final = 3
MAX_REPLICAS: Final = 3
MAX_CONVERGENCE_MS: Final = 30_000
"""The longest time until all replicas are in sync again."""
FAULT_INTERVAL_MS: Final = 100, 2_500
"""The shortest and the longest time between two injected faults."""
NO_CONNECTION_HINT: Final = f"no program has connected: {SUPPORTED_CLIENTS}"
MAX_LINES_SHOWN: Final = 40
"""The maximum number of lines of the transcript that a failure shows."""
CREATE_TOPICS_VERSION: Final = 7
REQUEST_TIMEOUT_MS: Final = 2_000
"""The timeout of one request of the test."""


class SimulatedCluster:
    """A simulated cluster. Must be used in one thread. Only one cluster can be in use at a time."""

    def __init__(
        self,
        seed: int,
        config: Mapping[str, object] | None = None,
        *,
        size: int = 3,
        faults: bool = True,
    ) -> None:
        """Create a cluster of `size` brokers. `config` has Kafka's broker configs, for all brokers.

        With `faults`, the seed determines random faults of the network and of the brokers.
        """
        check_size(size)
        check_configs(config)
        self.seed = seed
        self._injects_faults = faults
        replicas = min(size, MAX_REPLICAS)
        roles = {
            node_id: "broker,controller" if node_id <= MAX_CONTROLLERS else "broker"
            for node_id in range(1, size + 1)
        }
        # Racks are set because aiokafka keeps brokers in sets. Before Python 3.12, the hash of None depended
        # on a memory address, and with it the order of these sets.
        spec = ClusterSpec(
            roles,
            replicas=replicas,
            min_insync_replicas=max(1, replicas - 1),
            uses_racks=True,
            config={
                "auto.create.topics.enable": "true",
                "log.cleaner.enable": "false",  # compaction would change committed records
                **{key: _text(value) for key, value in (config or {}).items()},
            },
        )
        self._oracle = ProgramOracle()
        # The purposes "world" and "trouble" are part of the seed: other words would change every run.
        self._environment = SimulatedEnvironment(self._rng("world"), spec, RELIABLE_NETWORK, self._oracle)
        self.brokers = LookupTable(
            {node_id: SimulatedBroker(self._environment, node_id) for node_id in roles}
        ).named("broker")
        """All brokers by id, from 1 on, including crashed ones."""
        self._injector: FaultInjector | None = None
        self._was_connected_to = False
        self._guard = ClientGuard([address_of(node_id).host for node_id in roles])
        self._numbers = count(1)
        self._exit_stack = ExitStack()

    def _new_observer(self) -> ProduceObserver:
        self._was_connected_to = True
        return ProduceObserver(self._oracle, lambda: self._environment.invariants.image)

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"kwire simulated cluster {self.seed}: {purpose}")

    # --- start and stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        except (Exception, UnsupportedClient) as found:
            error = found
            raise
        finally:
            if error is not None:
                error.add_note(self.report())
            self.stop()

    def start(self) -> None:
        """Start all brokers, wait until they serve requests, and begin to inject faults."""
        environment = self._environment
        if environment.nodes:
            raise RuntimeError("a simulated cluster can be started once: create another SimulatedCluster")
        self._exit_stack.enter_context(collect_node_errors(environment.node_errors))
        environment.start()
        environment.wait_for_brokers()
        self._guard.install()
        self._exit_stack.callback(self._guard.remove)
        if self._injects_faults:
            rng = self._rng("trouble")
            environment.network.faults = random_network_faults(rng)
            self._injector = FaultInjector(environment, rng)
            self._schedule_fault(self._injector, rng)

    @property
    def _running(self) -> SimulatedEnvironment:
        """The environment. Raises RuntimeError if it has not been started."""
        if not self._environment.nodes:
            raise RuntimeError("the cluster is not running: call start(), or use it in a with statement")
        return self._environment

    def stop(self) -> None:
        """Restore the logging and the Kafka clients that `start` changed. The brokers are not shut down."""
        self._exit_stack.close()

    def _schedule_fault(self, injector: FaultInjector, rng: random.Random) -> None:
        def make() -> None:
            if not injector.is_stopped:
                injector.inject_one()
                self._schedule_fault(injector, rng)

        self._environment.events.timers.add(rng.randrange(*FAULT_INTERVAL_MS), make)

    # --- running programs

    @property
    def bootstrap_servers(self) -> str:
        """The host:port of all brokers, for programs that run in the simulation."""
        return ",".join(str(address_of(node_id)) for node_id in self._environment.spec.brokers)

    def run(
        self, program: Coroutine[Any, Any, T], *, timeout_s: float = 600, kill_after_s: float | None = None
    ) -> T | None:
        """Run a coroutine and return its result. Raises TimeoutError after `timeout_s` of virtual time.

        With `kill_after_s`, the program is killed after this time, and `timeout_s` has no effect. The
        program's connections break, and nothing that it does during its cancellation reaches a broker. The
        result is None, unless the program ended before. Raises Violation if an invariant does not hold, and
        UnsupportedClient if a client cannot be used in a simulation, such as kafka-python.
        """
        check_seconds("timeout_s", timeout_s)
        check_seconds("kill_after_s", 0 if kill_after_s is None else kill_after_s)
        environment = self._running
        lasts_s = timeout_s if kill_after_s is None else kill_after_s

        loop = VirtualLoop(
            environment.network,
            "program",
            self._rng(f"pieces from {environment.now_ms} on"),
            self._new_observer,
            self._guard,
            ends_ms=environment.events.clock.monotonic_ms() + int(lasts_s * 1000),
            is_killed=kill_after_s is not None,
        )
        chance = self._rng(f"program from {environment.now_ms} on")
        environment.note("--- a program begins")
        with (
            patch_time_and_random(environment.events.clock, chance, loop.sleep),
            self._guard.interruptible(),
            suppress(ProgramKilled),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            result = runner.run(program)
            environment.note("--- the program has ended")
            return result
        environment.note("--- the program is killed")
        return None

    def advance(self, delay_ms: int) -> None:
        """Advance the clock while no program runs."""
        check_delay(delay_ms)
        self._running.advance(delay_ms)

    @property
    def now_s(self) -> float:
        """The virtual time in seconds since the cluster was created."""
        return self._environment.now_ms / 1000

    # --- faults, also while a program runs

    def isolate(self, broker_id: int) -> None:
        """Cut the network between a broker and all others, clients included, until `heal`.

        Raises LookupError for an unknown id.
        """
        node_id = self.brokers[broker_id].node_id
        self._running.network.isolate(self._running.nodes[node_id].host.name)

    def heal(self) -> None:
        """Restore all links, including links that injected faults have cut."""
        self._environment.network.heal()

    def stop_faults(self) -> None:
        """End all faults, start all brokers that are down, and wait until all replicas are in sync.

        Raises Violation if that takes longer than `MAX_CONVERGENCE_MS`.
        """
        environment = self._running
        if self._injector is None:
            self._injector = FaultInjector(environment, self._rng("trouble"))
        if not self._injector.is_stopped:
            self._injector.stop()
        environment.advance_until(
            lambda: why_not_converged(environment) is None,
            MAX_CONVERGENCE_MS,
            lambda: why_not_converged(environment) or "the cluster has converged",
        )

    def check(self) -> None:
        """Call `stop_faults`, and raise Violation if replicas of a partition differ.

        Raises UnsupportedClient if a client that cannot be used in a simulation was used outside of `run`, or
        in a thread.

        The simulation also checks after every event that acknowledged records are in the log, in order and
        without duplicates.
        """
        self._guard.raise_recorded()
        self.stop_faults()
        different = replica_differences(self._environment)
        if different:
            raise Violation("; ".join(different))

    # --- topics and records

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic, wait until every partition has a leader, and return the topic's name.

        Raises ApiError if a broker returns an error, and Violation after a timeout.
        """
        check_text("name", name)
        check_number("partitions", partitions)
        check_configs(config)
        environment = self._running
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=environment.spec.replicas,
            configs=[
                CreatableTopicConfig(name=key, value=_text(value)) for key, value in (config or {}).items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic])
        was_there = name in environment.invariants.image.topics
        [result] = self._send_to_any_broker(CREATE_TOPICS_VERSION, request).topics
        # The response to the first attempt may be lost. Then the second attempt finds that the topic exists.
        if result.error_code and (was_there or result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(ErrorCode(result.error_code), result.error_message)

        def has_leaders() -> bool:
            known = [
                environment.invariants.partition(TopicPartition(name, index)) for index in range(partitions)
            ]
            return all(each is not None and each.leader >= 0 for each in known)

        environment.advance_until(
            has_leaders, MAX_CONVERGENCE_MS, lambda: f"{name} has partitions without a leader"
        )
        return name

    def new_topic(
        self, prefix: str = "topic", *, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> str:
        """Create a topic with a unique name that starts with `prefix`, and return the name."""
        return self.create_topic(self.new_name(prefix), partitions=partitions, config=config)

    def new_name(self, prefix: str) -> str:
        """Return a unique name for a topic, a group or a transactional producer, the same in each run."""
        check_text("prefix", prefix)
        return f"{prefix}-{next(self._numbers)}"

    def _send_to_any_broker(self, version: int, request: Any) -> Any:
        """Send a request to each broker in turn, until a broker responds. Raises Violation if none does."""
        environment = self._environment
        ends_ms = environment.now_ms + MAX_CONVERGENCE_MS
        for node_id in cycle(environment.spec.brokers):
            responses: list[Any] = []
            connection = environment.network.connect(address_of(node_id), "the test")
            connection.send(version, request, responses.append)
            gives_up_ms = min(ends_ms, environment.now_ms + REQUEST_TIMEOUT_MS)
            while not responses and environment.now_ms < gives_up_ms:
                environment.advance(10)
            connection.close()
            if not isinstance(responses[0], PeerUnreachable):
                return responses[0]
            if environment.now_ms >= ends_ms:
                break
            environment.advance(100)
        raise Violation(f"no broker has responded to the test within {MAX_CONVERGENCE_MS} ms")

    def leader(self, topic: str, partition: int = 0) -> SimulatedBroker:
        """Return the leader of a partition. Raises LookupError if there is no partition or no leader.

        Raises ApiError if the topic does not exist.
        """
        check_number("partition", partition)
        invariants = self._running.invariants
        known = self._topic(topic)
        found = invariants.partition(TopicPartition(topic, partition))
        if found is None:
            raise UnknownPartition(topic, partition, len(known.partitions))
        if found.leader < 0:
            raise LookupError(f"{topic}-{partition} has no leader at the moment")
        return self.brokers[found.leader]

    def records(self, topic: str) -> list[Record]:
        """Return all committed records of a topic, without those of open or aborted transactions.

        Raises ApiError if the topic does not exist.
        """
        self._topic(topic)
        return self._oracle.records(topic)

    def _topic(self, name: str) -> TopicImage:
        """Return the metadata of a topic. Raises ApiError, which names the topics that exist."""
        check_text("topic", name)
        topics = self._running.invariants.image.topics
        if name not in topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {name}: {describe_choice(list(topics))}",
            )
        return topics[name]

    def report(self) -> str:
        """Return the seed, the end of the transcript, and the committed records and offsets as text."""
        from kwire.testing.simulated.cluster_contents import describe_contents

        lines = self._environment.transcript
        more = (
            [f"({plural(len(lines) - MAX_LINES_SHOWN, 'earlier line')})"]
            if len(lines) > MAX_LINES_SHOWN
            else []
        )
        contents = describe_contents(self._environment, self._oracle)
        return "\n".join(
            [
                f"kwire simulation with seed {self.seed}:",
                *more,
                *lines[-MAX_LINES_SHOWN:],
                *([f"--- topics and groups at {self.now_s:.3f} s"] if contents else []),
                *contents,
                *([] if self._was_connected_to else [NO_CONNECTION_HINT]),
            ]
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
