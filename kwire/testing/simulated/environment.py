"""A cluster in one process, under one seed: its nodes, its network, its clients, and who watches them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from kwire.broker.replication.roles import Role
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.testing.network import Network, NetworkFaults
from kwire.testing.results import TopicPartition
from kwire.testing.simulated.cluster_invariants import ClusterInvariants, describe_partition
from kwire.testing.simulated.node_sasl import with_sasl
from kwire.testing.simulated.nodes import (
    LOG_DIRS,
    NO_DRIFT,
    ClockDrift,
    ClusterNode,
    address_of,
    node_settings,
)
from kwire.testing.simulated.oracle import LeaderEpochLookup, Oracle
from kwire.testing.simulated.simulated_client import SimulatedClient
from kwire.testing.simulated.violation import Violation
from kwire.testing.virtual_host import EventQueue
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

C = TypeVar("C", bound=SimulatedClient)

CREATE_TOPICS_VERSION: Final = 7
MAX_PARTITIONS: Final = 3
MAX_START_MS: Final = 20_000
"""How long a cluster may take from its first process to the leaders of its first topic."""


class ClusterSpec(NamedTuple):
    """What a cluster consists of."""

    nodes: dict[int, str]
    """The roles of each node by its id."""
    replicas: int = 3
    min_insync_replicas: int = 2
    fetch_bytes: int = 1 << 20
    uses_racks: bool = False
    """Whether nodes stand in two racks, and consumers may read from followers."""
    log_dirs: int = 1
    """How many log directories each node has."""
    max_work_ms: int = 50
    """How long syncs, and other work for threads, take at most."""
    unclean_elections: bool = False
    """Whether its topics prefer any leader to none (unclean.leader.election.enable)."""
    clock_drifts: Mapping[int, ClockDrift] = {}
    """Of nodes whose clocks are wrong."""
    uses_sasl: bool = False
    """Whether nodes log in to each other."""
    config: Mapping[str, str] = {}
    """Kafka's keys for all nodes."""

    @property
    def brokers(self) -> list[int]:
        return [node_id for node_id, roles in self.nodes.items() if "broker" in roles]

    @property
    def controllers(self) -> list[int]:
        return [node_id for node_id, roles in self.nodes.items() if "controller" in roles]


ONE_NODE: Final = ClusterSpec({1: "broker,controller"}, replicas=1, min_insync_replicas=1)
THREE_NODES: Final = ClusterSpec({1: "broker,controller", 2: "broker", 3: "broker"})
FIVE_NODES: Final = ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "broker", 5: "controller"})
FOUR_NODES: Final = ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "controller"})


