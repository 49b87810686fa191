"""A node with its socket server, from start to clean shutdown.

Start: bind the listeners, so that a port in use is found before anything is written, and the port chosen for
port 0 is known before the node registers. Then open the storage and the metadata. Other nodes can connect at
once, and clients once the broker is unfenced. Stop: controlled shutdown, drain the connections, wait for
worker threads, flush and checkpoint the logs, and mark the directories as cleanly shut down.

The caller runs the loop. `net.serve` does so under trio, for `kwire serve` with its other tasks. An embedded
broker runs it in a plain thread, which starts in half the time because trio is not imported.
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
"""The longest wait for a controlled shutdown, as in Kafka."""
WORKERS_TIMEOUT_SECONDS = 30
"""The longest wait for worker threads, which write to disks, during shutdown."""


class FatalFailure:
    """The fatal failure of a node, if there is one, and its reason."""

    def __init__(self, logger: NodeLogger) -> None:
        self._logger = logger
        self.happened = LoopEvent()
        self.reason = ""

    def report(self, reason: str) -> None:
        """Record and log the first fatal failure. The caller that runs the node should shut it down."""
        if not self.happened.is_set:
            self._logger.critical("Fatal failure, the node has to stop: %s", reason)
            self.reason = reason
            self.happened.set()


class ShutdownMode(Enum):
    """The way in which a node shuts down."""

    CLEAN = auto()
    DISCARDED = auto()
    """Clean for clients and other nodes, but without flushing data that is to be deleted."""
    KILLED = auto()
    """As if the process were killed: no response is sent, and nothing is written."""


class RunningNode:
    """A node that runs while its caller runs `loop`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Bind, open and start the node. BindError, StorageError, ConfigError: everything is closed again.

        Call `close` afterwards, and `shut_down` before that unless the node was to be abandoned.
        """
        settings = read_socket_settings(config)
        self.loop = loop = Loop(clock, name=config.node_name, seed=seed)
        self.clock = loop.clock
        self.failure = FatalFailure(loop.logger("kwire.net"))
        self.ready = LoopEvent()
        """Set once the broker is unfenced and accepts clients, or has failed."""
        self.failure.happened.on_set(self.ready.set)
        self.shutdown_mode = ShutdownMode.CLEAN
        self.bootstrap = ""
        """The addresses of all broker listeners, separated by commas. Empty until `set_bootstrap`.

        For a controller without the broker role, the addresses for other nodes.
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
                    # One at a time, so that `close` finds those before one that fails.
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
        # Not before the broker is unfenced, as in Kafka: a client that gets empty metadata retries late.
        config, server = self._config, self.server
        try:
            self._listen(ListenerRole.BROKER)
        except BindError as error:
            self.failure.report(str(error))
            return
        # Listeners start as in the static configuration, then dynamic changes of an earlier run apply.
        server.change_listeners(config.running_listeners())
        self.node.config_changed.append(lambda: server.change_listeners(config.running_listeners()))
        self.ready.set()

    def set_bootstrap(self) -> None:
        """Set `bootstrap` to the current addresses of the listeners."""
        listeners = self.server.listeners
        of_brokers = [one for one in listeners if one.role is ListenerRole.BROKER]
        self.bootstrap = ",".join(listener.address for listener in of_brokers or listeners)

    def shut_down(self) -> Iterator[Wait]:
        """Shut down as `shutdown_mode` says. The caller runs the loop for each yielded wait."""
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
                "Worker threads are still busy after %d s, stopping anyway", WORKERS_TIMEOUT_SECONDS
            )
        if self.shutdown_mode is ShutdownMode.CLEAN:
            self.node.finish_shutdown()
        self._peers.close()
        loop.stop()

    def _controlled_shutdown(self) -> Iterator[Wait]:
        """Continue to serve until the controller has moved the leaders, or that cannot be expected."""
        failed = self.failure.happened
        if failed.is_set or not self.loop.running:
            return
        done = LoopEvent()
        self.node.controlled_shutdown(done.set)
        self.loop.wake()
        yield Wait((done, failed), CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS)
        if not done.is_set and not failed.is_set:
            self.loop.logger("kwire.net").warning(
                "Controlled shutdown did not complete in %d s, stopping anyway: no controller has moved the "
                "leaders",
                CONTROLLED_SHUTDOWN_TIMEOUT_SECONDS,
            )

    def close(self) -> None:
        """Close all descriptors, except for files that a worker thread still uses."""
        self._connections.close()
        for listener in self._bound:
            listener.sock.close()  # also those that never listened
        if not self.loop.working:
            self._disk.close()
        self.loop.close()
