"""A cluster of brokers in the test's process, each in its own thread, with broker and network faults.

    with Cluster() as cluster:
        orders = cluster.new_topic("orders", partitions=3)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.leader(orders).crash()
        producer.send(orders, b"after a failover").get(10)
        cluster.isolate(2)      # from the other brokers, until `heal`; clients still reach it

Each broker is also a controller. Topics have one replica per broker, at most three. `min.insync.replicas` is
one less than the number of replicas, at least 1. Each broker has its own faults and its own clock;
`Cluster.advance` moves all clocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from kwire.host.system_time import monotonic
from kwire.testing.arguments import (
    check_configs,
    check_delay,
    check_limit,
    check_number,
    check_size,
    check_text,
)
from kwire.testing.awaitable import awaitable
from kwire.testing.broker import Broker
from kwire.testing.embedded_broker import EmbeddedBroker
from kwire.testing.embedded_kafka import AioEmbeddedKafka, EmbeddedKafka
from kwire.testing.event_loop import blocking
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.testing.lookup_table import LookupTable
from kwire.testing.one_shot_event import OneShotEvent
from kwire.testing.outages import Outages
from kwire.testing.recorder import MAX_BYTES, MAX_EXCHANGES
from kwire.testing.reservations import Reservations
from kwire.testing.started_brokers import STARTED_BROKERS
from kwire.testing.tls import Certificates, Tls, parse_tls
from kwire.testing.users import (
    CONTROLLER_LISTENER,
    NODE_LISTENER,
    check_listeners,
    check_users,
    listener_settings,
)

if TYPE_CHECKING:
    from kwire.broker.node.base import NodeBase
    from kwire.testing.acl import Acl
    from kwire.testing.blocking_client import BlockingClient
    from kwire.testing.broker_links import BrokerLinks
    from kwire.testing.recorder import Recorder

T = TypeVar("T")

HOST: Final = "127.0.0.1"
MAX_REPLICAS: Final = 3
STEP_MS: Final = 250
"""The largest difference between the clocks of brokers: half an election timeout."""
MAX_SETTLE_SECONDS: Final = 1.0
"""The longest time that `advance` waits for pending replication and for transactions that are ending."""
POLL_MS: Final = 2
DEFAULT_REPLICA_LAG_MS: Final = 30_000
"""The default of `replica.lag.time.max.ms`, the longest timeout between nodes."""
SHORT_TIMEOUTS: Final = {
    "broker.heartbeat.interval.ms": 200,
    "broker.session.timeout.ms": 2_000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1_000,
}
"""Shorter timeouts, so that failures are detected soon. Kafka's session timeout is 9 s."""


class _ClusterBroker(Broker):
    """A broker of the cluster, whose connections to other brokers can be cut."""

    def __init__(
        self,
        node_id: int,
        links: BrokerLinks,
        overrides: Mapping[str, object],
        log_dir: str,
        users: dict[str, str],
        acls: list[Acl] | None,
        certificates: Certificates | None,
        limits: tuple[int, int],
    ) -> None:
        super().__init__(
            overrides,
            log_dir=log_dir,
            sync=False,
            max_recorded_requests=limits[0],
            max_recorded_bytes=limits[1],
        )
        self._node_id, self._links = node_id, links
        self._users, self._users_created = users, True  # the cluster creates the users
        self._acls, self._certificates = acls, certificates

    def start(self) -> None:
        super().start()
        self._links.attach(self._node_id, self._in_thread.running)

    def _note_start(self) -> None:
        """Do nothing: the cluster is reported with all of its brokers."""

    def _own_bootstrap_servers(self) -> str:
        bootstrap = self._in_thread.bootstrap
        return bootstrap.split(",")[1] if self._has_defect else self.bootstrap_servers

    @property
    def _in_thread(self) -> EmbeddedBroker:
        assert isinstance(self._embedded, EmbeddedBroker)
        return self._embedded

    @property
    def is_responsive(self) -> bool:
        """Whether the broker is running and is not suspended by `hang`."""
        return self._in_thread.is_responsive

    def advance_clock(self, delay_ms: int, *, internode_clock: bool) -> None:
        """Advance the broker's clock. With `internode_clock`, timeouts between nodes can expire, too.

        If the broker is down or suspended, its timers do not run.
        """
        if self.is_responsive:
            self._in_thread.advance(delay_ms, internode_clock=internode_clock)
        elif self._in_thread.clock is not None:
            self._in_thread.clock.advance(delay_ms)

    def settle(self) -> None:
        """Wait until no replication and no transaction end is pending, for about 1 s at most."""
        settled, until = OneShotEvent(), monotonic() + MAX_SETTLE_SECONDS
        running = self._in_thread.running

        def poll() -> None:
            if _has_pending_work(running.node) and monotonic() < until:
                running.loop.internode_clock.schedule(POLL_MS, poll)
            else:
                settled.set()

        running.loop.call_from_thread(poll)
        settled.wait(2 * MAX_SETTLE_SECONDS)  # the broker may stop meanwhile


