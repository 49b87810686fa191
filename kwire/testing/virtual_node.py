"""A complete node in the test's thread, on virtual time, with a disk in memory.

    node = VirtualNode({"log.dirs": "/data"})
    client = node.connect()
    response = client.call(12, MetadataRequest(topics=None))
    node.host.advance(60_000)

Nodes that share one `EventQueue` have one clock and one order of events. Nodes on the same
`kwire.testing.network.Network` can reach each other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any, cast

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config import BrokerConfig, load
from kwire.broker.net.peer_links import PeerLinks, peer_security
from kwire.broker.net.store_files import RealStoreFiles
from kwire.broker.node.node import Node, new_node
from kwire.broker.raft.endpoints import controller_endpoints
from kwire.broker.security.node_tls import NodeTls
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.broker.storage.file_region import FileRegion
from kwire.host.host import PeerAddress
from kwire.testing.disk import MemoryDisk
from kwire.testing.network import Network
from kwire.testing.tls_end import TlsLayers, layers_of_node, no_tls
from kwire.testing.virtual_host import EventQueue, VirtualHost
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

NOW_MS = 1_700_000_000_000
INDEX_BYTES = 64 * 1024
"""Small, since indexes are preallocated in memory here. Kafka's default is 10 MiB for each of two."""


def take_ready_bytes(channel: Channel) -> bytes:
    """Remove and return the ready responses of a channel, as the bytes that its socket would send."""
    pieces = cast("list[bytes | bytearray | memoryview | FileRegion]", channel.take_ready())
    return b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)


def addresses_of(config: BrokerConfig) -> dict[PeerAddress, tuple[str, ListenerRole]]:
    """Return the listeners of a node by address, with their names and roles. Ports must not be 0."""
    brokers = [*config.listener_endpoints(), *config.advertised_endpoints()]
    own = [(at.name, at.host, at.port) for at in config.controller_endpoints()]
    controllers = [*own, *((at.name, at.host, at.port) for at in controller_endpoints(config))]
    return {
        PeerAddress(host, port): (name, role)
        for role, endpoints in ((ListenerRole.BROKER, brokers), (ListenerRole.CONTROLLER, controllers))
        for name, host, port in endpoints
        if host
    }


