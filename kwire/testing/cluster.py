"""A cluster of brokers in this process, each in a thread of its own: who leads may crash, and others go on.

    with Cluster() as cluster:
        orders = cluster.new_topic("orders", partitions=3)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        cluster.leader(orders).crash()
        producer.send(orders, b"goes on").get(10)
        cluster.isolate(2)      # it and the others do not reach each other, until `heal`; clients reach all

Each is broker and controller. Topics have as many replicas as there are brokers, at most three, of which one
may be missing. Faults are each broker's own, and so is time, unless `advance` lets it pass for all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from kwire.testing.broker import Broker, check_delay
from kwire.testing.embedded_kafka import EmbeddedKafka
from kwire.testing.kafka import TIMEOUT_SECONDS
from kwire.testing.outages import Outages
from kwire.testing.users import (
    CLIENT_LISTENER,
    CONTROLLER_LISTENER,
    NODE_LISTENER,
    check_users,
    user_settings,
)

if TYPE_CHECKING:
    from kwire.broker.node.base import NodeBase
    from kwire.testing.broker_links import BrokerLinks

HOST: Final = "127.0.0.1"
MAX_REPLICAS: Final = 3
STEP_MS: Final = 250
"""How far one may be ahead of another where they may miss each other: half of what elections wait for."""
MAX_SETTLE_SECONDS: Final = 1.0
"""How long nodes may take for what the time that has passed has them do together, at most."""
POLL_MS: Final = 2
DEFAULT_REPLICA_LAG_MS: Final = 30_000
"""The default of `replica.lag.time.max.ms`: of what nodes wait for each other the longest."""
SHORT_TIMEOUTS: Final = {
    "broker.heartbeat.interval.ms": 200,
    "broker.session.timeout.ms": 2_000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1_000,
}
"""Who is gone is missed soon: Kafka waits 9 s for a broker, and 2 s for a controller."""


class _ClusterBroker(Broker):
    """One of them, whose ways to the others may be cut."""

    def __init__(
        self,
        node_id: int,
        cuts: BrokerLinks,
        overrides: Mapping[str, object],
        log_dir: str,
        users: dict[str, str],
    ) -> None:
        super().__init__(overrides, log_dir=log_dir, sync=False)
        self._node_id, self._links = node_id, cuts
        self._users, self._users_created = users, True  # whom the cluster makes known

    def start(self) -> None:
        super().start()
        self._links.attach(self._node_id, self._running)

    @property
    def is_responsive(self) -> bool:
        """Whether it lives, and does not hang."""
        return self.is_running and self._resumed is None

    def advance_clock(self, delay_ms: int, *, internode_clock: bool) -> None:
        """Let time pass for it, or, where it is gone or hangs, for the clock that it comes back to."""
        if self.is_responsive:
            self._advance_clock(delay_ms, internode_clock=internode_clock)
        elif self._clock is not None:
            self._clock.advance(delay_ms)

    def settle(self) -> None:
        """Return when it waits for no other node to have or to do anything, or has long enough."""
        settled, until = threading.Event(), time.monotonic() + MAX_SETTLE_SECONDS
        running = self._running

        def look() -> None:
            if _has_pending_work(running.node) and time.monotonic() < until:
                running.loop.internode_clock.schedule(POLL_MS, look)
            else:
                settled.set()

        running.loop.call_from_thread(look)
        settled.wait(2 * MAX_SETTLE_SECONDS)  # it may end meanwhile


class Cluster(EmbeddedKafka):
    """See the module. What a test asks of it is what it asks of any `Kafka`."""

    def __init__(
        self,
        size: int = 3,
        overrides: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> None:
        """`overrides` are Kafka's keys for each of them. Data in `log_dir` stays; nothing is ever synced.

        `users` are as those of a `Broker`; nodes among themselves do not say who they are.
        """
        if size < 1:
            raise ValueError(f"a cluster of {size} brokers: ask for one at least")
        if users is not None:
            check_users(users, overrides or {})
        super().__init__(log_dir, timeout_s, users)
        self.brokers: dict[int, _ClusterBroker] = {}
        """By id, from 1 on, while it runs: those that have crashed, too."""
        self._size = size
        self._overrides = dict(overrides or {})
        self._ports: dict[int, int] = {}
        self._links: BrokerLinks | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect: all of them, be they there or not."""
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    def start(self) -> None:
        """Return once all of them serve. Raises what keeps one from that."""
        if self.brokers:
            raise RuntimeError("the cluster runs already")
        self._create_directory()
        try:
            self._create_brokers()
            _in_parallel(broker.start for broker in self.brokers.values())
            self._set_passwords()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of them at once, as if they were killed: no other one is to take over."""
        self.close()
        brokers, self.brokers, self._ports, self._links = self.brokers, {}, {}, None
        try:
            _in_parallel(broker.crash for broker in brokers.values())
        finally:
            self._release()

    def leader(self, topic: str, partition: int = 0) -> Broker:
        """The broker that leads a partition. LookupError where the topic has none of that number."""
        return self.brokers[self._call(lambda client: client.leader(topic, partition))]

    def coordinator(self, group: str) -> Broker:
        """The broker that coordinates a group."""
        return self.brokers[self._call(lambda client: client.coordinator(group))]

    def move_leader(self, topic: str, to: int, partition: int = 0) -> None:
        """Have another broker lead a partition, one that has a replica, and return when it does.

        A group's coordinator moves with its partition of `__consumer_offsets`. LookupError where the broker
        has no replica.
        """
        self._call(lambda client: client.move_leader(topic, partition, to))

    def advance(self, delay_ms: int) -> None:
        """Let `delay_ms` pass for all of them, as `Broker.advance` does for one, in about as long.

        They do not miss each other for that. Where one is gone, hangs or does not reach another, all live
        through the first minute of it together, a quarter of a second at a time, and whoever is to be missed
        is: this takes half a second.
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

    def _now_ms(self) -> int:
        return max((node._now_ms() for node in self.brokers.values()), default=super()._now_ms())

    def outages(self, seed: int) -> Outages:
        """Brokers that fail, one at a time, as the seed decides, while the context lasts that this is."""
        return Outages(seed, self.brokers, self.isolate, self.heal)

    # --- the network between them

    def disconnect(self, one: int, other: int) -> None:
        """Neither of two brokers reaches the other, until `heal`. KeyError where there is no such broker."""
        self._connected_links.disconnect(one, other)

    def isolate(self, broker_id: int) -> None:
        """A broker and all others do not reach each other, until `heal`. KeyError where there is none."""
        between = self._connected_links
        for other in self.brokers.keys() - {broker_id}:
            between.disconnect(broker_id, other)

    def heal(self) -> None:
        """All reach each other."""
        self._connected_links.heal()

    @property
    def _connected_links(self) -> BrokerLinks:
        if self._links is None:
            raise RuntimeError("the cluster does not run: start() it, or use it in a with statement")
        return self._links

    def _create_brokers(self) -> None:
        from kwire.testing.broker_links import BrokerLinks
        from kwire.testing.formatting import format_directory
        from kwire.wire.primitives import Uuid, uuid_to_text

        cluster_id = uuid_to_text(Uuid(os.urandom(16)))
        ids = range(1, self._size + 1)
        self._ports = {node_id: self._reserve_port() for node_id in ids}
        controllers = {node_id: self._reserve_port() for node_id in ids}
        nodes = {node_id: self._reserve_port() for node_id in ids} if self._users else self._ports
        self._links = BrokerLinks({node_id: (nodes[node_id], controllers[node_id]) for node_id in ids})
        replicas = min(self._size, MAX_REPLICAS)
        for node_id, port in self._ports.items():
            address = f"{NODE_LISTENER}://{HOST}:{nodes[node_id]}"
            if self._users:
                address = f"{CLIENT_LISTENER}://{HOST}:{port},{address}"
            settings: dict[str, object] = {
                "node.id": node_id,
                "process.roles": "broker,controller",
                "listeners": f"{address},{CONTROLLER_LISTENER}://{HOST}:{controllers[node_id]}",
                "advertised.listeners": address,
                "controller.listener.names": CONTROLLER_LISTENER,
                **(user_settings(self._users) if self._users else {}),
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
                **self._overrides,
            }
            directory = os.path.join(self.log_dir, str(node_id))
            format_directory(directory, cluster_id, {key: str(value) for key, value in settings.items()})
            self.brokers[node_id] = _ClusterBroker(node_id, self._links, settings, directory, self._users)


def _has_pending_work(node: NodeBase) -> bool:
    """Whether others are still to have what it has written, or to end a transaction."""
    from kwire.broker.node.node import Node
    from kwire.wire.errors import ApiError

    assert isinstance(node, Node)
    try:
        is_ending = any(transaction.is_ending for transaction in node.transactions.list_transactions())
    except ApiError:
        return True  # it does not know yet
    return is_ending or any(partition.delayed_produce_count for partition in node.replica_manager.all())


def _in_parallel(calls: Iterable[Callable[[], None]]) -> None:
    """All of them, each in a thread; raises what one of them raises."""
    failures: list[BaseException] = []

    def attempt(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
