"""A whole process: a node, its server and its loop, from start to clean shutdown.

    async with serve(config) as running:
        print(running.bootstrap)

Start: bind the listeners (so that a port in use is found before anything is written, and port 0 is known
before the node registers itself), open the storage and the metadata, then accept: other nodes at once, and
clients when the logs are open. Stop: have others lead what this broker does, drain, wait for worker threads,
then let the node flush, checkpoint and mark its directories as cleanly shut down.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from kwire.broker.api.table import ListenerRole
from kwire.broker.host.clock import Clock
from kwire.broker.host.loggers import NodeLogger
from kwire.broker.net.listeners import BindError, Listener, bind, own_host_name
from kwire.broker.net.loop import Loop
from kwire.broker.net.peer_connection import PeerConnections, own_version
from kwire.broker.net.peers import PeerLinks
from kwire.broker.net.server import DRAIN_MS, Server
from kwire.broker.net.settings import settings_of
from kwire.broker.node.base import NodeBase
from kwire.broker.node.node import new_node
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.storage.disk import Disk, RealDisk

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig

LEAVING_TIMEOUT_SECONDS = 300
"""How long a stopping broker waits for the controller to let it go; Kafka's."""
WORKERS_TIMEOUT_SECONDS = 30
"""How long a stopping broker waits for its threads: they are writing to disks."""


class Failure:
    """Whether the node can go on, and why not."""

    def __init__(self, logger: NodeLogger) -> None:
        self._logger = logger
        self.happened = trio.Event()
        self.reason = ""

    def tell(self, reason: str) -> None:
        """The node cannot go on: whoever runs it should leave it."""
        if not self.happened.is_set():
            self._logger.critical("the broker has to stop: %s", reason)
            self.reason = reason
            self.happened.set()


class RunningNode:
    """A node that is served."""

    def __init__(self, loop: Loop, node: NodeBase, server: Server, failure: Failure) -> None:
        self.loop = loop
        self.node = node
        self.server = server
        self.clock = loop.clock
        self.failure = failure
        self.is_killed = False
        """Whether to end as a process that is killed, which somebody who embeds it may want to see."""
        self.bootstrap = ""
        """Where clients connect: the address of every listener of the broker, the first one first.

        Of a controller that is no broker it is where other nodes connect. Empty until clients may come.
        """

    def announce(self) -> None:
        """Clients may come, where the listeners are now."""
        listeners = self.server.listeners
        of_brokers = [one for one in listeners if one.role is ListenerRole.BROKER]
        self.bootstrap = ",".join(listener.address for listener in of_brokers or listeners)


