"""A second transport layer: nothing outside of its factory has to change for it."""

from __future__ import annotations

import random
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from kwire.broker.config import load
from kwire.broker.config.listeners import PROTOCOLS
from kwire.broker.config.tls import TLS_PROTOCOLS
from kwire.broker.net import loop as loop_module
from kwire.broker.net.loop import Loop
from kwire.broker.net.receiver import MAX_PENDING_REQUESTS
from kwire.broker.net.serve import run_waits, serve
from kwire.broker.net.socket_server import MAX_HANDSHAKE_MS
from kwire.broker.net.transport_layer import TRANSPORT_LAYERS, PlaintextTransportLayer
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.storage.disk import RealDisk
from kwire.broker.storage.file_region import FileRegion
from kwire.host.host import PeerAddress
from kwire.host.system_os import os
from kwire.host.system_socket import Socket
from kwire.wire.batch import build
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.registry import API_VERSIONS, decode_response, encode_request
from kwire.wire.schema import Message
from tests.broker.net.conftest import Client, ServerHarness
from tests.broker.net.test_roles import broker_config, node_config
from tests.broker.net.xor_transport_layer import HELLO, XorStream, XorTransportLayer, xor

if TYPE_CHECKING:
    from tests.broker.net.conftest import MakeHarness

HOST = "127.0.0.1"


def new_xor(sock: Socket, listener: str, to: PeerAddress | None) -> XorTransportLayer:
    return XorTransportLayer(sock)


@pytest.fixture
async def xor_harness(make_harness: MakeHarness) -> ServerHarness:
    return await make_harness(new_transport_layer=new_xor)


async def connect(harness: ServerHarness) -> Client:
    """Connect, and send the hello without waiting for that of the server."""
    client = await harness.connect()
    await client.stream.send_all(HELLO)
    return Client(cast("trio.SocketStream", XorStream(client.stream)))


def test_each_security_protocol_has_a_transport_layer() -> None:
    assert {*TRANSPORT_LAYERS, *TLS_PROTOCOLS} == set(PROTOCOLS)


def test_plaintext_consists_of_the_methods_of_the_socket() -> None:
    """The plain path makes no Python call between the loop and the socket."""
    sock = Socket(socket.AF_INET, socket.SOCK_STREAM)
    layer = PlaintextTransportLayer(sock)
    layer.close()
    assert sock.fileno() == -1
    assert [layer.receive_into, layer.send, layer.sendmsg] == [sock.recv_into, sock.send, sock.sendmsg]
    assert isinstance(layer.send_region, partial)
    assert layer.send_region.func == os.sendfile


# --- a server with a fake node


async def test_request_behind_the_handshake_needs_no_further_event(xor_harness: ServerHarness) -> None:
    client = await xor_harness.connect()
    await client.stream.send_all(HELLO + xor(b"\0\0\0\6ehello" + b"\0\0\0\6eworld"))
    behind = Client(cast("trio.SocketStream", XorStream(client.stream)))
    assert await behind.receive() == b"hello"
    assert await behind.receive() == b"world"


async def test_handshake_may_arrive_byte_by_byte(xor_harness: ServerHarness) -> None:
    client = await xor_harness.connect()
    for byte in HELLO:
        await trio.sleep(0.005)
        await client.stream.send_all(bytes([byte]))
    behind = Client(cast("trio.SocketStream", XorStream(client.stream)))
    assert await behind.request(b"ehello") == b"hello"


async def test_failed_handshake_closes_the_connection(xor_harness: ServerHarness) -> None:
    client = await xor_harness.connect()
    await client.stream.send_all(b"XOR?")
    await xor_harness.node.until(lambda: bool(xor_harness.node.closed))
    assert not xor_harness.server.connections
    assert not xor_harness.node.frames


