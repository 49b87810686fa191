"""TLS of the HTTP port, with the certificates of a listener.

Behind TLS, a connection continues as a socket pair: the broker's pages or the console process serve its other
end as they serve a connection without TLS. So the console process needs no private key, and both use the same
timeouts. Tasks in the broker's process copy the bytes between the socket pair and TLS.

`trio.SSLStream` is not used: after a failed handshake it sends no alert, so that the client cannot report why
its connection failed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final

import trio

from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.tls_transport_layer import WINDOW_BYTES, TlsTransportLayer
from kwire.broker.observe.ports import RunningNode
from kwire.broker.security.listener_tls import ListenerTls
from kwire.host.platform.events import WRITABLE
from kwire.http.connections import SEND_TIMEOUT_SECONDS

HANDSHAKE_SECONDS: Final = 10.0
"""A connection whose handshake takes longer is closed."""
LINGER_SECONDS: Final = 2.0
"""The time after which a socket is closed whose peer has not closed the connection after an alert."""
MAX_LINGERING: Final = 64
"""The number of such sockets. A further one is closed at once."""
MAX_DRAINED_BYTES: Final = 256 << 10
"""The bytes that are received from such a peer and dropped, before the socket is closed nevertheless."""
COPIED_BYTES: Final = 64 << 10
"""The most bytes that a task encrypts or decrypts before other tasks run. They take about 0.1 ms."""


class TlsTermination:
    """The end of TLS for the connections of the HTTP port."""

    def __init__(self, running: RunningNode, listener: str) -> None:
        """Use the certificates of `listener`, which must be a TLS listener of the node."""
        self._running = running
        self._listener = listener
        self._step = trio.Lock()
        self._lingering = 0
        """The number of connections that stay open after their handshake has failed."""

    @cached_property
    def _scratch(self) -> memoryview:
        return memoryview(bytearray(WINDOW_BYTES))

    @property
    def current(self) -> ListenerTls:
        """The certificates for new connections. AlterConfigs can replace them (KIP-226)."""
        certificates = self._running.node.config.tls
        tls = None if certificates is None else certificates.of(self._listener)
        assert isinstance(tls, ListenerTls), "the start has checked that the listener has TLS"
        return tls

    @property
    def requires_certificates(self) -> bool:
        """Whether each client needs a certificate (ssl.client.auth=required)."""
        context = self.current.server
        return context is not None and context.verify_mode is ssl.CERT_REQUIRED

    async def serve(
        self, stream: trio.SocketStream, serve_plain: Callable[[trio.SocketStream], Awaitable[None]]
    ) -> None:
        """Complete the handshake, and serve the decrypted connection with `serve_plain`.

        Takes the socket of `stream`, and closes it. `serve_plain` must close its stream. Raises
        HandshakeError for the log if the handshake fails, and another OSError if the connection is lost.
        """
        context = self.current.server
        assert context is not None, "the node serves the listener"
        sock = socket.socket(fileno=stream.socket.detach())
        layer = None
        try:
            sock.setblocking(False)
            layer = TlsTransportLayer(sock, context, self._scratch, is_server=True)
            try:
                await self._handshake(layer, sock)
            except HandshakeError:
                if self._lingering < MAX_LINGERING:
                    self._lingering += 1
                    try:
                        with trio.CancelScope(shield=True):
                            await _linger(sock)
                    finally:
                        self._lingering -= 1
                raise
            await _pass_on(layer, sock, serve_plain)
        finally:
            (sock if layer is None else layer).close()

    async def _handshake(self, layer: TlsTransportLayer, sock: socket.socket) -> None:
        """Complete the handshake. Raises OSError."""
        with trio.move_on_after(HANDSHAKE_SECONDS):
            while True:
                # A step takes up to a millisecond, and trio runs all tasks that are ready before the event
                # loop gets its turn. The lock limits each turn to one step, also in a storm of handshakes.
                async with self._step:
                    await trio.lowlevel.checkpoint()
                    events = layer.handshake()
                if not events:
                    return
                await (trio.lowlevel.wait_writable if events & WRITABLE else trio.lowlevel.wait_readable)(
                    sock
                )
        raise HandshakeError(f"it takes longer than {HANDSHAKE_SECONDS:.0f} s")


async def _pass_on(
    layer: TlsTransportLayer,
    sock: socket.socket,
    serve_plain: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    ours, theirs = trio.socket.socketpair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_plain, trio.SocketStream(theirs))
        with ours:
            async with trio.open_nursery() as copying:
                copying.start_soon(_copy_requests, layer, sock, ours, copying.cancel_scope)
                await _copy_responses(layer, sock, ours)
                copying.cancel_scope.cancel()


async def _copy_requests(
    layer: TlsTransportLayer,
    sock: socket.socket,
    ours: trio.socket.SocketType,
    both: trio.CancelScope,
) -> None:
    """Copy decrypted bytes until the client ends its side. Cancel `both` directions if the client is lost."""
    buffer = memoryview(bytearray(COPIED_BYTES))
    stream = trio.SocketStream(ours)
    while True:
        try:
            count = layer.receive_into(buffer)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
            continue
        except OSError:
            both.cancel()
            return
        try:
            if not count:
                await stream.send_eof()
                return
            await stream.send_all(buffer[:count])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the response is complete, or the application has ended


async def _copy_responses(
    layer: TlsTransportLayer, sock: socket.socket, ours: trio.socket.SocketType
) -> None:
    """Encrypt and send bytes until the application closes its end or the client stops receiving."""
    while True:
        try:
            data = memoryview(await ours.recv(COPIED_BYTES))
        except OSError:  # a reset: the application has closed its end, and left a part of the request
            return
        if not data:
            return
        with trio.move_on_after(SEND_TIMEOUT_SECONDS) as timeout:
            while data:
                try:
                    data = data[layer.send(data) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)
                except OSError:
                    return
        if timeout.cancelled_caught:
            return


async def _linger(sock: socket.socket) -> None:
    """Wait until the peer has received the alert: closing a socket with unread bytes could drop the alert."""
    drained_bytes = 0
    with trio.move_on_after(LINGER_SECONDS):
        try:
            sock.shutdown(socket.SHUT_WR)
            while drained_bytes < MAX_DRAINED_BYTES:
                await trio.lowlevel.wait_readable(sock)
                count = len(sock.recv(COPIED_BYTES))
                if not count:
                    return
                drained_bytes += count
        except OSError:
            return
