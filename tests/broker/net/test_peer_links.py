"""Links to other nodes over real sockets: peers that respond, hang, disconnect or send invalid data."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kwire.broker.config import load
from kwire.broker.net.loop import Loop
from kwire.broker.net.peer_connection import PeerConnections
from kwire.broker.net.peer_links import PeerLinks
from kwire.broker.net.serve import serve
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.host.clock import ManualClock
from kwire.host.host import PeerAddress, PeerUnreachable
from kwire.host.system_socket import Socket
from kwire.testing.disk import MemoryDisk
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import build
from kwire.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kwire.wire.registry import decode_request_header, encode_response
from kwire.wire.schema import Message
from tests.broker.net.test_tls_transport_layer import client_context, server_context

HOST = "127.0.0.1"
BACKOFF_MS = 60
"""The reconnect backoff after the first failure."""
GONE = (
    "the peer closed the connection",
    "receiving failed: Connection reset by peer",
    "sending failed: Connection reset by peer",
    "sending failed: Broken pipe",
)
"""The errors that the kernel may report for a disconnected peer."""


class LinkHarness:
    """A loop with links to peers."""

    def __init__(self, settings: SocketSettings) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.connections = PeerConnections(self.loop, settings)
        self.loop.peers = self.links = PeerLinks(
            self.loop, self.connections.dial, max_idle_ms=settings.max_idle_ms
        )

    def send(
        self, port: int, request: Message, *, host: str = HOST, timeout_ms: int = 30_000, **more: Any
    ) -> Callable[[], Awaitable[Any]]:
        """Send a request and return a function that waits for the response."""
        send_answer, receive_answer = trio.open_memory_channel[Any](2)
        self.loop.peers.send(
            PeerAddress(host, port),
            more.pop("purpose", "test"),
            request,
            deadline_ms=self.loop.internode_clock.monotonic_ms() + timeout_ms,
            on_response=send_answer.send_nowait,
            **more,
        )
        return receive_answer.receive

    async def request(self, port: int, request: Message | None = None, **more: Any) -> Any:
        return await self.send(port, request or MetadataRequest(topics=None), **more)()

    async def advance(self, delay_ms: int) -> None:
        """Advance the clock and wait."""
        passed = trio.Event()
        self.loop.advance(delay_ms, passed.set)
        await passed.wait()

    async def failure_of(self, port: int, request: Message | None = None, **more: Any) -> str:
        """Return the reason why a request failed."""
        serve_metadata = await self.request(port, request, **more)
        assert isinstance(serve_metadata, PeerUnreachable), serve_metadata
        return str(serve_metadata).partition(": ")[2]


MakeLinkHarness = Callable[..., LinkHarness]


@pytest.fixture
async def make_harness(nursery: trio.Nursery) -> AsyncIterator[MakeLinkHarness]:
    harnesses: list[LinkHarness] = []

    def make(**settings: Any) -> LinkHarness:
        harness = LinkHarness(SocketSettings(**settings))
        harnesses.append(harness)
        nursery.start_soon(harness.loop.run)
        return harness

    with trio.fail_after(30):
        yield make
        for harness in harnesses:
            harness.links.close()
            harness.loop.stop()
            while harness.loop.running:
                await trio.lowlevel.checkpoint()
            harness.connections.close()
            harness.loop.close()


@pytest.fixture
async def harness(make_harness: MakeLinkHarness) -> LinkHarness:
    return make_harness()


class Peer:
    """The other end of one connection, controlled by a script."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def request(self) -> tuple[int, int, int]:
        """Return API key, version and correlation id of the next request."""
        size = struct.unpack(">i", await self._take(4))[0]
        header, _ = decode_request_header(memoryview(await self._take(size)))
        return header.api_key, header.api_version, header.correlation_id

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            more = await self.stream.receive_some(1 << 16)
            if not more:
                raise trio.ClosedResourceError
            self._received += more
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def respond(self, asked: tuple[int, int, int], response: Message) -> None:
        pieces = encode_response(*asked, response)
        await self.stream.send_all(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]

    async def send_versions(self) -> None:
        served = [
            ApiVersion(api_key=key, min_version=0, max_version=13) for key in (ApiKey.METADATA, ApiKey.FETCH)
        ]
        await self.respond(await self.request(), ApiVersionsResponse(api_keys=served))

    async def is_closed(self) -> bool:
        try:
            return await self.stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


Script = Callable[[Peer], Awaitable[None]]
StartPeer = Callable[..., Awaitable[int]]


