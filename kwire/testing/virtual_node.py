"""A whole node in a test's own thread: on virtual time, with a disk in memory.

node = VirtualNode({"log.dirs": "/data"})
client = node.connect()
answer = client.call(12, MetadataRequest(topics=None))
node.host.advance(60_000)

Nodes that share one `EventQueue` live in one world: one clock, and one order in which things happen to all.
On a `kwire.testing.network.Network` they reach each other, too.
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
from kwire.broker.net.peer_links import PeerLinks, peer_authentication
from kwire.broker.node.node import Node, new_node
from kwire.broker.raft.endpoints import controller_endpoints
from kwire.broker.security.principal import ANONYMOUS, Principal
from kwire.broker.storage.disk import FileRegion
from kwire.host.host import PeerAddress
from kwire.testing.disk import MemoryDisk
from kwire.testing.network import Network
from kwire.testing.virtual_host import EventQueue, VirtualHost
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

NOW_MS = 1_700_000_000_000
INDEX_BYTES = 64 * 1024
"""An index takes all of its size at once, which is memory here: Kafka's default is 10 MiB for each of two."""


def take_ready_bytes(channel: Channel) -> bytes:
    """The answers that are there, as they would go over the socket."""
    pieces = cast("list[bytes | bytearray | memoryview | FileRegion]", channel.take_ready())
    return b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)


def addresses_of(config: BrokerConfig) -> dict[PeerAddress, tuple[str, ListenerRole]]:
    """Where a node is reached: the listener and its role, by address. Ports have to be given."""
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
    """A node that has started, with its host and its disk."""

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
        """`settings` are Kafka's keys, whose defaults are Kafka's but for small indexes.

        On a network the node is reached at the addresses in `listeners` and `advertised.listeners`, and dies
        where its disk says so. For the rest see `VirtualHost`.
        """
        self.settings = dict(settings)
        self.disk = MemoryDisk() if disk is None else disk
        self.fatal: list[str] = []
        """Why the node cannot go on, where it has said so."""
        self.network = network
        # Another process on the same disk must not take itself for this one: it draws who it is.
        self._seed = seed + self.disk.changes
        self._now_ms = now_ms
        self._events = events if network is None else network.events
        self._work_delays = work_delays
        self._channel_ids = count(1)
        self._speed_percent, self._skew_ms = speed_percent, skew_ms
        self.start()

    # --- its lives

    def start(self) -> None:
        """Start its process, the first or another one, on the disk as it is."""
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

        def join(*roles: ListenerRole) -> None:
            if network is not None:
                places = {at: place for at, place in addresses_of(config).items() if place[1] in roles}
                network.join(host, self.node, places)

        # Nobody asks a controller alone for more than what it is.
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
                partial(network.dial, host),
                client_id=host.name,
                peer_authentication=peer_authentication(config, host),
            )
        self.node.start()
        join(ListenerRole.CONTROLLER)

    def die(self, *, power: random.Random | None = None) -> None:
        """Kill its process; with `power`, turn the machine off, where chance decides what the disk keeps."""
        self.host.die()
        if power is None:
            self.disk.kill()
        else:
            self.disk.power_cut(power)
        if self.network is not None:
            self.network.leave(self.host, silently=power is not None)

    def stop(self) -> None:
        """End its process in good order, at once."""
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
        """Lose everything on the disk, while no process runs."""
        assert self.host.is_dead
        self.disk.wipe()

    @property
    def is_running(self) -> bool:
        """Whether there is a process, paused or not."""
        return not self.host.is_dead

    # --- asking it

    def connect(
        self,
        listener: str = "PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
        who: Principal | None = None,
    ) -> VirtualClient:
        """A new connection, which need not say by SASL who it is where `who` tells.

        Nor by a listener that the node has not: nobody asks there.
        """
        of = self.node.config
        there = (*of.listener_endpoints(), *of.controller_endpoints(), *of.running_listeners())
        if who is None and listener not in (one.name for one in there):
            who = ANONYMOUS
        return VirtualClient(self, next(self._channel_ids), listener, role, who)

    def call(self, version: int, request: Any) -> Any:
        """What a new connection is answered before time has passed; None where that is nothing."""
        client = self.connect()
        client.send(version, request)
        return client.receive(version, type(request))

    def turn(self) -> None:
        """End the turn of the loop, and have everything happen that takes no time."""
        self.node.end_turn()
        self.host.run_pending()


class VirtualClient:
    """A connection to a node, and what a client does with it."""

    def __init__(
        self,
        node: VirtualNode,
        channel_id: int,
        listener: str = "PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
        who: Principal | None = None,
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
        if who is None:
            self.node.channel_opened(self.channel)
        else:
            self.channel.principal = who
        self._ids = count(1)

    def new_connection(self) -> VirtualClient:
        """Another connection to the same node."""
        return self.virtual_node.connect()

    def submit_frame(self, frame: bytes) -> None:
        """Hand a request's frame over, its size in front; the turn goes on."""
        # As in the shell's buffer, which may be written to.
        self.node.handle_frame(self.channel, memoryview(bytearray(frame))[4:])

    def submit(self, version: int, request: Any) -> None:
        """Hand a request over; the turn goes on."""
        self.submit_frame(encode_request(request, version, next(self._ids), "me"))

    def send(self, version: int, request: Any) -> None:
        """Send a request, and let everything happen that takes no time."""
        self.submit(version, request)
        self.virtual_node.turn()

    def take_bytes(self) -> bytes:
        """The answers that are there, as they would go over the socket."""
        return take_ready_bytes(self.channel)

    def receive(self, version: int, request_class: Any) -> Any:
        """The answer to the one request that was sent; None while there is none."""
        frame = self.take_bytes()
        if not frame:
            return None
        return decode_response(API_VERSIONS[request_class.API_KEY].response_class, version, frame[4:])[1]

    def call(self, version: int, request: Any) -> Any:
        """What is answered before time has passed: something."""
        self.send(version, request)
        answer = self.receive(version, type(request))
        assert answer is not None
        return answer