class VirtualNode:
    """A node with its host and its disk, which can be killed and started again."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        disk: MemoryDisk | None = None,
        seed: int = 1,
        now_ms: int = NOW_MS,
        events: EventQueue | None = None,
        work_delays: random.Random | None = None,
        network: Network | None = None,
        speed_percent: int = 100,
        skew_ms: int = 0,
    ) -> None:
        """Start a node. `settings` are its configs; the defaults are Kafka's, except for small indexes.

        On a network, the node is reachable at its `listeners` and `advertised.listeners`, and its process
        dies if its disk raises `ProcessDied`. For the other arguments see `VirtualHost`.
        """
        self.settings = dict(settings)
        self.disk = MemoryDisk() if disk is None else disk
        self.fatal: list[str] = []
        """The errors that the node reported as fatal."""
        self.network = network
        # A later process on the same disk needs another seed, since it draws a new incarnation id.
        self._seed = seed + self.disk.changes
        self._now_ms = now_ms
        self._events = events if network is None else network.events
        self._work_delays = work_delays
        self._channel_ids = count(1)
        self._speed_percent, self._skew_ms = speed_percent, skew_ms
        self.start()

    # --- start and stop

    def start(self) -> None:
        """Start a process on the current disk, for the first time or again."""
        config = load(None, {}, {"log.index.size.max.bytes": str(INDEX_BYTES), **self.settings})
        self.host = host = VirtualHost(
            seed=self._seed,
            now_ms=self._now_ms,
            name=config.node_name,
            events=self._events,
            work_delays=self._work_delays,
            speed_percent=self._speed_percent,
            skew_ms=self._skew_ms,
        )
        self.fatal.clear()
        self._seed += 1_000
        self._events = host.events
        network = self.network

        tls: TlsLayers = no_tls
        if network is not None:
            config.tls = NodeTls(config, RealStoreFiles())
            tls = layers_of_node(config.tls)

        def join(*roles: ListenerRole) -> None:
            if network is not None:
                listeners = {at: found for at, found in addresses_of(config).items() if found[1] in roles}
                network.join(host, self.node, listeners, tls)

        # A controller without the broker role gets no requests that only a `Node` can serve.
        self.node = cast(
            Node,
            new_node(
                config,
                host,
                self.disk,
                on_unfenced=lambda: join(ListenerRole.BROKER),
                on_fatal=self.fatal.append,
            ),
        )
        host.end_turn = self.node.end_turn
        if network is not None:
            host.on_death = self.die
            host.peers = self._peers = PeerLinks(
                host,
                partial(network.dial, host, tls=tls),
                client_id=host.name,
                peer_security=peer_security(config, host),
            )
        self.node.start()
        join(ListenerRole.CONTROLLER)

    def die(self, *, power_failure: random.Random | None = None) -> None:
        """Kill the process. With `power_failure`, the machine loses power.

        The generator `power_failure` decides which unsynced disk operations survive.
        """
        self.host.die()
        if power_failure is None:
            self.disk.kill()
        else:
            self.disk.power_cut(power_failure)
        if self.network is not None:
            self.network.leave(self.host, silently=power_failure is not None)

    def stop(self) -> None:
        """Shut the process down cleanly and at once."""
        if self.network is not None:
            self.network.stop_listening(self.host)
        self.node.begin_shutdown()
        self.turn()
        self.node.finish_shutdown()
        if self.network is not None:
            self._peers.close()
            self.network.leave(self.host)
        self.host.die()

    def wipe(self) -> None:
        """Remove everything from the disk. The process must be dead."""
        assert self.host.is_dead
        self.disk.wipe()

    @property
    def is_running(self) -> bool:
        """Whether the process is alive, paused or not."""
        return not self.host.is_dead

    # --- requests

    def connect(
        self,
        listener: str = "PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
        principal: Principal | None = None,
    ) -> VirtualClient:
        """Open a connection. With `principal`, it is authenticated without SASL.

        The connection is anonymous if the node has no listener of this name.
        """
        config = self.node.config
        known = (*config.listener_endpoints(), *config.controller_endpoints(), *config.running_listeners())
        if principal is None and listener not in (one.name for one in known):
            principal = ANONYMOUS
        return VirtualClient(self, next(self._channel_ids), listener, role, principal)

    def call(self, version: int, request: Any) -> Any:
        """Send a request on a new connection, and return the response, or None if there is none yet."""
        client = self.connect()
        client.send(version, request)
        return client.receive(version, type(request))

    def turn(self) -> None:
        """End the turn of the event loop, and make all calls that are due now."""
        self.node.end_turn()
        self.host.run_pending()


class VirtualClient:
    """A client's connection to a node."""

    def __init__(
        self,
        node: VirtualNode,
        channel_id: int,
        listener: str = "PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
        principal: Principal | None = None,
    ) -> None:
        self.virtual_node = node
        self.node = node.node
        self.host = node.host
        self.channel = Channel(
            channel_id,
            peer_host="127.0.0.1",
            listener=listener,
            on_ready=lambda _channel: None,
            logger=node.host.logger("kwire.dispatch"),
            role=role,
        )
        if principal is None:
            self.node.channel_opened(self.channel)
        else:
            self.channel.principal = principal
        self._ids = count(1)

    def submit_frame(self, frame: bytes) -> None:
        """Pass a request frame, including its size prefix, to the node without ending the turn."""
        # The node may write to the frame, as it may to the receive buffer of a connection.
        self.node.handle_frame(self.channel, memoryview(bytearray(frame))[4:])

    def submit(self, version: int, request: Any) -> None:
        """Pass a request to the node without ending the turn."""
        self.submit_frame(encode_request(request, version, next(self._ids), "me"))

    def send(self, version: int, request: Any) -> None:
        """Send a request, and end the turn."""
        self.submit(version, request)
        self.virtual_node.turn()

    def take_bytes(self) -> bytes:
        """Remove and return the ready responses, as the bytes that a socket would send."""
        return take_ready_bytes(self.channel)

    def receive(self, version: int, request_class: Any) -> Any:
        """Return the response to the only pending request, or None if the response is not ready."""
        frame = self.take_bytes()
        if not frame:
            return None
        return decode_response(API_VERSIONS[request_class.API_KEY].response_class, version, frame[4:])[1]

    def call(self, version: int, request: Any) -> Any:
        """Send a request, and return its response, which must be ready without any delay."""
        self.send(version, request)
        response = self.receive(version, type(request))
        assert response is not None
        return response
