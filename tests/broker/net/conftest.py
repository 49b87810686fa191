"""A server on loopback, with a fake node that obeys commands in the requests.

A request frame is a command letter and its argument; a reply frame is plain bytes.

    e<payload>   reply with the payload at once
    p<name>      reply when the test calls `node.complete(name)`
    z<n>         reply with n zero bytes
    f<n>         reply with 'head', then region n of `node.regions`, then 'tail'
    n            no reply
    c            no reply; the connection closes after the earlier replies
    w            WireError, as for a request that violates the protocol
    x            ZeroDivisionError, as for a bug of the node
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from kwire.broker.api.request.context import Channel, RequestContext
from kwire.broker.net.listeners import bind
from kwire.broker.net.loop import Loop
from kwire.broker.net.serve import run_waits
from kwire.broker.net.socket_server import SocketServer
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.storage.file_region import FileRegion
from kwire.host.clock import ManualClock
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import WireError
from kwire.wire.registry import RequestHeader

HEADER = RequestHeader(ApiKey.PRODUCE, 0, 0, None)


def framed(*pieces: Any) -> list[Any]:
    """Return the pieces of a response with their total size in front."""
    size = sum(piece.size_bytes if isinstance(piece, FileRegion) else len(piece) for piece in pieces)
    return [struct.pack(">i", size), *pieces]


class FakeNode:
    """A node that does what each request commands."""

    def __init__(self) -> None:
        self.delayed: dict[str, RequestContext] = {}
        self.regions: list[FileRegion] = []
        self.frames: list[bytes] = []
        self.channels: list[Channel] = []
        self.closed: list[Channel] = []
        self.turns = 0
        self.one_at_a_time = False
        self.on_opened: Callable[[Channel], None] = lambda channel: None
        self.on_begin_shutdown: Callable[[], None] = lambda: None
        self.on_end_turn: Callable[[], None] = lambda: None
        self._changes = trio.lowlevel.ParkingLot()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, turn by turn, until a condition holds."""
        while not condition():
            await self._changes.park()

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        assert not frame.readonly
        if channel not in self.channels:
            self.channels.append(channel)
        self.frames.append(bytes(frame[:64]))
        command, argument = bytes(frame[:1]), bytes(frame[1:])
        if command == b"w":
            raise WireError("a peer that knows no better")
        if command == b"x":
            raise ZeroDivisionError("ours")
        context = channel.open_slot(HEADER, 0)
        if command == b"e":
            context.complete_encoded(framed(argument))
        elif command == b"z":
            context.complete_encoded(framed(bytes(int(argument))))
        elif command == b"f":
            context.complete_encoded(framed(b"head", self.regions[int(argument)], b"tail"))
        elif command == b"n":
            context.complete_without_reply()
        elif command == b"c":
            context.close_connection()
        else:
            assert command == b"p"
            self.delayed[argument.decode()] = context

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        return self.one_at_a_time and not all(context.completed for context in channel.slots)

    def end_turn(self, answer: Callable[[], None] | None = None) -> None:
        self.turns += 1
        self.on_end_turn()
        self._changes.unpark_all()

    def channel_opened(self, channel: Channel) -> None:
        self.on_opened(channel)

    def channel_closed(self, channel: Channel) -> None:
        channel.close()
        self.closed.append(channel)
        self._changes.unpark_all()

    def begin_shutdown(self) -> None:
        self.on_begin_shutdown()

    def complete(self, name: str, reply: bytes = b"") -> None:
        self.delayed.pop(name).complete_encoded(framed(reply or name.encode()))


class Client:
    """A client socket that sends and receives frames."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def send(self, *frames: bytes) -> None:
        await self.send_raw(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    async def send_raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> bytes:
        """Return the next response."""
        size = struct.unpack(">i", await self.take(4))[0]
        return await self.take(size)

    async def request(self, frame: bytes) -> bytes:
        await self.send(frame)
        return await self.receive()

    async def is_closed(self) -> bool:
        """Wait for the server to close, and return False if it sends data instead."""
        try:
            return await self.stream.receive_some() == b""
        except trio.BrokenResourceError:
            return True

    async def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        while len(self._received) < size:
            more = await self.stream.receive_some(1 << 20)
            assert more, f"closed after {len(self._received)} of {size} bytes"
            self._received += more
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


class ServerHarness:
    """A server with a fake node, a manual clock, and clients."""

    def __init__(self, settings: SocketSettings) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.node = FakeNode()
        self.server = SocketServer(self.loop, self.node, settings)
        self.clients: list[Client] = []

    def listen(self, name: str = "PLAINTEXT", host: str = "127.0.0.1") -> int:
        """Listen on a free port and return it."""
        listener = bind(name, host, 0, self.server.settings)
        self.server.listen(listener)
        return listener.port

    @property
    def port(self) -> int:
        return self.server.listeners[0].port

    async def connect(self, port: int | None = None, host: str = "127.0.0.1") -> Client:
        client = Client(await trio.open_tcp_stream(host, port or self.port))
        self.clients.append(client)
        return client

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            for client in self.clients:
                await trio.aclose_forcefully(client.stream)
            if not self.server.draining:
                await run_waits(self.server.drain(timeout_ms=0))
            self.loop.stop()


MakeHarness = Callable[..., Awaitable[ServerHarness]]


@pytest.fixture
async def make_harness(nursery: trio.Nursery) -> AsyncIterator[MakeHarness]:
    """Yield a function that starts a server with these settings."""
    harnesses: list[ServerHarness] = []

    async def make(**settings: Any) -> ServerHarness:
        harness = ServerHarness(SocketSettings(**settings))
        harnesses.append(harness)
        harness.listen()
        nursery.start_soon(harness.loop.run)
        return harness

    with trio.fail_after(20):
        yield make
        for harness in harnesses:
            await harness.close()
            while harness.loop.running:
                await trio.lowlevel.checkpoint()
            harness.loop.close()


@pytest.fixture
async def harness(make_harness: MakeHarness) -> ServerHarness:
    """Start a server with Kafka's defaults."""
    return await make_harness()