class Cluster(EmbeddedKafka):
    """Several brokers in this process. It has all methods of `Kafka`."""

    _variable = "cluster"

    def __init__(
        self,
        size: int = 3,
        overrides: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool | Tls = False,
        acls: Sequence[Acl] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_SECONDS,
        max_recorded_requests: int = MAX_EXCHANGES,
        max_recorded_bytes: int = MAX_BYTES,
    ) -> None:
        """Configure a cluster; `start`, or a `with` statement, starts it.

        `overrides` are Kafka's broker configs, for all brokers. Data in `log_dir` is kept, and never synced.
        `users`, `tls`, `acls` and the limits of the recorders work as in `Broker`. The brokers do not
        authenticate to each other, and connect to each other without TLS.
        """
        check_size(size)
        check_configs(overrides)
        options = parse_tls(tls)
        if users is not None:
            check_users(users)
        check_listeners(overrides or {}, has_users=users is not None, has_tls=options is not None)
        super().__init__(timeout_s, users, options, acls)
        self._reserved = Reservations(None if log_dir is None else str(log_dir))
        self.brokers = _no_brokers()
        """All brokers by id, from 1 on, including crashed ones. Empty while the cluster is not running."""
        self._size = size
        check_limit("max_recorded_requests", max_recorded_requests)
        check_limit("max_recorded_bytes", max_recorded_bytes)
        self._limits = max_recorded_requests, max_recorded_bytes
        self._overrides = dict(overrides or {})
        self._ports: dict[int, int] = {}
        self._node_ports: dict[int, int] = {}
        self._links: BrokerLinks | None = None

    @property
    def aio(self) -> AioCluster:
        """The methods of this object, to be awaited in asyncio or trio."""
        return AioCluster(self)

    @property
    def bootstrap_servers(self) -> str:
        """The host:port of every broker, separated by commas, including brokers that are down."""
        return _addresses(self._ports)

    @blocking
    def start(self) -> None:
        """Start all brokers, and return when they serve requests. Raises the first error of a broker."""
        if self.brokers:
            raise RuntimeError("the cluster is already running")
        STARTED_BROKERS.add(self)
        self._reserved.create_directory()
        try:
            self._create_brokers()
            _in_parallel(broker.start for broker in self.brokers.values())
            self._create_users()
        except BaseException:
            self.stop()
            raise

    @blocking
    def stop(self) -> None:
        """End all brokers at once as if they were killed, so that no leadership moves."""
        self.close()
        brokers, self.brokers, self._ports, self._links = self.brokers, _no_brokers(), {}, None
        self._node_ports = {}
        try:
            _in_parallel(broker.crash for broker in brokers.values())
        finally:
            self._users_created = False
            self._reserved.release()

    def _take_errors(self) -> list[str]:
        """Remove and return the unexpected exceptions inside the brokers, as text."""
        return [text for broker in self.brokers.values() for text in broker._take_errors()]

    @blocking
    def leader(self, topic: str, partition: int = 0) -> Broker:
        """Return the leader of a partition. Raises LookupError if there is no such partition."""
        check_text("topic", topic)
        check_number("partition", partition)
        return self.brokers[self._call(lambda client: client.leader(topic, partition, self._topic_within_s))]

    @blocking
    def coordinator(self, group: str) -> Broker:
        """Return the coordinator of a group."""
        check_text("group", group)
        return self.brokers[self._call(lambda client: client.coordinator(group))]

    @blocking
    def move_leader(self, topic: str, to: int, partition: int = 0) -> None:
        """Make broker `to` the leader of a partition, and return when it is the leader.

        Raises LookupError if the broker has no replica. To move a group's coordinator, move the leader of the
        group's partition of `__consumer_offsets`.
        """
        check_text("topic", topic)
        check_number("partition", partition)
        check_number("to", to)
        self._call(lambda client: client.move_leader(topic, partition, to, self._topic_within_s))

    @blocking
    def advance(self, delay_ms: int) -> None:
        """Move the clocks of all brokers forward by `delay_ms`, as `Broker.advance` does for one broker.

        Brokers that can reach each other do not time out. If a broker is down, suspended or disconnected, all
        brokers first advance together in steps of 250 ms, for twice `replica.lag.time.max.ms` (by default a
        minute), so that timeouts of that broker expire. This takes half a second of real time.
        """
        check_delay(delay_ms)
        nodes, rest_ms = self.brokers.values(), delay_ms
        if not all(node.is_responsive for node in nodes) or self._connected_links.any_cut:
            lag_ms = int(str(self._overrides.get("replica.lag.time.max.ms", DEFAULT_REPLICA_LAG_MS)))
            rest_ms -= min(delay_ms, 2 * lag_ms)
            for passed_ms in range(0, delay_ms - rest_ms, STEP_MS):
                step_ms = min(STEP_MS, delay_ms - rest_ms - passed_ms)
                _in_parallel(partial(node.advance_clock, step_ms, internode_clock=True) for node in nodes)
        _in_parallel(partial(node.advance_clock, rest_ms, internode_clock=False) for node in nodes)
        _in_parallel(node.settle for node in nodes if node.is_responsive)

    def _recorders(self) -> list[Recorder]:
        self._check_running()
        return [broker.requests for broker in self.brokers.values()]

    def _own_bootstrap_servers(self) -> str:
        return _addresses(self._node_ports) if self._has_defect else self.bootstrap_servers

    def _directory(self) -> str | None:
        return self._reserved.directory

    def _now_ms(self) -> int:
        return max((node._now_ms() for node in self.brokers.values()), default=super()._now_ms())

    def outages(self, seed: int) -> Outages:
        """Return a context manager that makes brokers fail one at a time, as the seed determines."""
        self._check_running()
        return Outages(seed, self.brokers, self.isolate, self.heal)

    # --- the network between brokers

    def disconnect(self, one: int, other: int) -> None:
        """Cut the network between two brokers until `heal`. Raises LookupError for unknown ids."""
        self._connected_links.disconnect(one, other)

    def isolate(self, broker_id: int) -> None:
        """Cut the network between a broker and all others until `heal`.

        Raises LookupError for an unknown id.
        """
        self._connected_links.check_id(broker_id)
        for other in self.brokers.keys() - {broker_id}:
            self._connected_links.disconnect(broker_id, other)

    def heal(self) -> None:
        """Restore the network between all brokers."""
        self._connected_links.heal()

    def _check_running(self) -> None:
        """Raise RuntimeError if the cluster is not running."""
        if self._links is None:
            raise RuntimeError("the cluster is not running: call start(), or use it in a with statement")

    @property
    def _connected_links(self) -> BrokerLinks:
        self._check_running()
        assert self._links is not None
        return self._links

    def _call(self, operation: Callable[[BlockingClient], T]) -> T:
        __tracebackhide__ = True
        self._check_running()
        return super()._call(operation)

    def _create_brokers(self) -> None:
        from kwire.testing.broker_links import BrokerLinks
        from kwire.testing.formatting import format_directory
        from kwire.wire.primitives import Uuid, uuid_to_text

        cluster_id = uuid_to_text(Uuid(os.urandom(16)))
        ids = range(1, self._size + 1)
        self._ports = {node_id: self._reserved.reserve_port() for node_id in ids}
        controllers = {node_id: self._reserved.reserve_port() for node_id in ids}
        nodes = self._ports
        if self._has_client_listener:
            nodes = {node_id: self._reserved.reserve_port() for node_id in ids}
        self._node_ports = nodes
        tls_settings = self._tls_settings()
        self._links = BrokerLinks({node_id: (nodes[node_id], controllers[node_id]) for node_id in ids})
        replicas = min(self._size, MAX_REPLICAS)
        for node_id, port in self._ports.items():
            address = f"{NODE_LISTENER}://{HOST}:{nodes[node_id]}"
            if self._has_client_listener:
                address = f"{self._client_protocol}://{HOST}:{port},{address}"
            settings: dict[str, object] = {
                "node.id": node_id,
                "process.roles": "broker,controller",
                "listeners": f"{address},{CONTROLLER_LISTENER}://{HOST}:{controllers[node_id]}",
                "advertised.listeners": address,
                "controller.listener.names": CONTROLLER_LISTENER,
                **listener_settings(self._users, tls_settings),
                "controller.quorum.voters": ",".join(
                    f"{other}@{HOST}:{voting}" for other, voting in controllers.items()
                ),
                "default.replication.factor": replicas,
                "min.insync.replicas": max(1, replicas - 1),
                "offsets.topic.replication.factor": replicas,
                "offsets.topic.num.partitions": 4,
                "transaction.state.log.replication.factor": replicas,
                "transaction.state.log.min.isr": max(1, replicas - 1),
                "transaction.state.log.num.partitions": 4,
                **SHORT_TIMEOUTS,
                **self._with_authorizer(self._overrides),
            }
            directory = os.path.join(self.log_dir, str(node_id))
            format_directory(directory, cluster_id, {key: str(value) for key, value in settings.items()})
            self.brokers[node_id] = _ClusterBroker(
                node_id,
                self._links,
                settings,
                directory,
                self._users,
                self._acls,
                self._certificates,
                self._limits,
            )
            self.brokers[node_id].requests.source = self


