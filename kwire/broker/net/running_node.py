"""A whole process but for what turns its loop: a node with its server, from start to clean shutdown.

Start: bind the listeners (so that a port in use is found before anything is written, and port 0 is known
before the node registers itself), open the storage and the metadata, then accept: other nodes at once, and
clients when the logs are open. Stop: have others lead what this broker does, drain, wait for worker threads,
then let the node flush, checkpoint and mark its directories as cleanly shut down.

Who turns the loop is `net.serve` under trio, for `kwire serve` with all that runs beside it, or the thread
of an embedded broker, which has nothing beside it and starts in half the time without trio.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.listeners import BindError, Listener, bind, own_host_name
from kwire.broker.net.loop import Loop
from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.peer_connection import PeerConnections, kwire_version
from kwire.broker.net.peer_links import PeerLinks, peer_authentication
from kwire.broker.net.socket_server import DRAIN_MS, SocketServer
from kwire.broker.net.socket_settings import read_socket_settings
from kwire.broker.node.base import NodeBase
from kwire.broker.node.node import Node, new_node
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.storage.disk import Disk, RealDisk
from kwire.host.clock import Clock
from kwire.host.loggers import NodeLogger

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig

CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS = 300
"""How long a stopping broker waits for the controller to let it go; Kafka's."""
WORKERS_TIMEOUT_SECONDS = 30
"""How long a stopping broker waits for its threads: they are writing to disks."""


class FatalFailure:
    """Whether the node can go on, and why not."""

    def __init__(self, logger: NodeLogger) -> None:
        self._logger = logger
        self.happened = LoopEvent()
        self.reason = ""

    def report(self, reason: str) -> None:
        """The node cannot go on: whoever runs it should leave it."""
        if not self.happened.is_set:
            self._logger.critical("the broker has to stop: %s", reason)
            self.reason = reason
            self.happened.set()


class ShutdownMode(Enum):
    """How a node ends. Who embeds one may want another way than the first."""

    CLEAN = auto()
    DISCARDED = auto()
    """Cleanly for clients and other nodes, and with no work for data that nobody is to read."""
    KILLED = auto()
    """As a process that is killed: nobody is answered, nothing is written."""


class RunningNode:
    """A node that is served while somebody turns `loop`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Bind, open and start. Raises BindError, StorageError and ConfigError, and leaves nothing open then.

        To be closed by `close`, after `end` where the node was not to break off.
        """
        settings = read_socket_settings(config)
        self.loop = loop = Loop(clock, name=config.node_name, seed=seed)
        self.clock = loop.clock
        self.failure = FatalFailure(loop.logger("kwire.net"))
        self.ready = LoopEvent()
        """Comes when the cluster counts on the broker, or it has failed before."""
        self.failure.happened.on_set(self.ready.set)
        self.shutdown_mode = ShutdownMode.CLEAN
        self.bootstrap = ""
        """Where clients connect: the address of every listener of the broker, the first one first.

        Of a controller that is no broker it is where other nodes connect. Empty until clients may come.
        """
        self._config = config
        self._connections = connections = PeerConnections(loop, settings)
        loop.peers = self._peers = PeerLinks(
            loop,
            connections.dial,
            client_id=config.node_name.replace(" ", "-"),
            software_version=kwire_version,
            max_idle_ms=settings.max_idle_ms,
            setup_timeouts_ms=(
                settings.connection_setup_timeout_ms,
                settings.connection_setup_timeout_max_ms,
            ),
            peer_authentication=peer_authentication(config, loop),
        )
        self._disk = disk if disk is not None else RealDisk()
        self._bound: list[Listener] = []
        try:
            wanted = {
                ListenerRole.BROKER: config.listener_endpoints(),
                ListenerRole.CONTROLLER: config.controller_endpoints(),
            }
            for role, endpoints in wanted.items():
                for name, host, port in endpoints:
                    # One by one: closed below if the next one fails.
                    self._bound += [bind(name, host, port, settings, role)]
            node = new_node(
                config, loop, self._disk, on_unfenced=self._accept_clients, on_fatal=self.failure.report
            )
            self.node: NodeBase = node
            self.broker = node if isinstance(node, Node) else None
            """The node, where it is a broker."""
            self.node.bound_ports.update({listener.name: listener.port for listener in self._bound})
            if not all(told.host for told in (*broker_endpoints(config), *controller_endpoints(config))):
                self.node.host_name = own_host_name()
            self.server = SocketServer(loop, self.node, settings)
            self.node.config_changed.append(lambda: self.server.update_quotas(read_socket_settings(config)))
            self.node.start()
            self._listen(ListenerRole.CONTROLLER)
        except BaseException:
            self._peers.close()
            self.close()
            raise

    def _listen(self, role: ListenerRole) -> None:
        for listener in self._bound:
            if listener.role is role:
                self.server.listen(listener)

    def _accept_clients(self) -> None:
        # As in Apache Kafka not before: a client that is told of no broker may wait long to ask again.
        config, server = self._config, self.server
        try:
            self._listen(ListenerRole.BROKER)
        except BindError as error:
            self.failure.report(str(error))
            return
        # What was set while the broker ran before counts once it listens as it was told to start.
        server.change_listeners(config.running_listeners())
        self.node.config_changed.append(lambda: server.change_listeners(config.running_listeners()))
        self.ready.set()

    def set_bootstrap(self) -> None:
        """Clients may come, where the listeners are now."""
        listeners = self.server.listeners
        of_brokers = [one for one in listeners if one.role is ListenerRole.BROKER]
        self.bootstrap = ",".join(listener.address for listener in of_brokers or listeners)

    def shut_down(self) -> Iterator[Wait]:
        """Stop the node as `ending` says. What is yielded is waited for before the next step."""
        loop, server = self.loop, self.server
        loop.alone = False
        if self.shutdown_mode is ShutdownMode.KILLED:
            server.kill()
            self.node.kill()
        else:
            yield from self._controlled_shutdown()
            yield from server.drain(DRAIN_MS if loop.running else 0)
        done = loop.workers_done()
        yield Wait((done,), WORKERS_TIMEOUT_SECONDS)
        if not done.is_set:
            loop.logger("kwire.net").error(
                "worker threads are still busy after %d s: stopping anyway", WORKERS_TIMEOUT_SECONDS
            )
        if self.shutdown_mode is ShutdownMode.CLEAN:
            self.node.finish_shutdown()
        self._peers.close()
        loop.stop()

    def _controlled_shutdown(self) -> Iterator[Wait]:
        """Serve on until others lead what this broker did, or there is no use in waiting."""
        failed = self.failure.happened
        if failed.is_set or not self.loop.running:
            return
        left = LoopEvent()
        self.node.controlled_shutdown(left.set)
        self.loop.wake()
        yield Wait((left, failed), CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
        if not left.is_set and not failed.is_set:
            self.loop.logger("kwire.net").warning(
                "no controller had others lead in %d s: stopping anyway", CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS
            )

    def close(self) -> None:
        """Give descriptors back now, but for those of the disk that a thread still works with."""
        self._connections.close()
        for listener in self._bound:
            listener.sock.close()  # where nobody came to listen
        if not self.loop.working:
            self._disk.close()
        self.loop.close()
