"""A whole node in a test's own thread: on virtual time, with a disk in memory, without a network.

node = VirtualNode({"log.dirs": "/data"})
client = node.connect()
answer = client.call(12, MetadataRequest(topics=None))
node.host.advance(60_000)

Nodes that share one `Events` live in one world: one clock, and one order in which things happen to all.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import count
from typing import Any, cast

from kwire.broker.api.context import Channel
from kwire.broker.api.table import ListenerRole
from kwire.broker.config import load
from kwire.broker.node.node import Node
from kwire.broker.storage.disk import FileRegion
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual import Events, VirtualHost
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request

NOW_MS = 1_700_000_000_000
INDEX_BYTES = 64 * 1024
"""An index takes all of its size at once, which is memory here: Kafka's default is 10 MiB for each of two."""


def taken(channel: Channel) -> bytes:
    """The answers that are there, as they would go over the socket."""
    pieces = cast("list[bytes | bytearray | memoryview | FileRegion]", channel.take_ready())
    return b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)


class VirtualNode:
    """A node that has started, with its host and its disk."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        disk: MemoryDisk | None = None,
        seed: int = 1,
        now_ms: int = NOW_MS,
        events: Events | None = None,
        work_delays: random.Random | None = None,
    ) -> None:
        """`settings` are Kafka's keys, whose defaults are Kafka's but for small indexes.

        For the rest see `VirtualHost`.
        """
        config = load(None, {}, {"log.index.size.max.bytes": str(INDEX_BYTES), **settings})
        self.disk = MemoryDisk() if disk is None else disk
        self.fatal: list[str] = []
        """Why the node cannot go on, where it has said so."""
        self.host = VirtualHost(
            seed=seed, now_ms=now_ms, name=config.node_name, events=events, work_delays=work_delays
        )
        self.node = Node(config, self.host, self.disk, on_fatal=self.fatal.append)
        self.host.end_turn = self.node.end_turn
        self.node.start()
        self._channel_ids = count(1)

    def connect(self, listener: str = "PLAINTEXT", role: ListenerRole = ListenerRole.BROKER) -> Client:
        """A new connection."""
        return Client(self, next(self._channel_ids), listener, role)

    def call(self, version: int, request: Any) -> Any:
        """What a new connection is answered before time has passed; None where that is nothing."""
        client = self.connect()
        client.send(version, request)
        return client.receive(version, type(request))

    def turn(self) -> None:
        """End the turn of the loop, and have everything happen that takes no time."""
        self.node.end_turn()
        self.host.run_pending()


class Client:
    """A connection to a node, and what a client does with it."""

    def __init__(
        self,
        node: VirtualNode,
        channel_id: int,
        listener: str = "PLAINTEXT",
        role: ListenerRole = ListenerRole.BROKER,
    ) -> None:
        self.around = node
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
        self._ids = count(1)

    def another(self) -> Client:
        """Another connection to the same node."""
        return self.around.connect()

    def put(self, frame: bytes) -> None:
        """Hand a request's frame over, its size in front; the turn goes on."""
        # As in the shell's buffer, which may be written to.
        self.node.handle_frame(self.channel, memoryview(bytearray(frame))[4:])

    def ask(self, version: int, request: Any) -> None:
        """Hand a request over; the turn goes on."""
        self.put(encode_request(request, version, next(self._ids), "me"))

    def send(self, version: int, request: Any) -> None:
        """Send a request, and let everything happen that takes no time."""
        self.ask(version, request)
        self.around.turn()

    def take(self) -> bytes:
        """The answers that are there, as they would go over the socket."""
        return taken(self.channel)

    def receive(self, version: int, request_class: Any) -> Any:
        """The answer to the one request that was sent; None while there is none."""
        frame = self.take()
        if not frame:
            return None
        return decode_response(API_VERSIONS[request_class.API_KEY].response_class, version, frame[4:])[1]

    def call(self, version: int, request: Any) -> Any:
        """What is answered before time has passed: something."""
        self.send(version, request)
        answer = self.receive(version, type(request))
        assert answer is not None
        return answer