class ObservedEventQueue(EventQueue):
    """EventQueue, after each of which somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Callable[[], None] = lambda: None

    def run_pending(self) -> None:
        super().run_pending()
        self.check()


class SimulatedEnvironment:
    """See the module."""

    def __init__(
        self,
        rng: random.Random,
        shape: ClusterSpec,
        faults: NetworkFaults,
        topics: dict[str, int],
        ledger: Callable[[LeaderEpochLookup], Oracle] = Oracle,
    ) -> None:
        """`topics` are those to be created, with their numbers of partitions."""
        self.transcript: list[str] = []
        self.spec = shape
        self.rng = rng
        self.events = ObservedEventQueue()
        self._started_ms = self.events.clock.monotonic_ms()
        self.network = Network(self.events, random.Random(rng.getrandbits(64)), faults, self.note)
        self.oracle = ledger(self._led_epoch)
        self.clients: list[SimulatedClient] = []
        self.topics = topics
        self.partitions = [
            TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)
        ]
        self._possible_partitions = [
            TopicPartition(topic, index) for topic in topics for index in range(MAX_PARTITIONS)
        ]
        """Those that there are, or may be, as topics grow."""
        internal = [TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)]
        self.node_errors: list[str] = []
        """What nodes have logged as errors of their own."""
        self.nodes: dict[int, ClusterNode] = {}
        self.invariants = ClusterInvariants(
            self.nodes,
            [*self._possible_partitions, *internal],
            self.oracle,
            shape.min_insync_replicas,
            self.note,
            topics if shape.unclean_elections else (),
        )
        self.events.check = self._check

    def start(self) -> None:
        """Start all nodes."""
        shape, rng = self.spec, self.rng
        for node_id, drift in shape.clock_drifts.items():
            self.note(
                f"--- the clocks of node {node_id} go at {drift.speed_percent} %, {drift.ahead_ms} ms ahead"
            )
        for node_id, roles in sorted(shape.nodes.items(), key=lambda item: "controller" not in item[1]):
            own = node_settings(
                node_id,
                roles,
                shape.controllers,
                replicas=shape.replicas,
                min_insync_replicas=shape.min_insync_replicas,
                fetch_bytes=shape.fetch_bytes,
                has_racks=shape.uses_racks,
                directories=LOG_DIRS[: shape.log_dirs],
            )
            if shape.uses_sasl:
                own = with_sasl(own)
            own |= shape.config
            self.nodes[node_id] = ClusterNode(
                own,
                rng=random.Random(rng.getrandbits(64)),
                network=self.network,
                note=self.note,
                drift=shape.clock_drifts.get(node_id, NO_DRIFT),
                longest_work_ms=shape.max_work_ms,
            )

    # --- what happens

    @property
    def now_ms(self) -> int:
        """Since the beginning."""
        return self.events.clock.monotonic_ms() - self._started_ms

    def note(self, text: str) -> None:
        """Tell the reader of the transcript."""
        self.transcript.append(f"{self.now_ms / 1000:8.3f}  {text}")

    def advance(self, delay_ms: int) -> None:
        """Let time pass. Violation, and whatever a node raises that it must not."""
        self.events.advance(delay_ms)

    def advance_until(self, is_so: Callable[[], bool], within_ms: int, why_not: Callable[[], str]) -> None:
        """Let time pass until something is so. Violation where that takes too long."""
        ends_ms = self.now_ms + within_ms
        while not is_so():
            if self.now_ms >= ends_ms:
                raise Violation(f"after {within_ms} ms {why_not()}")
            self.advance(50)

    def _check(self) -> None:
        self.invariants.check()
        for place in self._possible_partitions:
            if place not in self.partitions and self.invariants.partition(place) is not None:
                self.partitions.append(place)
        if self.node_errors:
            raise Violation(self.node_errors[0])

    def _led_epoch(self, place: TopicPartition, address: PeerAddress) -> int | None:
        """In which epoch the broker there leads a partition; None where it does not, or errs about that."""
        known = self.invariants.partition(place)
        node = next((each for each in self.nodes.values() if address_of(each.node_id) == address), None)
        if known is None or node is None or known.leader != node.node_id or not node.is_running:
            return None
        partition = node.node.replica_manager.get(*place)
        if partition is None or partition.role is not Role.LEADER:
            return None
        return known.leader_epoch if partition.leader_epoch == known.leader_epoch else None

    def log_state(self) -> None:
        """Have the transcript end with what a reader asks first: who has what."""
        image = self.invariants.image
        for node in self.nodes.values():
            state = "paused" if node.host.is_paused else "up" if node.is_running else "down"
            known = image.brokers.get(node.node_id)
            fenced = "" if known is None else ", fenced" if known.fenced else ", unfenced"
            self.note(f"= {node.name} is {state}{fenced}")
        for place in self.invariants.partitions:
            known_partition = self.invariants.partition(place)
            if known_partition is None:
                continue
            self.note(
                f"= {place}: {describe_partition(known_partition)}; "
                f"committed up to {self.oracle.committed_in(place).end}"
            )
            for node in self.nodes.values():
                partition = (
                    node.node.replica_manager.get(*place) if node.is_broker and node.is_running else None
                )
                if partition is not None:
                    log = partition.log
                    self.note(
                        f"=   {node.name}: {partition.role.value} in epoch {partition.leader_epoch}, from "
                        f"{log.log_start_offset} to {log.log_end_offset}, high watermark {log.high_watermark}"
                    )

    # --- clients

    def add_client(self, kind: Callable[..., C], name: str, **more: Any) -> C:
        """A client, which starts at once."""
        client = kind(
            name,
            self.network,
            {node_id: address_of(node_id) for node_id in self.spec.brokers},
            list(self.topics),
            random.Random(self.rng.getrandbits(64)),
            self.note,
            **more,
        )
        self.clients.append(client)
        client.start()
        return client

    def wait_for_brokers(self) -> None:
        """Let time pass until all are there. Violation where that takes too long."""

        def all_are_there() -> bool:
            known = self.invariants.image.brokers
            return all(each in known and not known[each].fenced for each in self.spec.brokers)

        self.advance_until(all_are_there, MAX_START_MS, lambda: "not all brokers are unfenced")

    def create_topics(self) -> None:
        """Once all brokers are there. Violation where that takes too long."""
        self.wait_for_brokers()
        unclean = CreatableTopicConfig(name="unclean.leader.election.enable", value="true")
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=self.spec.replicas,
                configs=[unclean] if self.spec.unclean_elections else [],
            )
            for name, count in self.topics.items()
        ]
        answers: list[Any] = []

        def are_created() -> bool:
            if answers and isinstance(answers[-1], PeerUnreachable):
                ask()  # the broker has not heard yet that it is unfenced
            return bool(answers) and not isinstance(answers[-1], PeerUnreachable)

        def ask() -> None:
            answers.clear()
            connection = self.network.connect(address_of(self.spec.brokers[0]), "operator")

            def answered(answer: Any) -> None:
                answers.append(answer)
                connection.close()

            connection.send(CREATE_TOPICS_VERSION, CreateTopicsRequest(topics=topics), answered)

        ask()
        self.advance_until(are_created, MAX_START_MS, lambda: "topics are not created")
        for topic in answers[0].topics:
            if topic.error_code:
                raise Violation(f"{topic.name} is not created: {topic.error_code} {topic.error_message}")


class _NodeErrorCollector(logging.Handler):
    """Collects what nodes log as their own errors: those with a traceback."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:  # False where a node has thought of it
            self._found.append(logging.Formatter().format(record))


@contextmanager
def collect_node_errors(found: list[str]) -> Iterator[None]:
    """Hear what nodes log as bugs of their own."""
    logger = logging.getLogger("kwire")
    handler, level, propagates = _NodeErrorCollector(found), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    disabled = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
