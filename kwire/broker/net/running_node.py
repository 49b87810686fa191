"""A node with its socket server, from start to clean shutdown.

At start, the node first binds its listeners. So a port in use is found before any file is written, and the
number that the system chooses for port 0 is known before the node registers. Then the node opens the storage
and the metadata. Other nodes can connect at once; clients can connect once the broker is unfenced. To stop,
the node does a controlled shutdown, drains the connections, waits for worker threads, flushes and checkpoints
the logs, and marks the directories as cleanly shut down.

The caller runs the loop. `kwire serve` runs it in its main thread, and an embedded broker in a thread of its
own. With an HTTP port or a watchdog, `net.serve` runs the loop under trio together with other tasks. Without
trio, a node starts in half the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING

from kwire import __version__
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.listeners import BindError, Listener, bind, own_host_name
from kwire.broker.net.loop import Loop
from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.open_file_limit import shortage_log
from kwire.broker.net.peer_connection import PeerConnections
from kwire.broker.net.peer_links import PeerLinks, peer_security
from kwire.broker.net.socket_server import DRAIN_MS, SocketServer
from kwire.broker.net.socket_settings import read_socket_settings
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.node.base import NodeBase
from kwire.broker.node.node import Node, new_node
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.security.node_tls import NodeTls
from kwire.broker.storage.disk import Disk, RealDisk
from kwire.host.clock import Clock
from kwire.host.loggers import NodeLogger

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig

CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS = 300
"""The longest wait for a controlled shutdown, as in Kafka."""
WORKERS_TIMEOUT_SECONDS = 30
"""The longest wait during shutdown for worker threads, which may be writing to disks."""


class FatalFailure:
    """The first fatal failure of a node; its reason is empty as long as there is none."""

    def __init__(self, logger: NodeLogger, ready: LoopEvent) -> None:
        """`ready` is set once the node serves."""
        self._logger = logger
        self._ready = ready
        self.happened = LoopEvent()
        self.happened.on_set(ready.set)
        self.reason = ""
        self.is_logged = False
        """Whether the reason is in the log. The caller reports the failure of a node that never served."""

    def report(self, reason: str) -> None:
        """Record the first fatal failure. The code that runs the node must then shut it down."""
        if not self.happened.is_set:
            if self._ready.is_set:
                self._logger.critical("Fatal failure, the node must stop: %s", reason)
                self.is_logged = True
            self.reason = reason
            self.happened.set()


class ShutdownMode(Enum):
    """The way in which a node shuts down."""

    CLEAN = auto()
    DISCARDED = auto()
    """Clean for clients and other nodes, but without a flush, because the data will be deleted."""
    KILLED = auto()
    """Like a killed process: the node sends no response and writes nothing."""


class RunningNode:
    """A node that runs as long as its caller runs `loop`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Bind the listeners, then open and start the node.

        Raises BindError, StorageError, ConfigError or ResourceShortage, after closing everything. If the
        node starts, the caller must call `shut_down` and then `close`. To abandon a node, call only `close`.
        """
        config.tls = tls = NodeTls(config, RealStoreFiles())  # before anything that has to be closed
        settings = read_socket_settings(config, tls)
        self.loop = loop = Loop(clock, name=config.node_name, seed=seed)
        self.clock = loop.clock
        self.ready = LoopEvent()
        """The event that is set once the broker is unfenced and accepts clients, or the node has failed."""
        self.failure = FatalFailure(loop.logger("kwire.net"), self.ready)
        self.shutdown_mode = ShutdownMode.CLEAN
        self.bootstrap = ""
        """The addresses of all broker listeners, separated by commas. It is empty until `set_bootstrap`.

        A controller without the broker role has its controller listeners here.
        """
        self._config = config
        self._connections = connections = PeerConnections(loop, settings)
        loop.peers = self.peers = PeerLinks(
            loop,
            connections.dial,
            client_id=config.node_name.replace(" ", "-"),
            software_version=__version__,
            max_idle_ms=settings.max_idle_ms,
            setup_timeouts_ms=(
                settings.connection_setup_timeout_ms,
                settings.connection_setup_timeout_max_ms,
            ),
            peer_security=peer_security(config, loop),
        )
        self._disk = disk if disk is not None else RealDisk()
        loop.give_back_descriptors = self._disk.give_back_descriptors
        if isinstance(self._disk, RealDisk):
            self._disk.descriptors.on_shortage = shortage_log(loop)
            self._disk.descriptors.call_owner = loop.call_from_thread
            loop.relieve_workers = self._disk.descriptors.relieve_worker
        self._bound: list[Listener] = []
        try:
            loop.start_worker()
            wanted = {
                ListenerRole.BROKER: config.listener_endpoints(),
                ListenerRole.CONTROLLER: config.controller_endpoints(),
            }
            for role, endpoints in wanted.items():
                for name, host, port in endpoints:
                    # Append one at a time, so that `close` finds the open listeners if a later one fails.
                    self._bound += [bind(name, host, port, settings, role)]
            node = new_node(
                config, loop, self._disk, on_unfenced=self._accept_clients, on_fatal=self.failure.report
            )
            self.node: NodeBase = node
            self.broker = node if isinstance(node, Node) else None
            """The node if it has the broker role, otherwise None."""
            self.node.bound_ports.update({listener.name: listener.port for listener in self._bound})
            advertised = (*broker_endpoints(config), *controller_endpoints(config))
            if not all(endpoint.host for endpoint in advertised):
                self.node.host_name = own_host_name()
            self.server = SocketServer(loop, self.node, settings)
            self.node.client_quotas.clock = self.server.request_metrics.clock
            self.node.config_changed.append(
                lambda: self.server.update_quotas(read_socket_settings(config, tls))
            )
            self.node.metadata.publisher.subscribe(self.server.update_ip_quotas)
            self.node.start()
            self._listen(ListenerRole.CONTROLLER)
        except BaseException:
            self.peers.close()
            self.close()
            raise

    @property
    def cached_file_count(self) -> int:
        """The number of files that are open, but that the disk may close for others."""
        return self._disk.descriptors.cached_count if isinstance(self._disk, RealDisk) else 0

    def _listen(self, role: ListenerRole) -> None:
        for listener in self._bound:
            if listener.role is role:
                self.server.listen(listener)

    def _accept_clients(self) -> None:
        # As in Kafka, the broker accepts clients once it is unfenced. A client that got empty metadata before
        # would retry only after a delay.
        config, server = self._config, self.server
        try:
            self._listen(ListenerRole.BROKER)
        except BindError as error:
            self.failure.report(str(error))
            return
        # Listeners start from the static configuration. Stored dynamic configurations are applied here.
        server.change_listeners(config.running_listeners())
        self.node.config_changed.append(lambda: server.change_listeners(config.running_listeners()))
        self.ready.set()

    def set_bootstrap(self) -> None:
        """Set `bootstrap` to the current addresses of the open listeners."""
        listeners = self.server.listeners
        of_brokers = [one for one in listeners if one.role is ListenerRole.BROKER]
        self.bootstrap = ",".join(listener.address for listener in of_brokers or listeners)

    def shut_down(self) -> Iterator[Wait]:
        """Shut down in `shutdown_mode`. The caller must run the loop during each `Wait` that this yields."""
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
                "Worker threads are still busy after %d s, stopping anyway: a disk may not respond, and the "
                "next start runs log recovery",
                WORKERS_TIMEOUT_SECONDS,
            )
        if self.shutdown_mode is ShutdownMode.CLEAN:
            self.node.finish_shutdown(workers_are_idle=done.is_set)
        self.peers.close()
        loop.stop()

    def _controlled_shutdown(self) -> Iterator[Wait]:
        """Serve until the controller has moved the leaders, the node fails, or a timeout has passed."""
        failed = self.failure.happened
        if failed.is_set or not self.loop.running:
            return
        done = LoopEvent()
        self.node.controlled_shutdown(done.set)
        self.loop.wake()
        yield Wait((done, failed), CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
        if not done.is_set and not failed.is_set:
            self.loop.logger("kwire.net").warning(
                "Controlled shutdown did not complete in %d s, stopping anyway: the controller has not "
                "moved the leaders",
                CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS,
            )

    def close(self) -> None:
        """Close the listeners and the loop, and also the files if no worker thread is busy."""
        self._connections.close()
        for listener in self._bound:
            listener.sock.close()  # this includes listeners that never accepted connections
        if not self.loop.working:
            self._disk.close()
        self.loop.close()
