"""One end of a simulated connection with TLS: the transport layer of real connections on a simulated socket.

The socket divides the encrypted bytes into pieces, each of which is in flight by itself. So the network can
delay and lose them at any byte. OpenSSL's random bytes change the sizes of a few handshake messages. So no
number of pieces, and no number of random choices, depends on a size, and a seed determines all events.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, cast

from kwire.broker.net.send_queue import SendQueue

if TYPE_CHECKING:
    from kwire.broker.net.tls_transport_layer import TlsTransportLayer
    from kwire.broker.security.node_tls import NodeTls
    from kwire.host.host import PeerAddress
    from kwire.host.system_socket import Socket

NewTlsLayer = Callable[["PeerAddress | None", "Socket"], "TlsTransportLayer"]
"""Creates a transport layer. The address is None for a connection that a listener has accepted."""
TlsLayers = Callable[[str], NewTlsLayer | None]
"""Returns what creates the transport layers of a listener; None for a listener without TLS."""
Transmit = Callable[[bytes, Callable[[], None]], None]
"""Sends encrypted bytes to the other end, and makes a call when they arrive."""

MAX_IN_FLIGHT: Final = 2
"""The number of pieces in flight at which the socket is full."""
MAX_PIECES: Final = 3
PREFIX_BYTES: Final = 4
RECEIVE_BYTES: Final = (256 << 10, 1_000, 100)
"""The sizes of receive buffers. If one is full, decrypted bytes wait in the transport layer."""


class SimulatedSocket:
    """The socket of one end."""

    def __init__(
        self, fraction: Callable[[], float], transmit: Transmit, on_room: Callable[[], None]
    ) -> None:
        """`on_room` is called when the socket is no longer full."""
        self.arrived = bytearray()
        self.is_ended = False
        """Whether the other end sends nothing more."""
        self._fraction = fraction
        self._transmit = transmit
        self._on_room = on_room
        self._pieces = 0
        """The number of pieces into which the next bytes are divided."""
        self._in_flight = 0

    def recv_into(self, buffer: memoryview) -> int:
        """Receive bytes that have arrived, as a nonblocking socket does."""
        if not self.arrived and not self.is_ended:
            raise BlockingIOError
        count = min(len(buffer), len(self.arrived))
        buffer[:count] = self.arrived[:count]
        del self.arrived[:count]
        return count

    def send(self, data: memoryview) -> int:
        """Send the next piece, and return its size."""
        if self.is_full:
            raise BlockingIOError
        self._pieces = self._pieces or 1 + int(self._fraction() * MAX_PIECES)
        self._pieces -= 1
        size = len(data)
        if self._pieces:  # leave at least a byte for each of the other pieces
            size = 1 + int(self._fraction() * (size - self._pieces))
        self._in_flight += 1
        self._transmit(bytes(data[:size]), self._has_arrived)
        return size

    @property
    def is_full(self) -> bool:
        """Whether the socket takes no bytes, and `on_room` will be called."""
        return self._in_flight >= MAX_IN_FLIGHT

    def _has_arrived(self) -> None:
        self._in_flight -= 1
        if self._in_flight == MAX_IN_FLIGHT - 1:
            self._on_room()

    def close(self) -> None:
        """Do nothing: the connection sends the end of the stream."""


class TlsEnd:
    """One end of a connection. It does what `kwire.broker.net.receiver` does with events of a real socket."""

    def __init__(
        self,
        fraction: Callable[[], float],
        new_layer: Callable[[Socket], TlsTransportLayer],
        transmit: Transmit,
        *,
        call: Callable[[Callable[[], None]], None],
        received: Callable[[bytes], None],
        lost: Callable[[str], None],
        established: Callable[[], None] = lambda: None,
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        """`call` makes a call in the process of this end, which also makes all other calls of the arguments.

        `received` gets each frame with its size, `sent` is called when no more frames wait, and `lost` gets
        the reason why the connection has to be closed.
        """
        self._socket = SimulatedSocket(fraction, transmit, lambda: call(self._on_writable))
        self._layer = new_layer(cast("Socket", self._socket))
        self._queue = SendQueue(self._layer)
        self._call = call
        self._established = established
        self._received = received
        self._sent = sent
        self._lost = lost
        self._is_established = self._is_closed = False
        self.has_begun = False
        self._end_reason = "the peer closed the connection"
        self._buffer = bytearray(RECEIVE_BYTES[int(fraction() * len(RECEIVE_BYTES))])
        self._frames = bytearray()

    @property
    def is_sending(self) -> bool:
        """Whether frames wait for the handshake or for the socket."""
        return bool(self._queue)

    def begin(self) -> None:
        """Begin the handshake."""
        self.has_begun = True
        self._handshake()

    def send(self, frame: bytes) -> None:
        """Send a frame, after the handshake."""
        self._queue.extend([frame], len(frame))
        if self._is_established:
            self._call(self._on_writable)

    def arrive(self, encrypted: bytes) -> None:
        """Take encrypted bytes of the other end."""
        self._socket.arrived += encrypted
        self._call(self._on_readable)

    def end(self, reason: str) -> None:
        """Take the end of the stream of the other end."""
        self._end_reason = reason
        self._socket.is_ended = True
        self._on_readable()

    def close(self) -> None:
        """Send the end of TLS. Frames that wait are dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._layer.close()

    # --- events

    def _on_readable(self) -> None:
        if self._is_established:
            self._receive()
        elif self.has_begun:
            self._handshake()

    def _on_writable(self) -> None:
        if not self._is_established:
            self._handshake()
        elif not self._is_closed and self._queue:
            try:
                self._queue.send()
            except OSError as error:
                self._lost(f"sending failed: {error.strerror}")
                return
            if not self._queue:
                self._sent()
            elif not self._socket.is_full:
                self._call(self._on_writable)

    def _handshake(self) -> None:
        if self._is_closed:
            return
        try:
            self._is_established = not self._layer.handshake()
        except OSError as error:
            self._lost(f"the handshake failed: {error.strerror}")
            return
        if self._is_established:
            self._established()
            self._on_writable()
        elif self._socket.is_ended:
            self._lost(self._end_reason)
            return
        self._receive_more()

    def _receive(self) -> None:
        if self._is_closed:
            return
        try:
            count = self._layer.receive_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(f"receiving failed: {error.strerror}")
            return
        if not count:
            self._lost(self._end_reason)
            return
        frames = self._frames
        frames += self._buffer[:count]
        while not self._is_closed and len(frames) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(frames[:PREFIX_BYTES], "big")
            if len(frames) < end:
                break
            frame = bytes(frames[:end])
            del frames[:end]
            self._received(frame)
        self._receive_more()

    def _receive_more(self) -> None:
        """Receive again if the transport layer has more bytes, or if the socket has an event for them."""
        if self._is_established and self._layer.has_more:
            self._call(self._receive)
        elif self._socket.arrived or self._socket.is_ended:
            self._call(self._on_readable)


def no_tls(listener: str) -> None:
    """Return None, because no listener has TLS."""


def layers_of_node(node_tls: NodeTls) -> TlsLayers:
    """Return the transport layers of a node's connections, of each listener."""

    @cache
    def of_listener(listener: str) -> NewTlsLayer | None:
        tls = node_tls.of(listener)
        if tls is None:
            return None
        import ssl

        from kwire.broker.net.tls_connections import TlsConnections

        if tls.server is not None:
            # Tickets that contain the session have random sizes.
            tls.server.options |= ssl.OP_NO_TICKET
        connections = TlsConnections(node_tls)
        return lambda to, sock: connections.new_layer(sock, listener, to)

    return of_listener
