"""Connections that a listener has accepted, with nonblocking reads and writes and bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from kwire.broker.api.request.context import Channel, size_of
from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.net.receiver import ConnectionOwner, Receiver, ServedNode
from kwire.broker.net.send_queue import ALL_SENT, RegionTruncated, Sent
from kwire.broker.net.unexpected_protocols import unexpected_protocol
from kwire.host.loggers import NodeLogger
from kwire.host.system_socket import Socket

if TYPE_CHECKING:
    from kwire.broker.net.listeners import Listener
    from kwire.broker.net.send_queue import Piece
    from kwire.broker.net.unexpected_protocols import UnexpectedProtocol
    from kwire.host.host import Timer


class ConnectionServer(ConnectionOwner, Protocol):
    """The part of `SocketServer` that a connection uses."""

    @property
    def node(self) -> ServedNode: ...
    @property
    def draining(self) -> bool: ...
    @property
    def requests_logger(self) -> NodeLogger: ...
    @property
    def request_metrics(self) -> RequestMetrics: ...
    def mark_dirty(self, connection: Connection) -> None: ...
    def close(self, connection: Connection, reason: str) -> None: ...
    def refuse(self, connection: Connection, reason: str) -> None: ...
    def handshake_failed(self, connection: Connection, error: OSError) -> None: ...
    def log_unexpected_protocol(self, connection: Connection, protocol: UnexpectedProtocol) -> None: ...


class Connection(Receiver):
    """An accepted connection: its socket, its channel, and the state of receiving and sending."""

    __slots__ = ("_reading_ahead", "_server", "_sock", "dirty", "idle_timer", "listener", "peer")

    def __init__(
        self,
        server: ConnectionServer,
        sock: Socket,
        channel_id: int,
        listener: Listener,
        peer: tuple[str, int],
    ) -> None:
        channel = Channel(
            channel_id,
            peer_host=peer[0],
            peer_port=peer[1],
            local_host=sock.getsockname()[0],
            listener=listener.name,
            on_ready=self._reply_ready,
            on_throttled=self._throttle,
            logger=server.requests_logger,
            role=listener.role,
            request_metrics=server.request_metrics,
        )
        transport = server.settings.new_transport_layer(sock, listener.name, None)
        super().__init__(server, sock.fileno(), transport, channel)
        server.node.channel_opened(channel)
        self._server = server
        self._sock = sock
        self.listener = listener.name
        self.peer = peer
        self.dirty = False
        """Whether the server will process this connection at the end of the turn."""
        self.idle_timer: Timer | None = None
        self._reading_ahead = False  # whether a worker thread is reading the next window from the disk
        self._begin()

    def __str__(self) -> str:
        return f"from {self.peer[0]}:{self.peer[1]} (listener {self.listener})"

    def close(self, reason: str) -> None:
        self._server.close(self, reason)

    def refuse(self, reason: str) -> None:
        self._server.refuse(self, reason)

    def handshake_failed(self, error: OSError) -> None:
        self._server.handshake_failed(self, error)

    def log_unexpected_protocol(self, frame_size: int) -> bool:
        protocol = unexpected_protocol(frame_size)
        if protocol is None or self.channel.slots or self.queue:
            return False
        self._server.log_unexpected_protocol(self, protocol)
        return True

    def mark_dirty(self) -> None:
        self._server.mark_dirty(self)

    def established(self) -> None:
        if self.channel.authentication is None:
            try:
                self.channel.principal = self.transport.peer_principal()
            except OSError as error:
                self.handshake_failed(error)

    # --- end of the turn

    def _reply_ready(self, channel: Channel) -> None:
        self._server.mark_dirty(self)

    def finish_turn(self) -> bool:
        """Send completed responses. Pause, resume or close the connection if necessary.

        Return whether the connection has more to do in the next turn.
        """
        channel = self.channel
        queue = self.queue
        slots = channel.slots
        if slots and slots[0].completed:
            queued_bytes = channel.queued_bytes
            pieces = channel.take_ready()
            size_bytes = queued_bytes - channel.queued_bytes
            if channel.closing:
                # The channel has dropped the responses after the one that closes the connection.
                size_bytes = sum(map(size_of, pieces))
            queue.extend(cast("list[Piece]", pieces), size_bytes)
        more = False
        if queue and not self._blocked and not self._reading_ahead:
            try:
                sent = queue.send()
            except RegionTruncated as error:
                self.close(f"cannot send a response: {error}")
                return False
            except OSError as error:
                self.close(f"sending failed: {error.strerror}")
                return False
            self.last_active_ms = self._server.loop.turn_ms
            if sent is not ALL_SENT:
                self._blocked = sent is Sent.BLOCKED
                more = sent is Sent.TURN_OVER
                if sent is Sent.COLD:
                    self._read_ahead()
        if channel.closing and not queue:
            self.close("the last response was sent")
            return False
        if self._refusal is not None:
            if not queue and not channel.slots:
                self.refuse(self._refusal)
                return False
            self._watch()
            return more
        if self._waiting is not None:
            if self._is_full() or self._must_wait(self._waiting):
                self._paused = True
            else:
                more = True
        elif self._paused and not self._server.draining and not self._is_full():
            self._paused = False
        self._watch()
        return more or (self.transport.has_more and not self._paused)

    def _read_ahead(self) -> None:
        work, end = self.queue.cold_window()
        self._reading_ahead = True

        def done(result: BaseException | None) -> None:
            self._reading_ahead = False
            if self.closed:
                return
            if result is not None:
                self.close(f"cannot read the data to send: {result}")
                return
            self.queue.warmed(end)
            self.mark_dirty()

        self._server.loop.run_in_worker(work, done)

    def _throttle(self, throttle_ms: int) -> None:
        if not self.closed and not self._server.draining:
            self.channel.mute(self._server.loop, throttle_ms)
            self._pause()

    # --- closing

    def drain(self) -> None:
        """Stop receiving. Send the responses to requests that were received before."""
        self.channel.fetches.unmute()
        self._paused = True
        self._watch()
        self.mark_dirty()

    @property
    def is_drained(self) -> bool:
        return self._waiting is None and not self.channel.slots and not self.queue

    def release_socket(self) -> Socket:
        """Free the buffers without closing the socket, and return it."""
        self._detach()
        return self._sock

    def _detach(self) -> None:
        super()._detach()
        if self.idle_timer is not None:
            self.idle_timer.cancel()
