"""A connection with TLS that stalls, goes on or ends at each byte of its handshake and its first request.

The tests run the turns of the event loop themselves, so that they find out when the server waits.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING

import pytest

from kwire.broker.net.listeners import bind
from kwire.broker.net.loop import Loop
from kwire.broker.net.socket_server import SocketServer
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.host.clock import ManualClock
from kwire.host.host import PeerAddress
from kwire.host.system_socket import Socket
from tests.broker.net.conftest import FakeNode
from tests.broker.net.test_tls_transport_layer import VERSIONS, client_context, server_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_TURNS = 100
"""The most turns that a few bytes may cause."""
STALL_BYTES = 25
"""The bytes between two stalls of the same connection. Connections begin with 0 to 24 bytes."""


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


class Server:
    """A server whose loop runs only when a test calls it."""

    def __init__(self, context: ssl.SSLContext) -> None:
        scratch = memoryview(bytearray(WINDOW_BYTES))

        def new(sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
            return TlsTransportLayer(sock, context, scratch, is_server=True)

        settings = SocketSettings(new_transport_layer=new)
        self.loop = Loop(ManualClock())
        self.node = FakeNode()
        self.server = SocketServer(self.loop, self.node, settings)
        self.server.listen(bind("SSL", "127.0.0.1", 0, settings))
        self.port = self.server.listeners[0].port
        self.clients: list[socket.socket] = []

    def settle(self) -> None:
        """Run turns until the server waits for the client."""
        for _ in range(MAX_TURNS):
            if not self.loop.turn() and not self.loop.served:
                return
        raise AssertionError("the loop turns without work")

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            self.loop.turn(0.01)

    def close(self) -> None:
        for sock in self.clients:
            sock.close()
        self.server.kill()
        self.loop.close()


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(server_context(request.param))
    yield server
    server.close()


CLIENT = client_context()


class TlsClient:
    """OpenSSL's client in memory, whose encrypted bytes a test sends as it likes."""

    def __init__(self, server: Server, requests: bytes) -> None:
        self._server = server
        self._requests = requests
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = CLIENT.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self.sock = socket.create_connection(("127.0.0.1", server.port))
        server.clients.append(self.sock)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def next_bytes(self) -> bytes:
        """Return the bytes that follow: of the handshake, and all requests in one record behind it.

        With TLS 1.3, the requests are in the same segment as the client's Finished.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            if self._requests:
                self._tls.write(self._requests)
                self._requests = b""
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        if data:
            self.sock.sendall(data)
        self._server.settle()

    def receive(self) -> None:
        """Take what the server has sent."""
        try:
            self._incoming.write(self.sock.recv(1 << 16))
        except BlockingIOError:
            pass

    def responses(self, size_bytes: int) -> bytes:
        found = bytearray()

        def is_complete() -> bool:
            self.receive()
            try:
                while len(found) < size_bytes:
                    found.extend(self._tls.read(size_bytes - len(found)))
            except ssl.SSLWantReadError:
                pass
            return len(found) == size_bytes

        self._server.until(is_complete)
        return bytes(found)


REQUEST, RESPONSE = framed(b"ehello"), framed(b"hello")


def converse(client: TlsClient, send: Callable[[bytes], bool]) -> None:
    """Pass all bytes of the client to `send`, until the last one or until `send` returns False."""
    end = time.monotonic() + 10
    while True:
        client.receive()
        data = client.next_bytes()
        if data and not send(data):
            return
        if not client._requests:
            return
        assert time.monotonic() < end


def size_of_conversation(server: Server) -> int:
    """Return the number of bytes that a client sends up to the end of its first request."""
    sizes: list[int] = []
    client = TlsClient(server, REQUEST)

    def send(data: bytes) -> bool:
        sizes.append(len(data))
        client.send(data)
        return True

    converse(client, send)
    assert client.responses(len(RESPONSE)) == RESPONSE
    client.sock.close()
    server.until(lambda: not server.server.connections)
    server.node.frames.clear()
    return sum(sizes)


def converse_with_cuts(client: TlsClient, cuts: range, at_cut: Callable[[], bool]) -> None:
    """Call `at_cut` whenever the client has sent a number of bytes in `cuts`; end if it returns False."""
    position = 0

    def send(data: bytes) -> bool:
        nonlocal position
        first = 0
        for index in range(len(data)):
            if position + index in cuts:
                client.send(data[first:index])
                first = index
                if not at_cut():
                    return False
        client.send(data[first:])
        position += len(data)
        return True

    converse(client, send)


def test_connection_may_stall_at_each_byte(server: Server) -> None:
    """Half of a message is no reason to do anything: neither to close the connection nor to keep turning."""
    size_bytes = size_of_conversation(server)
    for offset in range(STALL_BYTES):
        client = TlsClient(server, REQUEST)

        def stall() -> bool:
            server.settle()
            assert len(server.server.connections) == 1
            assert not server.node.frames
            return True

        converse_with_cuts(client, range(offset, size_bytes, STALL_BYTES), stall)
        assert client.responses(len(RESPONSE)) == RESPONSE
        client.sock.close()
        server.until(lambda: not server.server.connections)
        server.node.frames.clear()


def test_connection_may_end_at_each_byte(server: Server) -> None:
    """The server frees the connection, and does not handle half of a request.

    The client closes every second connection, and resets the others.
    """
    size_bytes = size_of_conversation(server)
    closed = len(server.node.closed)
    for cut in range(size_bytes):
        client = TlsClient(server, REQUEST)

        def end(client: TlsClient = client, is_reset: bool = cut % 2 == 1) -> bool:
            if is_reset:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            return False

        converse_with_cuts(client, range(cut, cut + 1), end)
        server.until(lambda: not server.server.connections and not server.server._lingering)
    assert not server.node.frames
    assert len(server.node.closed) == closed + size_bytes
    size_of_conversation(server)


def test_each_byte_may_arrive_alone(server: Server) -> None:
    """Java's clients had trouble with this (KAFKA-16305)."""
    client = TlsClient(server, framed(b"ehello"))

    def send(data: bytes) -> bool:
        for byte in data:
            client.send(bytes([byte]))
        return True

    converse(client, send)
    assert client.responses(len(RESPONSE)) == RESPONSE


def test_ten_requests_in_one_record_behind_the_handshake(server: Server) -> None:
    """No further event comes for them (KAFKA-2801)."""
    requests = [b"%d" % number * 100 for number in range(10)]
    expected = framed(*requests)
    client = TlsClient(server, framed(*(b"e" + request for request in requests)))

    def send(data: bytes) -> bool:
        client.send(data)
        return True

    converse(client, send)
    assert client.responses(len(expected)) == expected
