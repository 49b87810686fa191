"""Connections to other nodes over TCP, nonblocking, on the poller of the loop.

Connections to nodes receive and send like connections of clients (`receiver`, `send_queue`), but with a
separate scratch buffer. There is no backpressure, because this node has requested all data that it receives.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import Channel
from kwire.broker.net.handshake_error import HandshakeError
from kwire.broker.net.receiver import SCRATCH_BYTES, Receiver
from kwire.broker.net.send_queue import Sent
from kwire.broker.net.socket_settings import SYSTEM_DEFAULT, configure
from kwire.broker.net.workers import Workers
from kwire.host.peer_log_limit import PeerLogLimit
from kwire.host.platform.events import WRITABLE
from kwire.host.system_socket import Socket, getaddrinfo
from kwire.wire.primitives import Buffer

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.peer_link import TransportEvents
    from kwire.broker.net.socket_settings import SocketSettings
    from kwire.host.host import PeerAddress

FULL_BUFFER_BYTES = 16 << 20
"""Responses up to this size get a buffer of their full size at once. Default fetch responses are smaller."""

SocketAddress = tuple[int, tuple[str | int, ...] | tuple[int, bytes]]
OnResolved = Callable[[list[SocketAddress] | BaseException], None]


class PeerConnections:
    """The connections that this node has opened to other nodes, and the state that they share."""

    def __init__(self, loop: Loop, settings: SocketSettings) -> None:
        self.loop = loop
        self.frame_handler = self
        self.settings = settings
        self.logger = loop.logger("kwire.net")
        self.open: dict[int, PeerConnection] = {}
        self._lookups: dict[PeerAddress, list[OnResolved]] = {}
        """The callbacks that wait for the lookup of each host. The first host is being looked up."""
        self.connection_class = PeerConnection
        """The class of open connections."""
        self.unresponsive: dict[PeerAddress, SocketAddress] = {}
        """For hosts with several addresses: the last address that did not respond to a connection attempt."""
        self._resolver = Workers(1, self._deliver, retry=loop.retry_soon)
        self._lock = threading.Lock()
        self._closed = False
        self.ids = count(1)
        self.log_limit = PeerLogLimit()

    def dial(self, to: PeerAddress, events: TransportEvents, listener: str) -> OutgoingConnection:
        """Start to open a connection, as `peer_link.Dial` specifies."""
        return OutgoingConnection(self, to, events, listener)

    @cached_property
    def scratch(self) -> memoryview:
        return memoryview(bytearray(SCRATCH_BYTES))

    def resolve(self, to: PeerAddress, done: OnResolved) -> None:
        """Look up a host, and pass its addresses or the error to `done`.

        A thread looks up one host at a time. Shutdown does not wait for a lookup.
        """
        waiting = self._lookups.get(to)
        if waiting is not None:
            waiting.append(done)
            return
        self._lookups[to] = [done]
        if len(self._lookups) == 1:
            self._resolve_next()

    def _resolve_next(self) -> None:
        to = next(iter(self._lookups))

        def resolved(found: list[SocketAddress] | BaseException) -> None:
            self._resolver.in_progress -= 1
            waiting = self._lookups.pop(to)
            if self._lookups:
                self._resolve_next()
            for done in waiting:
                done(found)

        self._resolver.run(lambda: _addresses(to), resolved)

    def _deliver(self, done: OnResolved, found: list[SocketAddress] | BaseException) -> None:
        """Pass a lookup result from the resolver thread to the loop, unless `close` was called."""
        with self._lock:
            if not self._closed:
                self.loop.call_from_thread(lambda: done(found))

    def close(self) -> None:
        """Stop looking up hosts; no further `done` is called. Call this before the loop is closed."""
        with self._lock:
            self._closed = True
        self._resolver.close()

    # --- FrameHandler

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        self.open[channel.id].events.received(frame)

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        return False


class OutgoingConnection:
    """A connection that is being opened: its host is looked up, then each address is tried."""

    def __init__(
        self, connections: PeerConnections, to: PeerAddress, events: TransportEvents, listener: str
    ) -> None:
        self._connections = connections
        self._to = to
        self._events = events
        self._listener = listener
        self._addresses: deque[SocketAddress] = deque()
        self._current_address: SocketAddress | None = None
        self._connecting: Socket | None = None
        self._connection: PeerConnection | None = None
        self._closed = False
        connections.loop.call_soon(self._resolve)

    @property
    def connection(self) -> PeerConnection:
        """The open connection, after the event `opened`."""
        assert self._connection is not None, "a frame before the connection is open"
        return self._connection

    def send(self, frame: bytes) -> None:
        self.connection.send(frame)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.release()
        self._close_socket()

    # --- lookup

    def _resolve(self) -> None:
        if self._closed:
            return
        try:
            self._addresses_found(_addresses(self._to, socket.AI_NUMERICHOST))
        except OSError:
            # The host is a name, not an address.
            self._connections.resolve(self._to, self._resolved)

    def _resolved(self, found: list[SocketAddress] | BaseException) -> None:
        if self._closed:
            return
        if isinstance(found, BaseException):
            reason = found.strerror if isinstance(found, OSError) else str(found)
            self._fail(f"cannot resolve host: {reason}")
        else:
            self._addresses_found(found)

    def _addresses_found(self, addresses: list[SocketAddress]) -> None:
        self._addresses.extend(addresses)
        unresponsive = self._connections.unresponsive.pop(self._to, None)
        if unresponsive in addresses:
            # As in Kafka's client, continue with the address after the one that did not respond.
            self._addresses.rotate(-1 - addresses.index(unresponsive))
        self._try_next()

    # --- connecting

    def _try_next(self) -> None:
        family, address = self._current_address = self._addresses.popleft()
        try:
            self._connecting = sock = self._socket(family)
            error = sock.connect_ex(address)
        except OSError as failure:
            error = failure.errno or errno.EIO
        if error in (0, errno.EINPROGRESS):
            self._connections.loop.watch(sock.fileno(), WRITABLE, self._connect_finished)
        else:
            self._connect_failed(error)

    def _socket(self, family: int) -> Socket:
        settings = self._connections.settings
        try:
            sock = Socket(family, socket.SOCK_STREAM)
        except OSError:
            if not self._connections.loop.give_back_descriptors():
                raise
            sock = Socket(family, socket.SOCK_STREAM)
        configure(sock, settings.send_buffer_bytes)
        if settings.receive_buffer_bytes != SYSTEM_DEFAULT:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        return sock

    def _connect_finished(self, mask: int) -> None:
        sock = self._connecting
        assert sock is not None
        self._connections.loop.unwatch(sock.fileno())
        try:
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not error and sock.getsockname() == sock.getpeername():
                # The kernel chose the peer's unused port as the local port, so the socket is its own peer.
                error = errno.ECONNREFUSED
            if not error:
                self._connection = self._connections.connection_class(
                    self._connections, sock, self._to, self._events, self._listener
                )
        except OSError as failure:
            error = failure.errno or errno.EIO  # the connection was reset already
        if self._connection is None:
            self._connect_failed(error)
            return
        self._connecting = None
        if self._connection.is_established:
            self._events.opened()

    def _connect_failed(self, error: int) -> None:
        """Try the next address. If none is left, report the failure."""
        if self._connecting is not None:
            self._connecting.close()
            self._connecting = None
        if self._addresses:
            self._try_next()
        elif error == errno.ECONNREFUSED:
            self._fail("connection refused")
        else:
            self._fail(f"connect failed: {os.strerror(error)}")

    def _fail(self, reason: str) -> None:
        self._closed = True
        self._events.closed(reason)

    def _close_socket(self) -> None:
        sock, self._connecting = self._connecting, None
        if sock is not None:
            if self._addresses and self._current_address is not None:
                self._connections.unresponsive[self._to] = self._current_address
            self._connections.loop.unwatch(sock.fileno())
            sock.close()


class PeerConnection(Receiver):
    """An open connection to another node. It passes received frames to `events`."""

    __slots__ = ("_connections", "_is_dirty", "events", "to")

    def __init__(
        self,
        connections: PeerConnections,
        sock: Socket,
        to: PeerAddress,
        events: TransportEvents,
        listener: str,
    ) -> None:
        channel = Channel(
            next(connections.ids),
            peer_host=to.host,
            listener="",
            on_ready=lambda channel: None,
            logger=connections.logger,
        )
        transport = connections.settings.new_transport_layer(sock, listener, to)
        super().__init__(connections, sock.fileno(), transport, channel)
        self._connections = connections
        self.to = to
        self.events = events
        self._is_dirty = False
        self._begin()
        connections.open[channel.id] = self

    def __str__(self) -> str:
        return f"to {self.to}"

    def send(self, frame: bytes) -> None:
        """Queue a frame that includes its size prefix. It is sent in this turn or the next one."""
        self.queue.extend([frame], len(frame))
        self.mark_dirty()

    def mark_dirty(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._connections.loop.call_soon(self._process)

    def established(self) -> None:
        self.events.opened()

    def handshake_failed(self, error: OSError) -> None:
        if isinstance(error, HandshakeError):
            self._log_failure(error)
        super().handshake_failed(error)

    def receiving_failed(self, error: OSError) -> None:
        # In TLS 1.3, a server rejects the certificate of a client when the client's handshake is complete.
        if error.errno == errno.EPROTO:
            self._log_failure(error)
        super().receiving_failed(error)

    def _log_failure(self, error: OSError) -> None:
        connections = self._connections
        if connections.log_limit.should_log(str(self.to), "", "TLS", connections.loop.monotonic_ms()):
            connections.logger.error(
                "Connection to %s failed: TLS: %s. Further such failures are not logged for a minute",
                *(self.to, error.strerror),
            )

    def close(self, reason: str) -> None:
        if not self.closed:
            self.release()
            self.events.closed(reason)

    def refuse(self, reason: str) -> None:
        self._connections.logger.warning("Closing connection to %s: %s", self.to, reason)
        self.close(f"protocol error: {reason}")

    def release(self) -> None:
        """Close the socket and free the buffers, without an event."""
        if self.closed:
            return
        super().release()
        del self._connections.open[self.channel.id]

    def _is_full(self) -> bool:
        # With backpressure, two nodes could stop receiving from each other and wait forever.
        return False

    def _grow(self, received: Buffer) -> bytearray:
        # Allocate the full size at once: the response will arrive, and growing a buffer copies its data.
        if self._needed_bytes > FULL_BUFFER_BYTES:
            return super()._grow(received)
        grown = bytearray(self._needed_bytes)
        grown[: len(received)] = received
        return grown

    def _process(self) -> None:
        """Handle the frames that had to wait, then send the queued data."""
        self._is_dirty = False
        if (self._waiting is not None or self.transport.has_more) and not self._is_full():
            self.resume()
        if self.closed:
            return
        if self._refusal is not None:
            self.refuse(self._refusal)
            return
        if self.queue and not self._blocked:
            try:
                sent = self.queue.send()
            except OSError as error:
                self.close(f"sending failed: {error.strerror}")
                return
            if sent is Sent.BLOCKED:
                self._blocked = True
            elif sent is Sent.TURN_OVER:
                self.mark_dirty()
        self._watch()


def _addresses(to: PeerAddress, flags: int = 0) -> list[SocketAddress]:
    """Return the addresses of a host, in the order in which to try them. Raises OSError if there is none.

    `flags` are the flags of getaddrinfo.
    """
    try:
        found = getaddrinfo(to.host, to.port, 0, socket.SOCK_STREAM, 0, flags)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "not a host name") from error
    return [(family, address) for family, _, _, _, address in found]
