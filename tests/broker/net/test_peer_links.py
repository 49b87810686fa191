"""Other nodes over real sockets: those that answer, and those that hang, lie, refuse and die."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
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
from kwire.host.clock import ManualClock
from kwire.host.host import PeerAddress, PeerUnreachable
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

HOST = "127.0.0.1"
REST_MS = 60
"""As long as a connection rests that was open before, or failed once."""
GONE = (
    "the peer closed the connection",
    "receiving failed: Connection reset by peer",
    "sending failed: Connection reset by peer",
    "sending failed: Broken pipe",
)
"""What is seen of a peer that is gone: the kernel says it in one way or another."""


class Asker:
    """A loop of its own, and the answers that it got."""

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
        """Ask, and have something to wait for the answer with."""
        send_answer, receive_answer = trio.open_memory_channel[Any](2)
        self.loop.peers.send(
            PeerAddress(host, port),
            more.pop("purpose", "test"),
            request,
            deadline_ms=self.loop.monotonic_ms() + timeout_ms,
            on_response=send_answer.send_nowait,
            **more,
        )
        return receive_answer.receive

    async def ask(self, port: int, request: Message | None = None, **more: Any) -> Any:
        return await self.send(port, request or MetadataRequest(topics=None), **more)()

    async def advance(self, delay_ms: int) -> None:
        """Let some time pass."""
        passed = trio.Event()
        self.loop.advance(delay_ms, passed.set)
        await passed.wait()

    async def fails(self, port: int, request: Message | None = None, **more: Any) -> str:
        """Why there is no answer."""
        answer = await self.ask(port, request, **more)
        assert isinstance(answer, PeerUnreachable), answer
        return str(answer).partition(": ")[2]


MakeAsker = Callable[..., Asker]


@pytest.fixture
async def make_asker(nursery: trio.Nursery) -> AsyncIterator[MakeAsker]:
    askers: list[Asker] = []

    def make(**settings: Any) -> Asker:
        asker = Asker(SocketSettings(**settings))
        askers.append(asker)
        nursery.start_soon(asker.loop.run)
        return asker

    with trio.fail_after(30):
        yield make
        for asker in askers:
            asker.links.close()
            asker.loop.stop()
            while asker.loop.running:
                await trio.lowlevel.checkpoint()
            asker.connections.close()
            asker.loop.close()


@pytest.fixture
async def asker(make_asker: MakeAsker) -> Asker:
    return make_asker()


class Peer:
    """The other end of one connection, which does what a test says."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def request(self) -> tuple[int, int, int]:
        """API, version and correlation id of the next request."""
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

    async def answer(self, asked: tuple[int, int, int], response: Message) -> None:
        pieces = encode_response(*asked, response)
        await self.stream.send_all(b"".join(bytes(piece) for piece in pieces))  # type: ignore[arg-type]

    async def tell_versions(self) -> None:
        served = [
            ApiVersion(api_key=key, min_version=0, max_version=13) for key in (ApiKey.METADATA, ApiKey.FETCH)
        ]
        await self.answer(await self.request(), ApiVersionsResponse(api_keys=served))

    async def is_closed(self) -> bool:
        try:
            return await self.stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


Script = Callable[[Peer], Awaitable[None]]
StartPeer = Callable[..., Awaitable[int]]