@pytest.mark.parametrize("max_idle_ms", [-1, 5_000, 600_000])
async def test_handshake_that_never_ends_is_closed(make_harness: MakeHarness, max_idle_ms: int) -> None:
    harness = await make_harness(new_transport_layer=new_xor, max_idle_ms=max_idle_ms)
    established = await connect(harness)
    assert await established.request(b"ehello") == b"hello"
    await harness.connect()
    await harness.node.until(lambda: len(harness.server.connections) == 2)
    harness.clock.advance(MAX_HANDSHAKE_MS - 1)
    assert await established.request(b"ehello") == b"hello"
    assert not harness.node.closed
    harness.clock.advance(1)
    await harness.node.until(lambda: bool(harness.node.closed))
    (connection,) = harness.server.connections.values()
    assert connection.is_established
    harness.clock.advance(max(0, max_idle_ms))
    await harness.node.until(lambda: max_idle_ms < 0 or not harness.server.connections)


async def test_handshake_is_closed_when_the_server_stops(xor_harness: ServerHarness) -> None:
    client = await xor_harness.connect()
    await xor_harness.node.until(lambda: bool(xor_harness.server.connections))
    await run_waits(xor_harness.server.drain())
    assert not xor_harness.server.connections
    while not await client.is_closed():
        pass  # the server had sent a part of its hello


def test_steps_of_handshakes_are_limited_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "HANDSHAKES_PER_TURN", 2)
    loop = Loop()
    for _ in range(3):
        loop.turn()
        assert [loop.may_handshake() for _ in range(4)] == [True, True, False, False]
    loop.close()


async def test_many_handshakes_at_once(xor_harness: ServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "HANDSHAKES_PER_TURN", 1)
    clients = [await xor_harness.connect() for _ in range(30)]
    await xor_harness.node.until(lambda: len(xor_harness.server.connections) == len(clients))
    turns: list[float] = []
    handshake = XorTransportLayer.handshake

    def counted(layer: XorTransportLayer) -> int:
        turns.append(xor_harness.loop.turn_began)
        return handshake(layer)

    monkeypatch.setattr(XorTransportLayer, "handshake", counted)
    for client in clients:
        await client.stream.send_all(HELLO)
    for client in clients:
        encoded = Client(cast("trio.SocketStream", XorStream(client.stream)))
        assert await encoded.request(b"ehello") == b"hello"
    assert len(turns) >= len(clients)
    assert len(set(turns)) == len(turns)


async def test_pipelined_requests(xor_harness: ServerHarness) -> None:
    client = await connect(xor_harness)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *(b"e%d" % index for index in range(20_000)))
        for index in range(20_000):
            assert await client.receive() == b"%d" % index


@pytest.mark.parametrize("size", [100_000, 3_000_000])
async def test_large_frames_between_small_ones(xor_harness: ServerHarness, size: int) -> None:
    client = await connect(xor_harness)
    payload = random.Random(3).randbytes(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"ebefore", b"e" + payload, b"eafter")
        assert await client.receive() == b"before"
        assert await client.receive() == payload
        assert await client.receive() == b"after"


async def test_backpressure_with_bytes_left_in_the_transport_layer(xor_harness: ServerHarness) -> None:
    node = xor_harness.node
    client = await connect(xor_harness)
    padding = "x" * 100
    names = [f"{index}{padding}" for index in range(MAX_PENDING_REQUESTS + 400)]
    await client.send(*(f"p{name}".encode() for name in names))
    await node.until(lambda: bool(xor_harness.server.connections))
    (connection,) = xor_harness.server.connections.values()
    await node.until(lambda: connection.is_paused)
    was_left = False
    turns = node.turns
    for name in names:
        await node.until(lambda name=name: name in node.delayed)  # type: ignore[misc]
        was_left |= connection.is_paused and connection.transport.has_more
        node.complete(name)
        xor_harness.loop.wake()
        assert await client.receive() == name.encode()
    assert was_left
    assert node.turns - turns < 20 * len(names), "a paused connection keeps the loop busy"


async def test_slow_reader_gets_buffers_and_regions_in_order(
    xor_harness: ServerHarness, tmp_path: Path
) -> None:
    content = random.Random(5).randbytes(3 << 20)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    disk = RealDisk()
    spans = [(0, 10), (7, 3 << 20), (100, 70_000)]
    xor_harness.node.regions = [
        FileRegion(disk.open(str(path)), position, min(size, len(content) - position))
        for position, size in spans
    ]
    client = await connect(xor_harness)
    await client.send(b"z2000000", *(b"f%d" % index for index in range(len(spans))), b"eend")
    await xor_harness.node.until(lambda: len(xor_harness.node.frames) > 0)
    await trio.sleep(0.1)  # the socket is full
    assert await client.receive() == bytes(2_000_000)
    for position, size in spans:
        assert await client.receive() == b"head" + content[position : position + size] + b"tail"
    assert await client.receive() == b"end"


