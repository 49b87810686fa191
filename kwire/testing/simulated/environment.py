"""The environment of a simulation: its nodes, network and clients, and the checks after each event."""

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
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

C = TypeVar("C", bound=SimulatedClient)

CREATE_TOPICS_VERSION: Final = 7
MAX_PARTITIONS: Final = 3
MAX_START_MS: Final = 20_000
"""The longest time from the start of a cluster to the leaders of its first topic."""


class ClusterSpec(NamedTuple):
    """The nodes of a cluster, and their settings."""

    nodes: dict[int, str]
    """Process roles by node id."""
    replicas: int = 3
    min_insync_replicas: int = 2
    fetch_bytes: int = 1 << 20
    """`replica.fetch.max.bytes`."""
    uses_racks: bool = False
    """Whether nodes are in two racks, so that consumers may fetch from followers."""
    log_dirs: int = 1
    """The number of log directories of each node."""
    max_work_ms: int = 50
    """The longest delay of syncs and other worker tasks."""
    unclean_elections: bool = False
    """Whether topics set unclean.leader.election.enable."""
    clock_drifts: Mapping[int, ClockDrift] = {}
    """The clock errors of nodes, by node id."""
    uses_sasl: bool = False
    """Whether nodes authenticate to each other."""
    has_bootstrap_snapshot: bool = False
    """Whether the log directories look as if Apache Kafka 4.4 had formatted them (KIP-1170)."""
    config: Mapping[str, str] = {}
    """Configs of all nodes."""

    @property
    def brokers(self) -> list[int]:
        """The ids of nodes with the broker role."""
        return [node_id for node_id, roles in self.nodes.items() if "broker" in roles]

    @property
    def controllers(self) -> list[int]:
        """The ids of nodes with the controller role."""
        return [node_id for node_id, roles in self.nodes.items() if "controller" in roles]


ONE_NODE: Final = ClusterSpec({1: "broker,controller"}, replicas=1, min_insync_replicas=1)
THREE_NODES: Final = ClusterSpec({1: "broker,controller", 2: "broker", 3: "broker"})
FIVE_NODES: Final = ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "broker", 5: "controller"})
FOUR_NODES: Final = ClusterSpec({1: "broker", 2: "broker", 3: "broker", 4: "controller"})