@pytest.fixture
async def start_peer(nursery: trio.Nursery) -> AsyncIterator[StartPeer]:
    """`await start_peer(script, ...)`: a port whose connections are served by these, in their order."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as peers:

            async def start(*scripts: Script) -> int:
                (listener,) = await trio.open_tcp_listeners(0, host=HOST)
                waiting = list(scripts)

                async def serve_one(stream: trio.SocketStream) -> None:
                    try:
                        await waiting.pop(0)(Peer(stream))
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


async def answer(peer: Peer) -> None:
    await peer.tell_versions()
    while True:
        await peer.answer(await peer.request(), MetadataResponse())


def after_versions(rest: Script) -> Script:
    async def script(peer: Peer) -> None:
        await peer.tell_versions()
        await peer.request()
        await rest(peer)

    return script


def says(data: bytes, *, then: Script = hang) -> Script:
    async def script(peer: Peer) -> None:
        await peer.stream.send_all(data)
        await then(peer)

    return script


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


async def test_it_asks_over_one_connection(asker: Asker, start_peer: StartPeer) -> None:
    port = await start_peer(answer)
    waiting = [asker.send(port, MetadataRequest()) for _ in range(100)]
    assert [type(await answered()) for answered in waiting] == [MetadataResponse] * 100
    assert isinstance(await asker.ask(port), MetadataResponse)


async def test_a_host_is_looked_up(asker: Asker, start_peer: StartPeer) -> None:
    port = await start_peer(answer, answer)
    # ::1 comes first where there is one, and nobody listens there.
    waiting = [asker.send(port, MetadataRequest(), host="localhost", purpose=f"{n}") for n in range(2)]
    assert [type(await answered()) for answered in waiting] == [MetadataResponse] * 2


async def test_hosts_that_nobody_knows(asker: Asker) -> None:
    assert (await asker.fails(1, host="no.such.host.invalid")).startswith("cannot resolve host: ")
    assert (await asker.fails(1, host="a..b")).startswith("cannot resolve host: ")
    assert (await asker.fails(1, host="x" * 300)).startswith("cannot resolve host: ")


async def test_a_port_that_nobody_listens_at_refuses(asker: Asker) -> None:
    assert await asker.fails(unused_port()) == "connection refused"
    assert (await asker.fails(9092, host="255.255.255.255")).startswith("connect failed: ")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (close, GONE),
        (reset, GONE),
        (after_versions(close), GONE),
        (after_versions(reset), GONE),
        (after_versions(says(b"\0\0", then=close)), GONE),
        (after_versions(says(b"\0\1\0\0" + bytes(70), then=close)), GONE),
        (after_versions(says(b"\0\x40\0\0" + bytes(900_000), then=close)), GONE),
        (
            says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            ("protocol error: frame size 1213486160",),
        ),
        (says(b"\xff\xff\xff\xff"), ("protocol error: frame size -1",)),
        (after_versions(says(b"\0\0\0\0")), ("protocol error: a response of 0 bytes",)),
        (after_versions(says(b"\0\0\0\4\0\0\0\7")), ("protocol error:",)),
        (after_versions(says(b"\0\0\0\x40" + b"\xff" * 64)), ("protocol error:",)),
        (after_versions(says(b"\0\1\0\0" + bytes(0x10000))), ("protocol error:",)),
    ],
)
async def test_a_peer_that_goes_away_or_talks_nonsense_is_left(
    asker: Asker, start_peer: StartPeer, script: Script, why: tuple[str, ...]
) -> None:
    port = await start_peer(script, answer)
    waiting = [asker.send(port, MetadataRequest()) for _ in range(2)]
    for answered in waiting:
        assert str(await answered()).startswith(tuple(f"{HOST}:{port}: {reason}" for reason in why))
    again = asker.send(port, MetadataRequest())
    await asker.advance(REST_MS)
    assert isinstance(await again(), MetadataResponse)


async def test_a_peer_that_hangs_holds_up_only_its_own(asker: Asker, start_peer: StartPeer) -> None:
    seen = trio.Event()

    async def notes_and_hangs(peer: Peer) -> None:
        seen.set()
        assert await peer.is_closed()

    hanging = await start_peer(after_versions(notes_and_hangs), hang)
    other = await start_peer(answer)
    waiting = asker.send(hanging, MetadataRequest(), timeout_ms=1_000)
    behind = asker.send(hanging, MetadataRequest(), timeout_ms=20_000)
    silent = asker.send(hanging, MetadataRequest(), timeout_ms=1_000, purpose="another")
    await seen.wait()
    assert isinstance(await asker.ask(other), MetadataResponse)
    asker.clock.advance(1_000)
    assert str(await waiting()).endswith(": request timed out")
    assert str(await behind()).endswith(": request timed out")
    assert str(await silent()).endswith(": ApiVersions timed out")


async def test_a_peer_that_never_accepts_is_not_waited_for(asker: Asker) -> None:
    with socket.socket() as sock, socket.socket() as filler:
        sock.bind((HOST, 0))
        sock.listen(0)
        port: int = sock.getsockname()[1]
        filler.connect((HOST, port))  # which fills the backlog
        waiting = [
            asker.send(port, MetadataRequest(), purpose=f"{number}", timeout_ms=60_000) for number in range(3)
        ]
        await asker.advance(13_000)
        told = {str(await answered()).partition(": ")[2] for answered in waiting}
        assert told <= {"connection setup timed out", "ApiVersions timed out"}


async def test_the_next_address_has_its_chance_after_one_that_says_nothing(
    asker: Asker, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as sock, socket.socket() as filler:
        sock.bind((HOST, 0))
        sock.listen(0)
        filler.connect(sock.getsockname())  # which fills the backlog: whoever comes now is not heard
        addresses = [sock.getsockname(), (HOST, await start_peer(answer))]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *host_and_port, type, flags: found)
        silent = asker.send(1, MetadataRequest(), timeout_ms=60_000)
        await asker.advance(13_000)
        assert str(await silent()) == f"{HOST}:1: connection setup timed out"
        again = asker.send(1, MetadataRequest())
        await asker.advance(REST_MS)
        assert isinstance(await again(), MetadataResponse)


async def test_a_frame_beyond_the_limit_is_not_received(make_asker: MakeAsker, start_peer: StartPeer) -> None:
    asker = make_asker(request_max_bytes=1000)
    port = await start_peer(after_versions(says(struct.pack(">i", 1001))))
    why = await asker.fails(port)
    assert why.startswith("protocol error: frame size 1001 is above the maximum of 1000")


async def test_an_answer_may_arrive_byte_by_byte(asker: Asker, start_peer: StartPeer) -> None:
    async def in_pieces(peer: Peer) -> None:
        await peer.tell_versions()
        pieces = encode_response(*await peer.request(), MetadataResponse(cluster_id="x" * 50))
        for byte in b"".join(bytes(piece) for piece in pieces):  # type: ignore[arg-type]
            turned = trio.Event()
            asker.loop.call_soon(turned.set)
            await peer.stream.send_all(bytes([byte]))
            await turned.wait()
        await trio.sleep_forever()

    assert (await asker.ask(await start_peer(in_pieces))).cluster_id == "x" * 50


async def test_much_is_asked_of_a_peer_that_reads_late(make_asker: MakeAsker, start_peer: StartPeer) -> None:
    asker = make_asker(send_buffer_bytes=4096, receive_buffer_bytes=4096)
    go = trio.Event()

    async def late(peer: Peer) -> None:
        await peer.tell_versions()
        await go.wait()
        for _ in range(50):
            await peer.answer(await peer.request(), FetchResponse(session_id=7))
        await trio.sleep_forever()

    port = await start_peer(late)
    topics = [FetchTopic(topic=f"a topic of many {number}") for number in range(3_000)]
    waiting = [asker.send(port, FetchRequest(topics=topics), max_version=12) for _ in range(50)]
    go.set()
    assert {(await answered()).session_id for answered in waiting} == {7}


async def test_idle_connections_are_closed(make_asker: MakeAsker, start_peer: StartPeer) -> None:
    asker = make_asker(max_idle_ms=5_000)
    closed = trio.Event()

    async def note(peer: Peer) -> None:
        await peer.tell_versions()
        await peer.answer(await peer.request(), MetadataResponse())
        assert await peer.is_closed()
        closed.set()

    await asker.ask(await start_peer(note))
    asker.clock.advance(5_000)
    await closed.wait()


async def test_a_node_that_stops_hangs_up(asker: Asker, start_peer: StartPeer) -> None:
    seen, closed = trio.Event(), trio.Event()

    async def note(peer: Peer) -> None:
        seen.set()
        assert await peer.is_closed()
        closed.set()

    waiting = asker.send(await start_peer(after_versions(note)), MetadataRequest())
    await seen.wait()
    unknown = asker.send(1, MetadataRequest(), host="no.such.host.invalid")
    asker.links.close()
    assert str(await waiting()).endswith(": this node is stopping")
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


async def test_a_node_of_kwire_answers(asker: Asker, tmp_path: Path) -> None:
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:0",
        "log.dirs": str(tmp_path),
        "message.max.bytes": "20000000",
    }
    async with serve(load(None, {}, settings)) as node:
        port = int(node.bootstrap.rpartition(":")[2])
        versions = await asker.ask(
            port, ApiVersionsRequest(client_software_name="me", client_software_version="1")
        )
        assert isinstance(versions, ApiVersionsResponse)
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        made = await asker.ask(port, CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
        assert isinstance(made, CreateTopicsResponse)
        topic_id = made.topics[0].topic_id
        metadata = await asker.ask(port)
        assert isinstance(metadata, MetadataResponse)
        assert (metadata.brokers[0].port, metadata.topics[0].topic_id) == (port, topic_id)
        for number, size in enumerate((1 << 10, 200 << 10, 1 << 20, 9 << 20)):
            sent = records(size)
            produced = await asker.ask(port, produce(topic_id, sent))
            assert isinstance(produced, ProduceResponse)
            answer = await asker.ask(port, fetch(topic_id, offset=number))
            assert isinstance(answer, FetchResponse)
            got = answer.responses[0].partitions[0].records
            # A view of what was received, not a copy of it: as it was sent, but for offset and leader epoch.
            assert isinstance(got, memoryview)
            assert isinstance(got.obj, bytearray)
            assert len(got.obj) < len(got) + 1_000
            assert got[17:] == sent[17:]
        waits = asker.send(port, fetch(topic_id, max_wait_ms=60_000, offset=4), purpose="fetch-0")
        assert isinstance(await asker.ask(port), MetadataResponse)
        assert isinstance(await asker.ask(port, produce(topic_id, records(256))), ProduceResponse)
        got = (await waits()).responses[0].partitions[0].records
        assert got[17:] == records(256)[17:]
    gone = asker.send(port, MetadataRequest())
    await asker.advance(REST_MS)
    assert str(await gone()).partition(": ")[2] in (*GONE, "connection refused")


async def test_two_nodes_ask_each_other() -> None:
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
                    deadline_ms=asking.loop.monotonic_ms() + 10_000,
                    on_response=send_answer.send_nowait,
                )
                answer = await receive_answer.receive()
                assert answer.cluster_id == asked.node.cluster_id
