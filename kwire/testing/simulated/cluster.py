"""A whole cluster under one seed, in which programs that use asyncio run as they are, on virtual time.

    with SimulatedCluster(seed=7) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.run(produce(cluster.bootstrap_servers))     # a stock client, say aiokafka, or your own
        cluster.calm()
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
        trouble: bool = True,
    ) -> None:
        """`config` are Kafka's keys for each of `size` brokers. Without `trouble` nothing goes wrong."""
        if size < 1:
            raise ValueError(f"a cluster of {size} brokers: ask for one at least")
        self.seed = seed
        self._has_trouble = trouble
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
            has_racks=True,
            config={
                "auto.create.topics.enable": "true",
                "log.cleaner.enable": "false",  # or what is committed would not stay what it is
                **{key: _text(value) for key, value in (config or {}).items()},
            },
        )
        self._world = SimulatedEnvironment(
            self._chance("world"), shape, RELIABLE_NETWORK, {}, self._new_ledger
        )
        self.brokers = {node_id: SimulatedBroker(self._world, node_id) for node_id in roles}
        """By id, from 1 on: those that have crashed, too."""
        self._trouble: FaultInjector | None = None
        self._is_reached = False
        self._open = ExitStack()

    def _new_ledger(self, epoch_led: LeaderEpochLookup) -> ProgramOracle:
        self._ledger = ProgramOracle(epoch_led)
        return self._ledger

    def _new_conversation(self) -> ProduceObserver:
        self._is_reached = True
        return ProduceObserver(self._ledger, lambda: self._world.watch.image)

    def _chance(self, purpose: str) -> random.Random:
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
        world = self._world
        self._open.enter_context(collect_node_errors(world.bugs))
        world.begin()
        world.await_brokers()
        if self._has_trouble:
            rng = self._chance("trouble")
            world.network.faults = random_network_faults(rng)
            self._trouble = FaultInjector(world, rng)
            self._make_trouble_later(self._trouble, rng)

    def stop(self) -> None:
        """Forget it."""
        self._open.close()

    def _make_trouble_later(self, trouble: FaultInjector, rng: random.Random) -> None:
        def make() -> None:
            if not trouble.is_over:
                trouble.step()
                self._make_trouble_later(trouble, rng)

        self._world.events.timers.add(rng.randrange(*FAULT_INTERVAL_MS), make)

    # --- running programs

    @property
    def bootstrap_servers(self) -> str:
        """Where programs connect that run in it."""
        return ",".join(str(address_of(node_id)) for node_id in self._world.shape.brokers)

    def run(
        self, program: Coroutine[Any, Any, T], *, within_s: float = 600, kill_after_s: float | None = None
    ) -> T | None:
        """Run a program to its end, and give what it gives. TimeoutError where it has none `within_s`.

        With `kill_after_s` it is killed then: its connections are gone, and what it still does as it is
        cancelled reaches no broker. None is given, unless it has ended before.
        """
        world = self._world
        lasts_s = within_s if kill_after_s is None else kill_after_s

        loop = VirtualLoop(
            world.network,
            "program",
            self._chance(f"pieces from {world.now_ms} on"),
            self._new_conversation,
            ends_ms=world.events.clock.monotonic_ms() + int(lasts_s * 1000),
            is_killed=kill_after_s is not None,
        )
        chance = self._chance(f"program from {world.now_ms} on")
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
        self._world.advance(delay_ms)

    @property
    def now_s(self) -> float:
        """How long ago it began."""
        return self._world.now_ms / 1000

    # --- what goes wrong, as a program may ask for, too, while it runs

    def isolate(self, broker_id: int) -> None:
        """Nothing goes to a broker or comes from it, until `heal`."""
        if broker_id not in self.brokers:
            known = ", ".join(map(str, self.brokers))
            raise KeyError(f"there is no broker {broker_id}: name one of {known}")
        self._world.network.isolate(self._world.nodes[broker_id].host.name)

    def heal(self) -> None:
        """All reach each other."""
        self._world.network.heal()

    def calm(self) -> None:
        """Stop all faults and return once all replicas are in sync; raise `Violation` if they never are."""
        world = self._world
        if self._trouble is None:
            self._trouble = FaultInjector(world, self._chance("trouble"))
        if not self._trouble.is_over:
            self._trouble.end()
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
        self.calm()
        different = replica_differences(self._world)
        if different:
            raise Violation("; ".join(different))

    # --- what there is

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> str:
        """Make a topic, and return its name once it is led. ApiError, as TOPIC_ALREADY_EXISTS."""
        world = self._world
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=world.shape.replicas,
            configs=[
                CreatableTopicConfig(name=key, value=_text(value)) for key, value in (config or {}).items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic])
        was_there = name in world.watch.image.topics
        [told] = self._patiently(CREATE_TOPICS_VERSION, request).topics
        # It is there, too, where the answer to the first attempt was lost.
        if told.error_code and (was_there or told.error_code != ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(ErrorCode(told.error_code), told.error_message)

        def is_led() -> bool:
            known = [world.watch.partition(TopicPartition(name, index)) for index in range(partitions)]
            return all(each is not None and each.leader >= 0 for each in known)

        world.advance_until(is_led, MAX_CONVERGENCE_MS, lambda: f"{name} is not led")
        return name

    def _patiently(self, version: int, request: Any) -> Any:
        """What some broker answers, as soon as one does. Violation where none does."""
        world = self._world
        ends_ms = world.now_ms + MAX_CONVERGENCE_MS
        for node_id in cycle(world.shape.brokers):
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
        found = self._world.watch.partition(TopicPartition(topic, partition))
        if found is None or found.leader < 0:
            raise LookupError(f"nobody leads {topic}-{partition}")
        return self.brokers[found.leader]

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that count by now, partition by partition: none of open transactions."""
        return self._ledger.records(topic)

    def report(self) -> str:
        """The seed, and the last of what has happened, for a person."""
        said = self._world.transcript
        more = [f"({len(said) - MAX_LINES_SHOWN} lines before)"] if len(said) > MAX_LINES_SHOWN else []
        last = [] if self._is_reached else [NO_CONNECTION_HINT]
        return "\n".join(
            [f"kwire simulated this with seed {self.seed}:", *more, *said[-MAX_LINES_SHOWN:], *last]
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
