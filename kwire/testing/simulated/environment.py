"""The environment of a simulation: its nodes, network and clients, and the checks after each event."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from kwire.testing.network import Network, NetworkFaults
from kwire.testing.simulated.cluster_invariants import ClusterInvariants
from kwire.testing.simulated.node_sasl import with_sasl
from kwire.testing.simulated.node_tls import new_client_layer, with_tls
from kwire.testing.simulated.nodes import (
    LOG_DIRS,
    NO_DRIFT,
    ClockDrift,
    ClusterNode,
    node_settings,
)
from kwire.testing.simulated.oracle import Oracle
from kwire.testing.simulated.violation import Violation
from kwire.testing.virtual_host import EventQueue

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
    uses_tls: bool = False
    """Whether all connections have TLS."""
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
        oracle: Oracle,
    ) -> None:
        """Create the environment. `faults` are the faults of the network, `oracle` checks the records."""
        self.transcript: list[str] = []
        self.spec = spec
        self.rng = rng
        self.events = ObservedEventQueue()
        self._started_ms = self.events.clock.monotonic_ms()
        self.network = Network(self.events, random.Random(rng.getrandbits(64)), faults, self.note)
        if spec.uses_tls:
            self.network.new_client_layer = new_client_layer()
        self.node_errors: list[str] = []
        """Tracebacks that nodes have logged."""
        self.nodes: dict[int, ClusterNode] = {}
        self.invariants = self._new_invariants(oracle)
        self.events.check = self._check

    def _new_invariants(self, oracle: Oracle) -> ClusterInvariants:
        return ClusterInvariants(self.nodes, oracle, self.spec.min_insync_replicas, self.note)

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
            if spec.uses_tls:
                own = with_tls(own)
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
        if self.node_errors:
            raise Violation(self.node_errors[0])

    def wait_for_brokers(self) -> None:
        """Advance the clock until all brokers are unfenced. Raises Violation after `MAX_START_MS`."""

        def all_are_there() -> bool:
            known = self.invariants.image.brokers
            return all(each in known and not known[each].fenced for each in self.spec.brokers)

        self.advance_until(all_are_there, MAX_START_MS, lambda: "not all brokers are unfenced")


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
