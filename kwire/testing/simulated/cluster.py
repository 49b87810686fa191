"""A whole cluster under one seed, in which programs that use asyncio run as they are, on virtual time.

    with SimulatedCluster(seed=7) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.run(produce(cluster.bootstrap_servers))     # a stock client, say aiokafka, or your own
        cluster.stop_faults()
        assert len(cluster.records("orders")) == 100

The seed decides how long each answer takes and in which pieces it comes, whose connections break, which
brokers die, are paused, cut off or wiped, and when. Nothing is real, so that a minute takes a second, and the
seed alone brings a failure back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack, suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kwire.host.host import PeerUnreachable
from kwire.testing.results import Record, TopicPartition
from kwire.testing.simulated.broker import SimulatedBroker
from kwire.testing.simulated.convergence import replica_differences, why_not_converged
from kwire.testing.simulated.environment import ClusterSpec, SimulatedEnvironment, collect_node_errors
from kwire.testing.simulated.fault_injector import RELIABLE_NETWORK, FaultInjector, random_network_faults
from kwire.testing.simulated.nodes import address_of
from kwire.testing.simulated.oracle import LeaderEpochLookup
from kwire.testing.simulated.patched_time import patch_time_and_random
from kwire.testing.simulated.program_oracle import ProduceObserver, ProgramOracle
from kwire.testing.simulated.violation import Violation
from kwire.testing.simulated.virtual_loop import ProgramKilled, VirtualLoop
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

MAX_CONTROLLERS: Final = 3
MAX_REPLICAS: Final = 3
MAX_CONVERGENCE_MS: Final = 30_000
"""How long a cluster may take to be whole again."""
FAULT_INTERVAL_MS: Final = 100, 2_500
"""How long it is from one trouble to the next, at least and at most."""
NO_CONNECTION_HINT: Final = (
    "no program has connected: only asyncio's connections lead here, as aiokafka's do, from within `run`; "
    "kafka-python and confluent-kafka have sockets and threads of their own"
)
MAX_LINES_SHOWN: Final = 40
"""How many lines of what has happened a failure has."""
CREATE_TOPICS_VERSION: Final = 7
REQUEST_TIMEOUT_MS: Final = 2_000
"""How long one broker is waited for."""


class SimulatedCluster:
    """See the module. In one thread, and one at a time."""

    def __init__(
        self,
        seed: int,
        config: Mapping[str, object] | None = None,
        *,
        size: int = 3,
        faults: bool = True,
    ) -> None:
        """`config` are Kafka's keys for each of `size` brokers. Without `faults` nothing goes wrong."""
        if size < 1:
            raise ValueError(f"a cluster of {size} brokers: ask for one at least")
        self.seed = seed
        self._injects_faults = faults
        replicas = min(size, MAX_REPLICAS)
        roles = {
            node_id: "broker,controller" if node_id <= MAX_CONTROLLERS else "broker"
            for node_id in range(1, size + 1)
        }
        # In racks: clients keep what they know of brokers in sets, and before Python 3.12 the order of these
        # follows from where None is in memory.
        shape = ClusterSpec(
            roles,
            replicas=replicas,
            min_insync_replicas=max(1, replicas - 1),
            uses_racks=True,
            config={
                "auto.create.topics.enable": "true",
                "log.cleaner.enable": "false",  # or what is committed would not stay what it is
                **{key: _text(value) for key, value in (config or {}).items()},
            },
        )
        self._environment = SimulatedEnvironment(
            self._rng("world"), shape, RELIABLE_NETWORK, {}, self._new_oracle
        )
        self.brokers = {node_id: SimulatedBroker(self._environment, node_id) for node_id in roles}
        """By id, from 1 on: those that have crashed, too."""
        self._injector: FaultInjector | None = None
        self._was_connected_to = False
        self._exit_stack = ExitStack()

    def _new_oracle(self, epoch_led: LeaderEpochLookup) -> ProgramOracle:
        self._oracle = ProgramOracle(epoch_led)
        return self._oracle

    def _new_observer(self) -> ProduceObserver:
        self._was_connected_to = True
        return ProduceObserver(self._oracle, lambda: self._environment.invariants.image)

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"kwire simulated cluster {self.seed}: {purpose}")

    # --- its life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
        except Exception as found:
            error = found
            raise
        finally:
            if error is not None:
                error.add_note(self.report())
            self.stop()

    def start(self) -> None:
        """Return once all brokers serve."""
        world = self._environment
        self._exit_stack.enter_context(collect_node_errors(world.node_errors))
        world.start()
        world.wait_for_brokers()
        if self._injects_faults:
            rng = self._rng("trouble")
            world.network.faults = random_network_faults(rng)
            self._injector = FaultInjector(world, rng)
            self._schedule_fault(self._injector, rng)

    def stop(self) -> None:
        """Forget it."""
        self._exit_stack.close()

    def _schedule_fault(self, trouble: FaultInjector, rng: random.Random) -> None:
        def make() -> None:
            if not trouble.is_stopped:
                trouble.inject_one()
                self._schedule_fault(trouble, rng)

        self._environment.events.timers.add(rng.randrange(*FAULT_INTERVAL_MS), make)

    # --- running programs

    @property
    def bootstrap_servers(self) -> str:
        """Where programs connect that run in it."""
        return ",".join(str(address_of(node_id)) for node_id in self._environment.spec.brokers)

    def run(
        self, program: Coroutine[Any, Any, T], *, timeout_s: float = 600, kill_after_s: float | None = None
    ) -> T | None:
        """Run a program to its end, and give what it gives. TimeoutError where it has none `timeout_s`.

        With `kill_after_s` it is killed then: its connections are gone, and what it still does as it is
        cancelled reaches no broker. None is given, unless it has ended before.
        """
        world = self._environment
        lasts_s = timeout_s if kill_after_s is None else kill_after_s

        loop = VirtualLoop(
            world.network,
            "program",
            self._rng(f"pieces from {world.now_ms} on"),
            self._new_observer,
            ends_ms=world.events.clock.monotonic_ms() + int(lasts_s * 1000),
            is_killed=kill_after_s is not None,
        )
        chance = self._rng(f"program from {world.now_ms} on")
        world.note("--- a program begins")
        with (
            patch_time_and_random(world.events.clock, chance, loop.sleep),
            suppress(ProgramKilled),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            result = runner.run(program)
            world.note("--- the program has ended")
            return result
        world.note("--- the program is killed")
        return None

    def advance(self, delay_ms: int) -> None:
        """Let time pass, while no program runs."""
        if delay_ms < 0:
            raise ValueError(f"time does not go back, by {delay_ms} ms or at all")
        self._environment.advance(delay_ms)

    @property
    def now_s(self) -> float:
        """How long ago it began."""
        return self._environment.now_ms / 1000

    # --- what goes wrong, as a program may ask for, too, while it runs

    def isolate(self, broker_id: int) -> None:
        """Nothing goes to a broker or comes from it, until `heal`."""
        if broker_id not in self.brokers:
            known = ", ".join(map(str, self.brokers))
            raise KeyError(f"there is no broker {broker_id}: name one of {known}")
        self._environment.network.isolate(self._environment.nodes[broker_id].host.name)

    def heal(self) -> None:
        """All reach each other."""
        self._environment.network.heal()

    def stop_faults(self) -> None:
        """Stop all faults and return once all replicas are in sync; raise `Violation` if they never are."""
        world = self._environment
        if self._injector is None:
            self._injector = FaultInjector(world, self._rng("trouble"))
        if not self._injector.is_stopped:
            self._injector.stop()
        world.advance_until(
            lambda: why_not_converged(world) is None,
            MAX_CONVERGENCE_MS,
            lambda: why_not_converged(world) or "it is whole",
        )

    def check(self) -> None:
        """Once all is well: Violation where the cluster has not kept what it has promised to programs.

        That what was acknowledged is there, once and in order, is held after every step; here, that all
        replicas are the same.
        """
        self.stop_faults()
        different = replica_differences(self._environment)
        if different:
            raise Violation("; ".join(different))

    # --- what there is

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> str:
        """Make a topic, and return its name once it is led. ApiError, as TOPIC_ALREADY_EXISTS."""
        world = self._environment
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=world.spec.replicas,
            configs=[
                CreatableTopicConfig(name=key, value=_text(value)) for key, value in (config or {}).items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic])
        was_there = name in world.invariants.image.topics
        [told] = self._send_to_any_broker(CREATE_TOPICS_VERSION, request).topics
        # It is there, too, where the answer to the first attempt was lost.
        if told.error_code and (was_there or told.error_code != ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(ErrorCode(told.error_code), told.error_message)

        def is_led() -> bool:
            known = [world.invariants.partition(TopicPartition(name, index)) for index in range(partitions)]
            return all(each is not None and each.leader >= 0 for each in known)

        world.advance_until(is_led, MAX_CONVERGENCE_MS, lambda: f"{name} is not led")
        return name

    def _send_to_any_broker(self, version: int, request: Any) -> Any:
        """What some broker answers, as soon as one does. Violation where none does."""
        world = self._environment
        ends_ms = world.now_ms + MAX_CONVERGENCE_MS
        for node_id in cycle(world.spec.brokers):
            answers: list[Any] = []
            connection = world.network.connect(address_of(node_id), "the test")
            connection.send(version, request, answers.append)
            gives_up_ms = min(ends_ms, world.now_ms + REQUEST_TIMEOUT_MS)
            while not answers and world.now_ms < gives_up_ms:
                world.advance(10)
            connection.close()
            if not isinstance(answers[0], PeerUnreachable):
                return answers[0]
            if world.now_ms >= ends_ms:
                break
            world.advance(100)
        raise Violation(f"no broker answers the test within {MAX_CONVERGENCE_MS} ms")

    def leader(self, topic: str, partition: int = 0) -> SimulatedBroker:
        """The broker that leads a partition. LookupError where nobody does."""
        found = self._environment.invariants.partition(TopicPartition(topic, partition))
        if found is None or found.leader < 0:
            raise LookupError(f"nobody leads {topic}-{partition}")
        return self.brokers[found.leader]

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that count by now, partition by partition: none of open transactions."""
        return self._oracle.records(topic)

    def report(self) -> str:
        """The seed, and the last of what has happened, for a person."""
        said = self._environment.transcript
        more = [f"({len(said) - MAX_LINES_SHOWN} lines before)"] if len(said) > MAX_LINES_SHOWN else []
        last = [] if self._was_connected_to else [NO_CONNECTION_HINT]
        return "\n".join(
            [f"kwire simulated this with seed {self.seed}:", *more, *said[-MAX_LINES_SHOWN:], *last]
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