class ObservedEventQueue(EventQueue):
    """An event queue that calls `check` after each event."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Callable[[], None] = lambda: None

    def run_pending(self) -> None:
        """Make all calls that are due now, and then check."""
        super().run_pending()
        self.check()


class SimulatedEnvironment:
    """A cluster in one process, on virtual time. The random generator decides everything that happens."""

    def __init__(
        self,
        rng: random.Random,
        spec: ClusterSpec,
        faults: NetworkFaults,
        topics: dict[str, int],
        oracle: Callable[[LeaderEpochLookup], Oracle] = Oracle,
    ) -> None:
        """Create the environment. `topics` maps each topic that `create_topics` creates to a partition count.

        `faults` are the faults of the network. `oracle` creates the oracle that checks the records.
        """
        self.transcript: list[str] = []
        self.spec = spec
        self.rng = rng
        self.events = ObservedEventQueue()
        self._started_ms = self.events.clock.monotonic_ms()
        self.network = Network(self.events, random.Random(rng.getrandbits(64)), faults, self.note)
        self.oracle = oracle(self._led_epoch)
        self.clients: list[SimulatedClient] = []
        self.topics = topics
        self.partitions = [
            TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)
        ]
        self._possible_partitions = [
            TopicPartition(topic, index) for topic in topics for index in range(MAX_PARTITIONS)
        ]
        """All partitions that exist or may exist later, when topics grow."""
        internal = [TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)]
        self.node_errors: list[str] = []
        """Tracebacks that nodes have logged."""
        self.nodes: dict[int, ClusterNode] = {}
        self.invariants = ClusterInvariants(
            self.nodes,
            [*self._possible_partitions, *internal],
            self.oracle,
            spec.min_insync_replicas,
            self.note,
            topics if spec.unclean_elections else (),
        )
        self.events.check = self._check

    def start(self) -> None:
        """Start all nodes."""
        spec, rng = self.spec, self.rng
        for node_id, drift in spec.clock_drifts.items():
            self.note(
                f"--- the clocks of node {node_id} run at {drift.speed_percent} %, {drift.ahead_ms} ms ahead"
            )
        for node_id, roles in sorted(spec.nodes.items(), key=lambda item: "controller" not in item[1]):
            own = node_settings(
                node_id,
                roles,
                spec.controllers,
                replicas=spec.replicas,
                min_insync_replicas=spec.min_insync_replicas,
                fetch_bytes=spec.fetch_bytes,
                has_racks=spec.uses_racks,
                directories=LOG_DIRS[: spec.log_dirs],
            )
            if spec.uses_sasl:
                own = with_sasl(own)
            own |= spec.config
            self.nodes[node_id] = ClusterNode(
                own,
                rng=random.Random(rng.getrandbits(64)),
                network=self.network,
                note=self.note,
                drift=spec.clock_drifts.get(node_id, NO_DRIFT),
                max_work_ms=spec.max_work_ms,
                has_bootstrap_snapshot=spec.has_bootstrap_snapshot,
            )

    # --- time and transcript

    @property
    def now_ms(self) -> int:
        """The time in ms since the start."""
        return self.events.clock.monotonic_ms() - self._started_ms

    def note(self, text: str) -> None:
        """Add a line to the transcript."""
        self.transcript.append(f"{self.now_ms / 1000:8.3f}  {text}")

    def advance(self, delay_ms: int) -> None:
        """Advance the clock. Raises Violation if an invariant fails, and unhandled errors of nodes."""
        self.events.advance(delay_ms)

    def advance_until(
        self, condition: Callable[[], bool], timeout_ms: int, describe_failure: Callable[[], str]
    ) -> None:
        """Advance the clock until a condition holds.

        After the timeout, raises Violation with the text that `describe_failure` returns.
        """
        ends_ms = self.now_ms + timeout_ms
        while not condition():
            if self.now_ms >= ends_ms:
                raise Violation(f"after {timeout_ms} ms {describe_failure()}")
            self.advance(50)

    def _check(self) -> None:
        self.invariants.check()
        for topic_partition in self._possible_partitions:
            if (
                topic_partition not in self.partitions
                and self.invariants.partition(topic_partition) is not None
            ):
                self.partitions.append(topic_partition)
        if self.node_errors:
            raise Violation(self.node_errors[0])

    def _led_epoch(self, topic_partition: TopicPartition, address: PeerAddress) -> int | None:
        """Return the leader epoch in which the broker at an address leads a partition.

        Returns None if the broker is not the leader, or if the broker's leader epoch is out of date.
        """
        known = self.invariants.partition(topic_partition)
        node = next((each for each in self.nodes.values() if address_of(each.node_id) == address), None)
        if known is None or node is None or known.leader != node.node_id or not node.is_running:
            return None
        partition = node.node.replica_manager.get(*topic_partition)
        if partition is None or partition.role is not Role.LEADER:
            return None
        return known.leader_epoch if partition.leader_epoch == known.leader_epoch else None

    def log_state(self) -> None:
        """Add the state of all nodes and partitions to the transcript."""
        image = self.invariants.image
        for node in self.nodes.values():
            state = "paused" if node.host.is_paused else "up" if node.is_running else "down"
            known = image.brokers.get(node.node_id)
            fenced = "" if known is None else ", fenced" if known.fenced else ", unfenced"
            self.note(f"= {node.name} is {state}{fenced}")
        for topic_partition in self.invariants.partitions:
            known_partition = self.invariants.partition(topic_partition)
            if known_partition is None:
                continue
            self.note(
                f"= {topic_partition}: {describe_partition(known_partition)}, "
                f"committed up to offset {self.oracle.committed_in(topic_partition).end}"
            )
            for node in self.nodes.values():
                partition = (
                    node.node.replica_manager.get(*topic_partition)
                    if node.is_broker and node.is_running
                    else None
                )
                if partition is not None:
                    log = partition.log
                    self.note(
                        f"=   {node.name}: {partition.role.value} in leader epoch {partition.leader_epoch}, "
                        f"offsets {log.log_start_offset} to {log.log_end_offset}, "
                        f"high watermark {log.high_watermark}"
                    )

    # --- clients

    def add_client(self, kind: Callable[..., C], name: str, **more: Any) -> C:
        """Create a client of class `kind` and start it. `more` are further arguments of the class."""
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
        """Advance the clock until all brokers are unfenced. Raises Violation after `MAX_START_MS`."""

        def all_are_there() -> bool:
            known = self.invariants.image.brokers
            return all(each in known and not known[each].fenced for each in self.spec.brokers)

        self.advance_until(all_are_there, MAX_START_MS, lambda: "not all brokers are unfenced")

    def create_topics(self) -> None:
        """Wait until all brokers are unfenced, and create the topics.

        Raises Violation after a timeout, or if a topic cannot be created.
        """
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
        responses: list[Any] = []
        accepted = {ErrorCode.NONE}

        def are_created() -> bool:
            if responses and isinstance(responses[-1], PeerUnreachable):
                # The broker does not know yet that it is unfenced, or the response was lost.
                accepted.add(ErrorCode.TOPIC_ALREADY_EXISTS)
                send()
            return bool(responses) and not isinstance(responses[-1], PeerUnreachable)

        def send() -> None:
            responses.clear()
            connection = self.network.connect(address_of(self.spec.brokers[0]), "operator")

            def on_response(response: Any) -> None:
                responses.append(response)
                connection.close()

            connection.send(CREATE_TOPICS_VERSION, CreateTopicsRequest(topics=topics), on_response)

        send()
        self.advance_until(are_created, MAX_START_MS, lambda: "topics are not created")
        for topic in responses[0].topics:
            if topic.error_code not in accepted:
                raise Violation(f"{topic.name} is not created: {topic.error_code} {topic.error_message}")


class _NodeErrorCollector(logging.Handler):
    """A log handler that collects log records with a traceback. These are bugs of a node."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a log record with a traceback."""
        if record.exc_info:  # False for errors that a node expects
            self._found.append(logging.Formatter().format(record))


@contextmanager
def collect_node_errors(found: list[str]) -> Iterator[None]:
    """Add the tracebacks that nodes log to `found`, until the context ends."""
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