@asynccontextmanager
async def serve(
    config: BrokerConfig,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    disk: Disk | None = None,
    alone: bool = False,
    stop: trio.Event | None = None,
    beside: Iterable[Callable[[RunningNode], Awaitable[None]]] = (),
) -> AsyncIterator[RunningNode]:
    """Run a node inside of the block. `alone`: nothing else in this trio run is in a hurry.

    `stop` is set by who does not want to wait any longer for the cluster to count on the broker.
    What is `beside` runs from before it does, until the node has shut down. The node lives on if it fails.

    Raises BindError, StorageError and ConfigError on the way in.
    """
    settings = settings_of(config)
    loop = Loop(clock, name=config.node_name, seed=seed)
    connections = PeerConnections(loop, settings)
    loop.peers = peers = PeerLinks(
        loop,
        connections.dial,
        client_id=config.node_name.replace(" ", "-"),
        software_version=own_version,
        max_idle_ms=settings.max_idle_ms,
        setup_timeouts_ms=(settings.connection_setup_timeout_ms, settings.connection_setup_timeout_max_ms),
    )
    disk = disk if disk is not None else RealDisk()
    listeners: list[Listener] = []
    try:
        wanted = {
            ListenerRole.BROKER: config.listener_endpoints(),
            ListenerRole.CONTROLLER: config.controller_endpoints(),
        }
        for role, endpoints in wanted.items():
            for name, host, port in endpoints:
                # One by one: closed below if the next one fails.
                listeners += [bind(name, host, port, settings, role)]
        failure = Failure(loop.logger("kwire.net"))
        known = trio.Event()

        def fail(reason: str) -> None:
            failure.tell(reason)
            known.set()

        def listen(role: ListenerRole) -> None:
            for listener in listeners:
                if listener.role is role:
                    server.listen(listener)

        def accept_clients() -> None:
            # As in Apache Kafka not before: a client that is told of no broker may wait long to ask again.
            try:
                listen(ListenerRole.BROKER)
            except BindError as error:
                fail(str(error))
                return
            # What was set while the broker ran before counts once it listens as it was told to start.
            server.change_listeners(config.running_listeners())
            node.config_changed.append(lambda: server.change_listeners(config.running_listeners()))
            known.set()

        node = new_node(config, loop, disk, on_unfenced=accept_clients, on_fatal=fail)
        node.bound_ports.update({listener.name: listener.port for listener in listeners})
        if not all(told.host for told in (*broker_endpoints(config), *controller_endpoints(config))):
            node.host_name = own_host_name()
        server = Server(loop, node, settings)
        node.config_changed.append(lambda: server.change_limits(settings_of(config)))
        node.start()
        listen(ListenerRole.CONTROLLER)
    except BaseException:
        for listener in listeners:
            listener.sock.close()
        peers.close()
        connections.close()
        _close(loop, disk)
        raise
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            running = RunningNode(loop, node, server, failure)
            company = [(one, trio.CancelScope()) for one in beside]
            for one, scope in company:
                nursery.start_soon(_keep_company, one, running, scope)
            try:
                # Nobody is told of the broker before its cluster counts on it, unless it has failed before.
                await _wait_for_any(known, known if stop is None else stop)
                loop.alone = alone
                running.announce()
                yield running
            finally:
                loop.alone = False
                with trio.CancelScope(shield=True):
                    if running.is_killed:
                        server.abandon()
                    else:
                        await _leave(loop, node, failure)
                        await server.drain(DRAIN_MS if loop.running else 0)
                    await _wait_for_workers(loop)
                    if not running.is_killed:
                        node.finish_shutdown()
                    peers.close()
                    loop.stop()
                for _, scope in company:
                    scope.cancel()
    finally:
        connections.close()
        for listener in listeners:
            listener.sock.close()  # where nobody came to listen
        _close(loop, disk)


def _close(loop: Loop, disk: Disk) -> None:
    """Give descriptors back now, but for those of the disk that a thread still works with."""
    if not loop.working:
        disk.close()
    loop.close()


async def _keep_company(
    beside: Callable[[RunningNode], Awaitable[None]], running: RunningNode, scope: trio.CancelScope
) -> None:
    with scope:
        try:
            await beside(running)
        except Exception:
            running.loop.logger("kwire.net").exception(
                "what runs beside the broker failed: it goes on without"
            )


async def _wait_for_any(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait_for(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait_for, event)


async def _leave(loop: Loop, node: NodeBase, failure: Failure) -> None:
    """Serve on until the controller has others lead what this broker did, or there is no use in waiting."""
    if failure.happened.is_set() or not loop.running:
        return
    left = trio.Event()
    node.leave(left.set)
    loop.wake()
    with trio.move_on_after(LEAVING_TIMEOUT_SECONDS) as waiting:
        await _wait_for_any(left, failure.happened)
    if waiting.cancelled_caught:
        loop.logger("kwire.net").warning(
            "no controller had others lead in %d s: stopping anyway", LEAVING_TIMEOUT_SECONDS
        )


async def _wait_for_workers(loop: Loop) -> None:
    with trio.move_on_after(WORKERS_TIMEOUT_SECONDS) as waiting:
        await loop.workers_done()
    if waiting.cancelled_caught:
        loop.logger("kwire.net").error(
            "worker threads are still busy after %d s: stopping anyway", WORKERS_TIMEOUT_SECONDS
        )