@pytest.fixture
async def start_peer(nursery: trio.Nursery) -> AsyncIterator[StartPeer]:
    """Yield a function that starts a server with one script per connection and returns its port."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as peers:

            async def start(*scripts: Script) -> int:
                (listener,) = await trio.open_tcp_listeners(0, host=HOST)
                pending = list(scripts)

                async def serve_one(stream: trio.SocketStream) -> None:
                    try:
                        await pending.pop(0)(Peer(stream))
                    except (trio.ClosedResourceError, trio.BrokenResourceError):
                        pass

                peers.start_soon(partial(trio.serve_listeners, serve_one, [listener]))
                port: int = listener.socket.getsockname()[1]
                return port

            yield start
            scope.cancel()


async def hang(peer: Peer) -> None:
    await trio.sleep_forever()


async def close(peer: Peer) -> None:
    pass


async def reset(peer: Peer) -> None:
    linger = struct.pack("ii", 1, 0)
    peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def serve_metadata(peer: Peer) -> None:
    await peer.send_versions()
    while True:
        await peer.respond(await peer.request(), MetadataResponse())


def after_versions(rest: Script) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send_versions()
        await peer.request()
        await rest(peer)

    return script


def send_bytes(data: bytes, *, then: Script = hang) -> Script:
    async def script(peer: Peer) -> None:
        await peer.stream.send_all(data)
        await then(peer)

    return script


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


async def test_requests_share_one_connection(harness: LinkHarness, start_peer: StartPeer) -> None:
    port = await start_peer(serve_metadata)
    pending = [harness.send(port, MetadataRequest()) for _ in range(100)]
    assert [type(await response()) for response in pending] == [MetadataResponse] * 100
    assert isinstance(await harness.request(port), MetadataResponse)


async def test_host_name_is_resolved(harness: LinkHarness, start_peer: StartPeer) -> None:
    port = await start_peer(serve_metadata, serve_metadata)
    # "localhost" may resolve to ::1 first, which has no listener.
    pending = [harness.send(port, MetadataRequest(), host="localhost", purpose=f"{n}") for n in range(2)]
    assert [type(await response()) for response in pending] == [MetadataResponse] * 2


async def test_unknown_host(harness: LinkHarness) -> None:
    assert (await harness.failure_of(1, host="no.such.host.invalid")).startswith("cannot resolve host: ")
    assert (await harness.failure_of(1, host="a..b")).startswith("cannot resolve host: ")
    assert (await harness.failure_of(1, host="x" * 300)).startswith("cannot resolve host: ")


async def test_connection_refused(harness: LinkHarness) -> None:
    assert await harness.failure_of(unused_port()) == "connection refused"
    assert (await harness.failure_of(9092, host="255.255.255.255")).startswith("connect failed: ")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (close, GONE),
        (reset, GONE),
        (after_versions(close), GONE),
        (after_versions(reset), GONE),
        (after_versions(send_bytes(b"\0\0", then=close)), GONE),
        (after_versions(send_bytes(b"\0\1\0\0" + bytes(70), then=close)), GONE),
        (after_versions(send_bytes(b"\0\x40\0\0" + bytes(900_000), then=close)), GONE),
        (
            send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            ("protocol error: frame size 1213486160",),
        ),
        (send_bytes(b"\xff\xff\xff\xff"), ("protocol error: frame size -1",)),
        (after_versions(send_bytes(b"\0\0\0\0")), ("protocol error: a response of 0 bytes",)),
        (after_versions(send_bytes(b"\0\0\0\4\0\0\0\7")), ("protocol error:",)),
        (after_versions(send_bytes(b"\0\0\0\x40" + b"\xff" * 64)), ("protocol error:",)),
        (after_versions(send_bytes(b"\0\1\0\0" + bytes(0x10000))), ("protocol error:",)),
    ],
)
async def test_disconnect_or_invalid_data_fails_requests_and_reconnects(
    harness: LinkHarness, start_peer: StartPeer, script: Script, why: tuple[str, ...]
) -> None:
    port = await start_peer(script, serve_metadata)
    pending = [harness.send(port, MetadataRequest()) for _ in range(2)]
    for response in pending:
        assert str(await response()).startswith(tuple(f"{HOST}:{port}: {reason}" for reason in why))
    again = harness.send(port, MetadataRequest())
    await harness.advance(BACKOFF_MS)
    assert isinstance(await again(), MetadataResponse)


async def test_hanging_peer_delays_only_its_own_requests(harness: LinkHarness, start_peer: StartPeer) -> None:
    seen = trio.Event()

    async def notes_and_hangs(peer: Peer) -> None:
        seen.set()
        assert await peer.is_closed()

    hanging = await start_peer(after_versions(notes_and_hangs), hang)
    other = await start_peer(serve_metadata)
    pending = harness.send(hanging, MetadataRequest(), timeout_ms=1_000)
    behind = harness.send(hanging, MetadataRequest(), timeout_ms=20_000)
    silent = harness.send(hanging, MetadataRequest(), timeout_ms=1_000, purpose="another")
    await seen.wait()
    assert isinstance(await harness.request(other), MetadataResponse)
    harness.clock.advance(1_000)
    assert str(await pending()).endswith(": request timed out")
    assert str(await behind()).endswith(": request timed out")
    assert str(await silent()).endswith(": ApiVersions timed out")


async def test_connection_that_is_never_accepted_times_out(harness: LinkHarness) -> None:
    with socket.socket() as sock, socket.socket() as filler:
        sock.bind((HOST, 0))
        sock.listen(0)
        port: int = sock.getsockname()[1]
        filler.connect((HOST, port))  # fills the backlog
        pending = [
            harness.send(port, MetadataRequest(), purpose=f"{number}", timeout_ms=60_000)
            for number in range(3)
        ]
        await harness.advance(13_000)
        told = {str(await response()).partition(": ")[2] for response in pending}
        assert told <= {"connection setup timed out", "ApiVersions timed out"}


async def test_next_address_is_tried_after_a_setup_timeout(
    harness: LinkHarness, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as sock, socket.socket() as filler:
        sock.bind((HOST, 0))
        sock.listen(0)
        filler.connect(sock.getsockname())  # fills the backlog, so the next connection is not accepted
        addresses = [sock.getsockname(), (HOST, await start_peer(serve_metadata))]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
        monkeypatch.setattr("kwire.broker.net.peer_connection.getaddrinfo", lambda *_: found)
        silent = harness.send(1, MetadataRequest(), timeout_ms=60_000)
        await harness.advance(13_000)
        assert str(await silent()) == f"{HOST}:1: connection setup timed out"
        again = harness.send(1, MetadataRequest())
        await harness.advance(BACKOFF_MS)
        assert isinstance(await again(), MetadataResponse)


async def test_response_larger_than_the_maximum_is_a_protocol_error(
    make_harness: MakeLinkHarness, start_peer: StartPeer
) -> None:
    harness = make_harness(request_max_bytes=1000)
    port = await start_peer(after_versions(send_bytes(struct.pack(">i", 1001))))
    why = await harness.failure_of(port)
    assert why.startswith("protocol error: frame size 1001 is above the maximum of 1000")


async def test_response_may_arrive_byte_by_byte(harness: LinkHarness, start_peer: StartPeer) -> None:
    async def in_pieces(peer: Peer) -> None:
        await peer.send_versions()
        pieces = encode_response(*await peer.request(), MetadataResponse(cluster_id="x" * 50))
        for byte in b"".join(bytes(piece) for piece in pieces):  # type: ignore[arg-type]
            turned = trio.Event()
            harness.loop.call_soon(turned.set)
            await peer.stream.send_all(bytes([byte]))
            await turned.wait()
        await trio.sleep_forever()

    assert (await harness.request(await start_peer(in_pieces))).cluster_id == "x" * 50


async def test_many_large_requests_to_a_slow_reader(
    make_harness: MakeLinkHarness, start_peer: StartPeer
) -> None:
    harness = make_harness(send_buffer_bytes=4096, receive_buffer_bytes=4096)
    go = trio.Event()

    async def late(peer: Peer) -> None:
        await peer.send_versions()
        await go.wait()
        for _ in range(50):
            await peer.respond(await peer.request(), FetchResponse(session_id=7))
        await trio.sleep_forever()

    port = await start_peer(late)
    topics = [FetchTopic(topic=f"a topic of many {number}") for number in range(3_000)]
    pending = [harness.send(port, FetchRequest(topics=topics), max_version=12) for _ in range(50)]
    go.set()
    assert {(await response()).session_id for response in pending} == {7}


@pytest.mark.parametrize(
    ("trusts", "reason"),
    [
        (False, "the certificate of the peer is not accepted"),
        (True, "the peer requires a certificate (alert certificate_required)"),
    ],
)
async def test_failure_of_tls_is_logged_once_per_minute(
    make_harness: MakeLinkHarness,
    start_peer: StartPeer,
    caplog: pytest.LogCaptureFixture,
    trusts: bool,
    reason: str,
) -> None:
    """With TLS 1.3, the server rejects the client when the client's handshake is complete."""
    context, scratch = client_context(trusts=trusts), memoryview(bytearray(WINDOW_BYTES))
    server = server_context("1.3", wants_certificate=True)

    def new(sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
        return TlsTransportLayer(sock, context, scratch, server_hostname=HOST, is_server=False)

    async def accept(peer: Peer) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = server.wrap_bio(incoming, outgoing, server_side=True)
        while received := await peer.stream.receive_some():
            incoming.write(received)
            with suppress(ssl.SSLError):
                tls.do_handshake()
            await peer.stream.send_all(outgoing.read())

    harness = make_harness(new_transport_layer=new)
    port = await start_peer(accept, accept)
    for _ in range(2):
        assert reason in await harness.failure_of(port)
        await harness.advance(2 * BACKOFF_MS)
    (line,) = caplog.messages
    assert line.startswith(f"Connection to {HOST}:{port} failed: TLS: {reason}")


async def test_idle_connections_are_closed(make_harness: MakeLinkHarness, start_peer: StartPeer) -> None:
    harness = make_harness(max_idle_ms=5_000)
    closed = trio.Event()

    async def note(peer: Peer) -> None:
        await peer.send_versions()
        await peer.respond(await peer.request(), MetadataResponse())
        assert await peer.is_closed()
        closed.set()

    await harness.request(await start_peer(note))
    harness.clock.advance(5_000)
    await closed.wait()


async def test_stopping_node_closes_connections(harness: LinkHarness, start_peer: StartPeer) -> None:
    seen, closed = trio.Event(), trio.Event()

    async def note(peer: Peer) -> None:
        seen.set()
        assert await peer.is_closed()
        closed.set()

    pending = harness.send(await start_peer(after_versions(note)), MetadataRequest())
    await seen.wait()
    unknown = harness.send(1, MetadataRequest(), host="no.such.host.invalid")
    harness.links.close()
    assert str(await pending()).endswith(": this node is stopping")
    assert str(await unknown()).endswith(": this node is stopping")
    await closed.wait()


# --- a real node


def fetch(topic_id: Any, *, max_wait_ms: int = 0, min_bytes: int = 1, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=16 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=16 << 20,
        topics=[FetchTopic(topic="t", topic_id=topic_id, partitions=[partition])],
    )


def records(size: int) -> bytes:
    return bytes(build([(1_700_000_000_000, None, bytes(range(256)) * (size // 256), [])]))


def produce(topic_id: Any, batch: bytes) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=memoryview(batch))]
    topics = [TopicProduceData(name="t", topic_id=topic_id, partition_data=data)]
    return ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics)


async def test_requests_to_a_real_node(harness: LinkHarness, tmp_path: Path) -> None:
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:0",
        "log.dirs": str(tmp_path),
        "message.max.bytes": "20000000",
    }
    async with serve(load(None, {}, settings)) as node:
        port = int(node.bootstrap.rpartition(":")[2])
        versions = await harness.request(
            port, ApiVersionsRequest(client_software_name="me", client_software_version="1")
        )
        assert isinstance(versions, ApiVersionsResponse)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        made = await harness.request(port, CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
        assert isinstance(made, CreateTopicsResponse)
        topic_id = made.topics[0].topic_id
        metadata = await harness.request(port)
        assert isinstance(metadata, MetadataResponse)
        assert (metadata.brokers[0].port, metadata.topics[0].topic_id) == (port, topic_id)
        for number, size in enumerate((1 << 10, 200 << 10, 1 << 20, 9 << 20)):
            sent = records(size)
            produced = await harness.request(port, produce(topic_id, sent))
            assert isinstance(produced, ProduceResponse)
            serve_metadata = await harness.request(port, fetch(topic_id, offset=number))
            assert isinstance(serve_metadata, FetchResponse)
            got = serve_metadata.responses[0].partitions[0].records
            # The records are a view of the received data; only offset and leader epoch differ.
            assert isinstance(got, memoryview)
            assert isinstance(got.obj, bytearray)
            assert len(got.obj) < len(got) + 1_000
            assert got[17:] == sent[17:]
        waits = harness.send(port, fetch(topic_id, max_wait_ms=60_000, offset=4), purpose="fetch-0")
        assert isinstance(await harness.request(port), MetadataResponse)
        assert isinstance(await harness.request(port, produce(topic_id, records(256))), ProduceResponse)
        got = (await waits()).responses[0].partitions[0].records
        assert got[17:] == records(256)[17:]
    disconnected = harness.send(port, MetadataRequest())
    await harness.advance(BACKOFF_MS)
    assert str(await disconnected()).partition(": ")[2] in (*GONE, "connection refused")


async def test_two_nodes_send_requests_to_each_other() -> None:
    settings = {"listeners": f"PLAINTEXT://{HOST}:0", "log.dirs": "/data"}
    with trio.fail_after(20):
        async with (
            serve(load(None, {}, settings), disk=MemoryDisk()) as one,
            serve(load(None, {}, settings), disk=MemoryDisk()) as other,
        ):
            send_answer, receive_answer = trio.open_memory_channel[Any](2)
            for asking, asked in ((one, other), (other, one)):
                port = int(asked.bootstrap.rpartition(":")[2])
                asking.loop.peers.send(
                    PeerAddress(HOST, port),
                    "test",
                    MetadataRequest(topics=None),
                    deadline_ms=asking.loop.internode_clock.monotonic_ms() + 10_000,
                    on_response=send_answer.send_nowait,
                )
                serve_metadata = await receive_answer.receive()
                assert serve_metadata.cluster_id == asked.node.cluster_id
