"""A whole process: a node, its server and its loop, from start to clean shutdown.

    async with serve(config) as running:
        print(running.bootstrap)

Start: bind the listeners (so that a port in use is found before anything is written, and port 0 is known
before the node registers itself), open the storage and the metadata, then accept. Stop: drain, wait for
worker threads, then let the node flush, checkpoint and mark its directories as cleanly shut down.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from kwire.broker.api.table import ListenerRole
from kwire.broker.host.clock import Clock
from kwire.broker.host.loggers import NodeLogger
from kwire.broker.net.listeners import Listener, bind, own_host_name
from kwire.broker.net.loop import Loop
from kwire.broker.net.peer_connection import PeerConnections, own_version
from kwire.broker.net.peers import PeerLinks
from kwire.broker.net.server import DRAIN_MS, Server
from kwire.broker.net.settings import settings_of
from kwire.broker.node.node import Node
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.storage.disk import Disk, RealDisk

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig

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

    def __init__(self, loop: Loop, node: Node, server: Server, failure: Failure) -> None:
        self.loop = loop
        self.node = node
        self.server = server
        self.clock = loop.clock
        self.failure = failure
        self.bootstrap = ",".join(
            listener.address for listener in server.listeners if listener.role is ListenerRole.BROKER
        )
        """Where clients connect: the address of every listener of the broker, the first one first."""


@asynccontextmanager
async def serve(
    config: BrokerConfig,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    disk: Disk | None = None,
    alone: bool = False,
) -> AsyncIterator[RunningNode]:
    """Run a node inside of the block. `alone`: nothing else in this trio run is in a hurry.

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

        node = Node(config, loop, disk, on_unfenced=known.set, on_fatal=fail)
        node.bound_ports.update({listener.name: listener.port for listener in listeners})
        if not all(told.host for told in (*broker_endpoints(config), *controller_endpoints(config))):
            node.host_name = own_host_name()
        server = Server(loop, node, settings)
        node.config_changed.append(lambda: server.change_limits(settings_of(config)))
        node.start()
        for listener in listeners:
            server.listen(listener)
        # What was set while the broker ran before counts once it listens as it was told to start.
        server.change_listeners(config.running_listeners())
        node.config_changed.append(lambda: server.change_listeners(config.running_listeners()))
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
            try:
                # Nobody is told of the broker before its cluster counts on it, unless it has failed before.
                await known.wait()
                loop.alone = alone
                yield RunningNode(loop, node, server, failure)
            finally:
                loop.alone = False
                with trio.CancelScope(shield=True):
                    await _shut_down(loop, node, server, peers)
    finally:
        connections.close()
        _close(loop, disk)


def _close(loop: Loop, disk: Disk) -> None:
    """Give descriptors back now, but for those of the disk that a thread still works with."""
    if not loop.working:
        disk.close()
    loop.close()


async def _shut_down(loop: Loop, node: Node, server: Server, peers: PeerLinks) -> None:
    await server.drain(DRAIN_MS if loop.running else 0)
    with trio.move_on_after(WORKERS_TIMEOUT_SECONDS) as waiting:
        await loop.workers_done()
    if waiting.cancelled_caught:
        loop.logger("kwire.net").error(
            "worker threads are still busy after %d s: stopping anyway", WORKERS_TIMEOUT_SECONDS
        )
    node.finish_shutdown()
    peers.close()
    loop.stop()
