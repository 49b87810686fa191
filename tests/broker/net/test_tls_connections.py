"""Connections of a server with TLS. The other side is trio's TLS, which is Python's own."""

from __future__ import annotations

import random
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import trio

from kwire.broker.net.receiver import MAX_PENDING_REQUESTS
from kwire.broker.net.send_queue import SMALL_BYTES, SendQueue
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.file_region import FileRegion
from kwire.host.host import PeerAddress
from kwire.host.system_socket import Socket
from tests.broker.net.conftest import Client, ServerHarness
from tests.broker.net.test_tls_transport_layer import VERSIONS, client_context, server_context

if TYPE_CHECKING:
    from tests.broker.net.conftest import MakeHarness


@pytest.fixture(params=VERSIONS)
async def harness(request: pytest.FixtureRequest, make_harness: MakeHarness) -> ServerHarness:
    context = server_context(request.param)
    scratch = memoryview(bytearray(WINDOW_BYTES))

    def new(sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
        return TlsTransportLayer(sock, context, scratch, is_server=True)

    return await make_harness(new_transport_layer=new)


async def connect(harness: ServerHarness) -> Client:
    plain = await harness.connect()
    stream = trio.SSLStream(
        plain.stream, client_context(), server_hostname="127.0.0.1", https_compatible=True
    )
    return Client(cast("trio.SocketStream", stream))


async def test_pipelined_requests(harness: ServerHarness) -> None:
    """Many requests are in one record."""
    client = await connect(harness)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *(b"e%d" % index for index in range(20_000)))
        for index in range(20_000):
            assert await client.receive() == b"%d" % index


async def test_request_that_is_alone(harness: ServerHarness) -> None:
    client = await connect(harness)
    for index in range(100):
        assert await client.request(b"e%d" % index) == b"%d" % index


@pytest.mark.parametrize("size", [16_379, 100_000, 3_000_000])
async def test_large_frames_between_small_ones(harness: ServerHarness, size: int) -> None:
    client = await connect(harness)
    payload = random.Random(3).randbytes(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"ebefore", b"e" + payload, b"eafter")
        assert await client.receive() == b"before"
        assert await client.receive() == payload
        assert await client.receive() == b"after"


async def test_backpressure_does_not_keep_the_loop_busy(harness: ServerHarness) -> None:
    node = harness.node
    client = await connect(harness)
    names = [f"{index}{'x' * 100}" for index in range(MAX_PENDING_REQUESTS + 400)]
    await client.send(*(f"p{name}".encode() for name in names))
    await node.until(lambda: bool(harness.server.connections))
    (connection,) = harness.server.connections.values()
    await node.until(lambda: connection.is_paused)
    turns = node.turns
    for name in names:
        await node.until(lambda name=name: name in node.delayed)  # type: ignore[misc]
        node.complete(name)
        harness.loop.wake()
        assert await client.receive() == name.encode()
    assert node.turns - turns < 20 * len(names)


async def test_slow_readers_get_their_own_bytes(harness: ServerHarness, tmp_path: Path) -> None:
    """The encrypted bytes of a full socket belong to one connection, whatever the others send meanwhile."""
    disk = RealDisk()
    contents = [random.Random(seed).randbytes(3 << 20) for seed in range(3)]
    for number, content in enumerate(contents):
        path = tmp_path / f"{number:020}.log"
        path.write_bytes(content)
        harness.node.regions += [
            FileRegion(disk.open(str(path)), position, size)
            for position, size in ((0, 10), (7, 2 << 20), (100, 70_000))
        ]
    clients = [await connect(harness) for _ in contents]
    for number, client in enumerate(clients):
        await client.send(b"z2000000", *(b"f%d" % (3 * number + index) for index in range(3)), b"eend")
    await harness.node.until(lambda: len(harness.node.frames) >= len(clients))
    await trio.sleep(0.1)  # the sockets are full

    async def read(client: Client, content: bytes) -> None:
        assert await client.receive() == bytes(2_000_000)
        for position, size in ((0, 10), (7, 2 << 20), (100, 70_000)):
            assert await client.receive() == b"head" + content[position : position + size] + b"tail"
        assert await client.receive() == b"end"

    async with trio.open_nursery() as nursery:
        for client, content in zip(clients, contents, strict=True):
            nursery.start_soon(read, client, content)


async def test_header_does_not_wait_for_a_cold_region(
    harness: ServerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the bytes before the region would wait in the transport layer for the disk."""
    held: list[tuple[Callable[[], None], Callable[[None], None]]] = []
    monkeypatch.setattr(SendQueue, "_is_resident", lambda *_: False)
    monkeypatch.setattr(harness.loop, "run_in_worker", lambda work, done: held.append((work, done)))
    path = tmp_path / "00000000000000000000.log"
    content = random.Random(1).randbytes(SMALL_BYTES + 1)
    path.write_bytes(content)
    harness.node.regions = [FileRegion(RealDisk().open(str(path)), 0, len(content))]
    client = await connect(harness)
    await client.send(b"ebefore", b"f0")
    assert await client.receive() == b"before"
    with trio.fail_after(5):
        assert await client.take(8) == struct.pack(">i", 8 + len(content)) + b"head"
    ((work, done),) = held
    work()
    done(None)
    assert await client.take(len(content) + 4) == content + b"tail"


async def test_client_that_does_not_trust_the_server(harness: ServerHarness) -> None:
    plain = await harness.connect()
    stream = trio.SSLStream(plain.stream, client_context(trusts=False), server_hostname="127.0.0.1")
    with pytest.raises(trio.BrokenResourceError):
        await stream.do_handshake()
    await plain.stream.aclose()
    await harness.node.until(lambda: bool(harness.node.closed))
    assert not harness.node.frames


async def test_client_that_ends_tls_gets_the_end_of_tls(harness: ServerHarness) -> None:
    client = await connect(harness)
    assert await client.request(b"ehello") == b"hello"
    stream = cast("trio.SSLStream[trio.SocketStream]", client.stream)
    with trio.fail_after(5):
        transport_stream, _ = await stream.unwrap()
    await transport_stream.aclose()
    await harness.node.until(lambda: bool(harness.node.closed))


@pytest.mark.parametrize("count", [1, 3, 17, 100])
async def test_connection_may_be_lost_at_any_byte(harness: ServerHarness, count: int) -> None:
    """The server drops what has arrived, and serves the next client."""
    plain = await harness.connect()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    await plain.stream.send_all(outgoing.read()[:count])
    await plain.stream.aclose()
    await harness.node.until(lambda: bool(harness.node.closed))
    client = await connect(harness)
    assert await client.request(b"ehello") == b"hello"