# --- real nodes


@pytest.fixture
def xor_listeners(monkeypatch: pytest.MonkeyPatch) -> list[PeerAddress | None]:
    """Use the second transport layer for the listeners XOR and CONTROLLER. Yield the peers of connections."""
    peers: list[PeerAddress | None] = []

    def choose(sock: Socket, listener: str, to: PeerAddress | None) -> Any:
        if listener not in ("XOR", "CONTROLLER"):
            return PlaintextTransportLayer(sock)
        peers.append(to)
        return XorTransportLayer(sock)

    monkeypatch.setitem(TRANSPORT_LAYERS, "PLAINTEXT", choose)
    return peers


class RequestClient:
    """A client that sends one request after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def request(self, version: int, request: Message) -> Any:
        await self._client.send(encode_request(request, version, 1, "me")[4:])
        response_class = API_VERSIONS[request.API_KEY].response_class
        return decode_response(response_class, version, await self._client.receive())[1]


async def exchange(client: RequestClient, batch: bytes) -> None:
    """Create a topic, produce a batch twice, and fetch both batches."""
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    created = await client.request(5, CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert created.topics[0].error_code == 0
    for base_offset in range(2):
        data = [PartitionProduceData(index=0, records=memoryview(batch))]
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=data)]
        )
        while True:
            response = (await client.request(9, request)).responses[0].partition_responses[0]
            if response.error_code == 0:
                break
            await trio.sleep(0.01)
        assert response.base_offset == base_offset
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=32 << 20)
    fetched = await client.request(
        12,
        FetchRequest(max_bytes=32 << 20, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]),
    )
    found = bytes(fetched.responses[0].partitions[0].records)
    assert len(found) == 2 * len(batch)
    assert found.count(batch[61:]) == 2


async def test_real_broker_with_a_listener_of_each_transport_layer(
    tmp_path: Path, xor_listeners: list[PeerAddress | None]
) -> None:
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:0,XOR://{HOST}:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,XOR:PLAINTEXT",
        "log.dirs": str(tmp_path),
        "message.max.bytes": "20000000",
    }
    batch = bytes(build([(1_700_000_000_000, None, random.Random(1).randbytes(5 << 20), [])]))
    with trio.fail_after(60):
        async with serve(load(None, {}, settings)) as node:
            ports = {listener.name: listener.port for listener in node.server.listeners}
            stream = await trio.open_tcp_stream(HOST, ports["XOR"])
            await stream.send_all(HELLO)
            await exchange(RequestClient(Client(cast("trio.SocketStream", XorStream(stream)))), batch)
            plain = await trio.open_tcp_stream(HOST, ports["PLAINTEXT"])
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=32 << 20)
            request = FetchRequest(
                max_bytes=32 << 20, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]
            )
            fetched = await RequestClient(Client(plain)).request(12, request)
            assert len(fetched.responses[0].partitions[0].records) == 2 * len(batch)
            await stream.aclose()
            await plain.aclose()
    assert xor_listeners == [None]


async def test_connection_between_two_nodes(tmp_path: Path, xor_listeners: list[PeerAddress | None]) -> None:
    controller = node_config(
        tmp_path, f"{HOST}:1", process_roles="controller", node_id="1", listeners=f"CONTROLLER://{HOST}:0"
    )
    with trio.fail_after(60):
        async with serve(controller) as first, serve(broker_config(tmp_path, first.bootstrap)) as second:
            assert second.node.lifecycle.stage is LifecycleStage.UNFENCED
            host, _, port = second.bootstrap.rpartition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            batch = bytes(build([(1_700_000_000_000, None, b"x" * 500_000, [])]))
            await exchange(RequestClient(Client(stream)), batch)
            await stream.aclose()
            port_of_controller = int(first.bootstrap.rpartition(":")[2])
    assert None in xor_listeners
    assert {to.port for to in xor_listeners if to is not None} >= {port_of_controller}