class AioCluster(AioEmbeddedKafka):
    """The methods of `Cluster`, for `await`."""

    def __init__(self, target: Cluster) -> None:
        """Create the methods of one cluster."""
        super().__init__(target)
        self._cluster = target

    leader = awaitable(Cluster.leader)
    coordinator = awaitable(Cluster.coordinator)
    move_leader = awaitable(Cluster.move_leader)
    advance = awaitable(Cluster.advance)
    disconnect = awaitable(Cluster.disconnect, completes=True)
    isolate = awaitable(Cluster.isolate, completes=True)
    heal = awaitable(Cluster.heal, completes=True)

    def outages(self, seed: int) -> Outages:
        """Return a context manager for `async with`, during which brokers fail one at a time."""
        return self._cluster.outages(seed)


def _addresses(ports: Mapping[int, int]) -> str:
    return ",".join(f"{HOST}:{port}" for port in ports.values())


def _no_brokers() -> LookupTable[int, _ClusterBroker]:
    return LookupTable[int, _ClusterBroker]().named("broker")


def _has_pending_work(node: NodeBase) -> bool:
    """Return whether a node waits for replication of its appends, or for the end of a transaction.

    A node that has not loaded its transactions yet also has pending work.
    """
    from kwire.broker.node.node import Node
    from kwire.wire.errors import ApiError

    assert isinstance(node, Node)
    try:
        is_ending = any(transaction.is_ending for transaction in node.transactions.list_transactions())
    except ApiError:
        return True  # the node has not loaded its transactions yet
    return is_ending or any(partition.delayed_produce_count for partition in node.replica_manager.all())


def _in_parallel(calls: Iterable[Callable[[], None]]) -> None:
    """Run each call in a thread, wait for all of them, and raise the first failure."""
    failures: list[BaseException] = []

    def attempt(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=attempt, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
