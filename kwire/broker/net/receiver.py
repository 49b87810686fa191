"""The receiving half of a connection: it reads bytes without blocking and passes on request frames.

The memory that one peer can make the node use is bounded.

*Receiving.* A connection receives at most once per turn, up to 256 KiB, into a scratch buffer that all
connections share. No event comes for bytes that the transport layer has already taken off the socket, so the
connection receives these bytes at the end of the next turn. The received bytes are copied once. Frames are
views of that copy; the storage may keep the views and write to them. The start of an incomplete frame waits
in a bytearray. A frame that is larger than the scratch buffer is received into a separate buffer, which grows
fourfold as data arrives, up to the announced size. So a peer that announces a large frame but sends little of
it costs little memory.

*Processing.* Once a turn has taken longer than `TURN_BUDGET_SECONDS`, each connection handles at most one
more frame. Its other frames wait for the next turn, so that a burst of requests does not delay the other
connections any longer.

A frame also waits if the node must first complete earlier requests of the connection.

*Backpressure.* A connection stops receiving while `MAX_PENDING_REQUESTS` requests, or requests with
`MAX_PENDING_BYTES` in total, wait for their responses, or while `MAX_UNSENT_BYTES` of responses are unsent.
It also stops for the throttle time of a client that has exceeded a quota. The kernel's buffers then fill up,
and the peer's sends block.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from kwire.broker.api.request.context import Channel
from kwire.broker.net.send_queue import SendQueue
from kwire.broker.storage.disk import is_shortage
from kwire.host.platform.events import LOST, READABLE, WRITABLE
from kwire.host.system_time import perf_counter
from kwire.wire.errors import WireError
from kwire.wire.primitives import Buffer

if TYPE_CHECKING:
    from kwire.broker.api.request.repeated_request import RepeatedRequest
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.socket_settings import SocketSettings
    from kwire.broker.net.transport_layer import TransportLayer

SCRATCH_BYTES = 256 << 10
FRAME_BUFFER_FROM_BYTES = 64 << 10
"""A frame larger than the scratch buffer gets a separate buffer once this many bytes have arrived."""
FULL_BUFFER_FROM_SHARE = 16
"""A frame gets its full buffer once 1/16 of it has arrived, because each growth of a buffer copies data."""
TURN_BUDGET_SECONDS = 0.002
MAX_PENDING_REQUESTS = 512
MAX_PENDING_BYTES = 8 << 20
MAX_UNSENT_BYTES = 1 << 20

_SIZE = Struct(">i")
_PREFIX_BYTES = 4


class FrameHandler(Protocol):
    """The part of a node that handles received frames, which come without their size prefix."""

    def handle_frame(self, channel: Channel, frame: memoryview) -> None: ...
    def must_wait(self, channel: Channel, frame: memoryview) -> bool: ...


class ServedNode(FrameHandler, Protocol):
    """The part of a node that its socket server uses."""

    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None: ...
    def channel_opened(self, channel: Channel) -> None: ...
    def channel_closed(self, channel: Channel) -> None: ...
    def begin_shutdown(self) -> None: ...


class ConnectionOwner(Protocol):
    """The owner of connections (`SocketServer`, `PeerConnections`), with what its connections share."""

    @property
    def loop(self) -> Loop: ...
    @property
    def frame_handler(self) -> FrameHandler: ...
    @property
    def settings(self) -> SocketSettings: ...
    @property
    def scratch(self) -> memoryview:
        """The receive buffer that all connections share. Each connection copies its data out at once."""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]: ...


class Receiver(ABC):
    """The receiving half of a connection, with the state that receiving and sending share."""

    __slots__ = (
        "_blocked",
        "_filled",
        "_frame_buffer",
        "_needed_bytes",
        "_owner",
        "_partial",
        "_paused",
        "_refusal",
        "_waiting",
        "_waiting_position",
        "_watched",
        "channel",
        "closed",
        "fd",
        "is_established",
        "last_active_ms",
        "queue",
        "transport",
    )

    def __init__(self, owner: ConnectionOwner, fd: int, transport: TransportLayer, channel: Channel) -> None:
        self._owner = owner
        self.fd = fd
        self.transport = transport
        self.channel = channel
        channel.max_frame_bytes = owner.settings.request_max_bytes
        self.queue = SendQueue(transport)
        self.is_established = False
        """Whether the handshake of the transport layer is complete, so that frames can be sent."""
        self.closed = False
        self.last_active_ms = owner.loop.turn_ms
        self._partial: bytearray | None = None  # the start of an incomplete frame
        self._needed_bytes = _PREFIX_BYTES  # the size at which `_partial` or `_frame_buffer` is complete
        self._frame_buffer: bytearray | None = None  # the buffer of a frame larger than the scratch buffer
        self._filled = 0  # the number of bytes of `_frame_buffer` that have arrived
        self._waiting: bytearray | None = None  # complete frames that must wait, from `_waiting_position` on
        self._waiting_position = 0
        self._paused = False  # see `is_paused`
        self._refusal: str | None = None  # the reason to close the connection once all responses are sent
        self._blocked = False  # whether the socket's send buffer is full
        self._watched = READABLE

    @abstractmethod
    def close(self, reason: str) -> None:
        """Close the connection for a reason other than a protocol violation."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Close the connection because the peer violated the protocol."""

    def log_unexpected_protocol(self, frame_size: int) -> bool:
        """Return whether the bytes of an invalid frame size start another protocol. If so, log the peer."""
        return False

    @abstractmethod
    def mark_dirty(self) -> None:
        """Schedule sending the queued data and handling the waiting frames, in this turn or the next one."""

    def _begin(self) -> None:
        """Begin with the handshake of the transport layer, or with receiving frames if there is none.

        Raises OSError if the connection is already lost.
        """
        self._owner.loop.watch(self.fd, *self._handshake())

    def _handshake(self) -> tuple[int, Callable[[int], None]]:
        """Run a step of the handshake. Return the events to wait for and their handler. Raises OSError."""
        events = self.transport.handshake()
        self.is_established = not events
        self._watched = events or READABLE
        return self._watched, self._continue_handshake if events else self._on_events

    def _continue_handshake(self, mask: int) -> None:
        if not self._owner.loop.may_handshake():
            return  # the event is reported again in the next turn
        try:
            wanted = self._handshake()
        except OSError as error:
            self.handshake_failed(error)
            return
        self._owner.loop.rewatch(self.fd, *wanted)
        if self.is_established:
            self.last_active_ms = self._owner.loop.turn_ms
            self.established()
            if self.transport.has_more:
                self.mark_dirty()

    def handshake_failed(self, error: OSError) -> None:
        """Close the connection because the handshake of the transport layer failed."""
        self.close(f"the handshake failed: {error.strerror}")

    def receiving_failed(self, error: OSError) -> None:
        """Close the connection because it is lost, or because its transport layer has failed."""
        self.close(f"receiving failed: {error.strerror}")

    def established(self) -> None:  # noqa: B027
        """Handle that the handshake of the transport layer is complete."""

    def _on_events(self, mask: int) -> None:
        if mask & WRITABLE:
            self._blocked = False
            self.mark_dirty()
        if mask & READABLE:
            self._receive()
            if self.transport.has_more:
                self.mark_dirty()
        elif mask & LOST:
            self.close("the peer reset the connection")

    def _is_full(self) -> bool:
        """Return whether backpressure or a quota must stop receiving."""
        channel = self.channel
        return (
            channel.fetches.is_muted
            or len(channel.slots) >= MAX_PENDING_REQUESTS
            or channel.pending_bytes > MAX_PENDING_BYTES
            or self.queue.size_bytes + channel.queued_bytes > MAX_UNSENT_BYTES
        )

    def _receive(self) -> None:
        if self._waiting is not None:
            return  # `resume` handles the waiting frames first
        if (self.channel.slots or self.queue.size_bytes) and self._is_full():
            self._pause()
            return
        owner = self._owner
        frame_buffer = self._frame_buffer
        try:
            if frame_buffer is None:
                count = self.transport.receive_into(owner.scratch)
            else:
                count = self.transport.receive_into(memoryview(frame_buffer)[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            self.receiving_failed(error)
            return
        if count == 0:
            self.close("the peer closed the connection")
            return
        self.last_active_ms = owner.loop.turn_ms
        if frame_buffer is not None:
            self._received_in_frame_buffer(frame_buffer, count)
            return
        partial = self._partial
        if partial is None:
            repeated = self.channel.repeated_request
            if (
                repeated is not None
                and count == _PREFIX_BYTES + repeated.size_bytes
                and self._respond_to_repeated(repeated)
            ):
                return
            if count >= FRAME_BUFFER_FROM_BYTES:
                size: int = _SIZE.unpack_from(owner.scratch)[0]
                if SCRATCH_BYTES - _PREFIX_BYTES < size <= self.channel.max_frame_bytes:
                    self._needed_bytes = _PREFIX_BYTES + size
                    self._start_frame_buffer(owner.scratch[:count])
                    return
            received = bytearray(owner.scratch[:count])
        else:
            partial += owner.scratch[:count]
            received = partial
            if len(received) < self._needed_bytes:
                if self._needed_bytes > SCRATCH_BYTES and len(received) >= FRAME_BUFFER_FROM_BYTES:
                    self._partial = None
                    self._start_frame_buffer(received)
                return
            self._partial = None
        self._handle_frames(received, 0)

    def _respond_to_repeated(self, repeated: RepeatedRequest) -> bool:
        """Respond at once if the received bytes repeat the last request; return False if they do not.

        The response may skip the queue, because no earlier response is pending, and because the response
        depends on no pending write.
        """
        queue = self.queue
        if self.channel.slots or queue.size_bytes or self.channel.quotas.is_enforced:
            return False
        owner = self._owner
        scratch = owner.scratch
        size_bytes = repeated.size_bytes
        if _SIZE.unpack_from(scratch)[0] != size_bytes:
            return False
        response = repeated.respond(scratch[_PREFIX_BYTES : _PREFIX_BYTES + size_bytes])
        if not response:
            return False
        try:
            sent = self.transport.send(response)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"sending failed: {error.strerror}")
            return True
        if sent < len(response):
            queue.extend([response[sent:]], len(response) - sent)
            self.mark_dirty()
        request_metrics = self.channel.request_metrics
        if request_metrics is not None:
            began = owner.loop.turn_began
            header, channel = repeated.header_of(scratch[_PREFIX_BYTES:]), self.channel
            channel.received_s = began
            number = channel.log_request(request_metrics, header, size_bytes)
            request_metrics.record(number, header, channel, size_bytes, len(response), began, None)
        return True

    def _received_in_frame_buffer(self, frame_buffer: bytearray, count: int) -> None:
        self._filled += count
        if self._filled == self._needed_bytes:
            self._frame_buffer = None
            self._handle_frames(frame_buffer, 0)
        elif self._filled == len(frame_buffer):
            self._frame_buffer = self._grow(frame_buffer)

    def _start_frame_buffer(self, received: Buffer) -> None:
        """Receive the frame that starts with `received` into a separate buffer."""
        self._filled = len(received)
        self._frame_buffer = self._grow(received)

    def _grow(self, received: Buffer) -> bytearray:
        """Return a larger buffer with the bytes of `received`."""
        have = len(received)
        grown = bytearray(
            self._needed_bytes if self._needed_bytes <= FULL_BUFFER_FROM_SHARE * have else 4 * have
        )
        grown[:have] = received
        return grown

    def _handle_frames(self, received: bytearray, position: int) -> None:
        """Handle the complete frames from `position` on. Keep frames that must wait or are incomplete."""
        owner = self._owner
        handle_frame = owner.frame_handler.handle_frame
        channel = self.channel
        if channel.ending:
            return
        view = memoryview(received)
        end = len(received)
        frames = False
        channel.received_s = owner.loop.turn_began
        deadline = channel.received_s + TURN_BUDGET_SECONDS
        self._needed_bytes = _PREFIX_BYTES
        while end - position >= _PREFIX_BYTES:
            size: int = _SIZE.unpack_from(received, position)[0]
            if size < 0 or size > channel.max_frame_bytes:
                self._refuse_size(size)
                return
            body = position + _PREFIX_BYTES
            if end - body < size:
                self._needed_bytes = _PREFIX_BYTES + size
                break
            # Without slots, no request is pending, so the frame need not wait for earlier responses.
            if (frames and perf_counter() > deadline) or (
                channel.slots
                and (self._is_full() or owner.frame_handler.must_wait(channel, view[body : body + size]))
            ):
                self._waiting = received
                self._waiting_position = position
                self.mark_dirty()
                return
            frames = True
            position = body + size
            try:
                handle_frame(channel, view[body:position])
            except WireError as error:
                self._refuse(str(error))
                return
            except Exception as error:
                self.fail(error)
                return
            if self.closed or channel.ending:
                return
        if position == end:
            return
        if self._needed_bytes > SCRATCH_BYTES and end - position >= FRAME_BUFFER_FROM_BYTES:
            self._start_frame_buffer(view[position:])
        else:
            self._partial = received[position:]

    def fail(self, error: Exception) -> None:
        """Log an exception that is being handled, and close the connection."""
        logger = self._owner.logger
        if is_shortage(error):
            logger.warning(
                "Closing connection %s: the process is short of descriptors or memory: %s", self, error
            )
        else:
            logger.exception(
                "Closing connection %s: an unexpected error in a received request or response", self
            )
        self.close("the request failed")

    def _refuse_size(self, size: int) -> None:
        channel = self.channel
        limit = "negative" if size < 0 else f"above the maximum of {channel.max_frame_bytes}"
        reason = f"frame size {size} is {limit}"
        is_logged = self.log_unexpected_protocol(size)
        authentication, now_ms = channel.authentication, self._owner.loop.now_ms()
        if authentication is not None and authentication.fail_invalid_size(
            channel, "" if is_logged else reason, now_ms
        ):
            return
        if is_logged:
            self.close(reason)
        else:
            self._refuse(reason if size < 0 else f"{reason} (socket.request.max.bytes)")

    def _refuse(self, reason: str) -> None:
        """Stop receiving after a protocol violation. Close once earlier requests have their responses."""
        # The connection closes after the responses to earlier requests, so none of them may wait for records.
        self.channel.fetches.complete_all()
        if self.channel.slots or self.queue:
            self._refusal = reason
            self._pause()
            self.mark_dirty()
        else:
            self.refuse(reason)

    def _pause(self) -> None:
        self._paused = True
        self._watch()

    def resume(self) -> None:
        """Handle the frames that had to wait in an earlier turn, unless backpressure still applies.

        If there are none, receive the bytes that the transport layer has taken off the socket.
        """
        if self.closed:
            return
        self.mark_dirty()
        waiting = self._waiting
        if waiting is not None:
            if not self._is_full():
                self._waiting = None
                self._handle_frames(waiting, self._waiting_position)
        elif self.transport.has_more and not self._paused:
            self._receive()

    def _must_wait(self, waiting: bytearray) -> bool:
        """Return whether the first waiting frame must wait for the response to an earlier request."""
        frame = memoryview(waiting)[self._waiting_position + _PREFIX_BYTES :]
        return self._owner.frame_handler.must_wait(self.channel, frame)

    def _watch(self) -> None:
        mask = (0 if self._paused else READABLE) | (WRITABLE if self._blocked else 0)
        if mask != self._watched:
            self._watched = mask
            self._owner.loop.rewatch(self.fd, mask)

    def release(self) -> None:
        """Close the socket and free the buffers. Only the owner of the connection calls this."""
        self._detach()
        self.transport.close()

    def _detach(self) -> None:
        """Free the buffers, and leave the socket to the caller."""
        self.closed = True
        self._owner.loop.unwatch(self.fd)
        self.queue.clear()
        self._partial = self._frame_buffer = self._waiting = None

    @property
    def is_paused(self) -> bool:
        """Whether receiving has stopped: backpressure, a quota, a protocol violation or shutdown."""
        return self._paused

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that incomplete frames use."""
        return len(self._partial or b"") + len(self._frame_buffer or b"")
