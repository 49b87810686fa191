"""A fuzzed node behind sockets, with or without TLS, on virtual time.

The test runs the turns of the event loop itself, so that the same frames have the same outcome in each run.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.net.listeners import bind
from kwire.broker.net.loop import Loop
from kwire.broker.net.socket_server import SocketServer
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.host.host import PeerAddress
from kwire.host.system_socket import Socket
from tests.broker.api.frames import (
    BrokenNode,
    FuzzHarness,
    listener_role,
    no_errors_in_the_log,
    with_correlation_ids,
)

MAX_SECONDS = 10
"""The longest time for the exchange of some frames. An exchange takes milliseconds."""


class Verdict(NamedTuple):
    """The responses to the frames of one connection, and whether it was closed."""

    responses: bytes
    is_closed: bool
    """Whether the server has closed the connection."""


class FuzzServer:
    """A node that gets its frames from the connections of a `SocketServer`."""

    def __init__(self, server_context: ssl.SSLContext | None, client_context: ssl.SSLContext | None) -> None:
        """Start the node. Its listeners have TLS if there are contexts."""
        self.harness = FuzzHarness()
        self._client_context = client_context
        settings = SocketSettings()
        if server_context is not None:
            scratch = memoryview(bytearray(WINDOW_BYTES))

            def new_layer(sock: Socket, listener: str, to: PeerAddress | None) -> TlsTransportLayer:
                return TlsTransportLayer(sock, server_context, scratch, is_server=True)

            settings = settings._replace(new_transport_layer=new_layer)
        self.loop = Loop(self.harness.host.clock)
        self.server = SocketServer(self.loop, self, settings)
        for role in ListenerRole:
            # A response with the endpoints of the node depends on the name of the listener.
            self.server.listen(bind("PLAINTEXT", "127.0.0.1", 0, settings, role))
        self._ports = {listener.role: listener.port for listener in self.server.listeners}

    def close(self) -> None:
        self.server.kill()
        self.loop.close()

    def send(self, frames: Sequence[bytes], record_bytes: int, *, advance_ms: int = 0) -> Verdict:
        """Send frames over one connection, let time pass, and close it. Raise if the node misbehaves.

        With TLS, `record_bytes` is the number of bytes per record.
        """
        data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in with_correlation_ids(frames))
        with no_errors_in_the_log():
            client = _Client(self._connect(listener_role(frames[0])))
            for start in range(0, len(data), record_bytes):
                client.send(data[start : start + record_bytes], self._settle)
            self._settle()
            self.harness.host.advance(advance_ms)
            self._settle()
            client.receive()
            client.sock.close()
            self._until(lambda: not self.server.connections)
        return Verdict(bytes(client.received), client.is_closed)

    def _connect(self, role: ListenerRole) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._ports[role]))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._client_context is None:
            return sock
        secured = self._client_context.wrap_socket(
            sock, server_hostname="127.0.0.1", do_handshake_on_connect=False
        )

        def is_complete() -> bool:
            try:
                secured.do_handshake()
            except ssl.SSLWantReadError:
                return False
            return True

        self._until(is_complete)
        return secured

    def _settle(self) -> None:
        """Run turns until the server has nothing to do."""
        self._until(lambda: not self.loop.turn() and not self.loop.served)

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + MAX_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise BrokenNode("the loop turns without an end, or waits for nothing")
            self.loop.turn()

    # --- ServedNode

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        self.harness.node.handle_frame(channel, frame)

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        return self.harness.node.must_wait(channel, frame)

    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        self.harness.node.end_turn(send_responses)
        self.harness.host.run_pending()

    def channel_opened(self, channel: Channel) -> None:
        self.harness.node.channel_opened(channel)

    def channel_closed(self, channel: Channel) -> None:
        self.harness.node.channel_closed(channel)

    def begin_shutdown(self) -> None:
        self.harness.node.begin_shutdown()


class _Client:
    """A client that sends while it receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.is_closed = False

    def send(self, data: bytes, settle: Callable[[], None]) -> None:
        while data and not self.is_closed:
            try:
                data = data[self.sock.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                settle()
            except (ConnectionError, ssl.SSLEOFError):
                self.receive()
                self.is_closed = True
            self.receive()

    def receive(self) -> None:
        """Take what the server has sent."""
        try:
            while True:
                received = self.sock.recv(1 << 16)
                if not received:
                    break
                self.received += received
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except (ConnectionError, ssl.SSLError):
            pass
        self.is_closed = True
