"""Where a socket is read: bytes in, frames out of them; never blocking, bounded in memory.

What a peer can make us hold is bounded.

*Receiving.* Each turn receives at most once, up to 256 KiB, into a scratch buffer that all connections
share; what arrived is copied once, and its frames are views onto that copy, which the storage may keep and
write to. The start of a frame that is not complete yet waits in a bytearray. A frame beyond the scratch
buffer is received straight into a buffer of its own, which grows with what has arrived (fourfold, up to the
size announced), so a peer who announces much and sends little costs little.

*Processing.* Once a turn has worked for `TURN_BUDGET_SECONDS`, each connection gets one more frame and no
second one: a burst of requests holds the others back for no longer than that. The rest waits for the next
turn.

A frame also waits where the node says that what its connection has asked before must be answered first.

*Too much under way.* While `MAX_PENDING_REQUESTS` requests, or requests of `MAX_PENDING_BYTES` together, wait
for their replies, or `MAX_UNSENT_BYTES` of replies wait for the peer to read them, nothing more is received:
the peer's sends fill the kernel's buffers and stop.
"""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from kwire.broker.api.request.context import Channel
from kwire.broker.net.send_queue import SendQueue
from kwire.wire.errors import WireError
from kwire.wire.primitives import Buffer

if TYPE_CHECKING:
    from kwire.broker.api.request.repeated_request import RepeatedRequest
    from kwire.broker.net.loop import Loop
    from kwire.broker.net.socket_settings import SocketSettings

SCRATCH_BYTES = 256 << 10
FRAME_BUFFER_FROM_BYTES = 64 << 10
"""A frame above the scratch buffer's size gets its own buffer once this much of it has arrived."""
FULL_BUFFER_FROM_SHARE = 16
"""A frame of which a sixteenth has arrived gets all of its buffer: each growth copies what is there."""
TURN_BUDGET_SECONDS = 0.002
MAX_PENDING_REQUESTS = 512
MAX_PENDING_BYTES = 8 << 20
MAX_UNSENT_BYTES = 1 << 20

_SIZE = Struct(">i")
_PREFIX_BYTES = 4


class FrameHandler(Protocol):
    """Who is given what connections receive."""

    def handle_frame(self, channel: Channel, frame: memoryview) -> None: ...
    def must_wait(self, channel: Channel, frame: memoryview) -> bool: ...


class ServedNode(FrameHandler, Protocol):
    """What the shell asks of a node."""

    def end_turn(self, answer: Callable[[], None] | None = None) -> None: ...
    def channel_opened(self, channel: Channel) -> None: ...
    def channel_closed(self, channel: Channel) -> None: ...
    def begin_shutdown(self) -> None: ...


class ConnectionPorts(Protocol):
    """What all connections share, of a server or to other nodes."""

    @property
    def loop(self) -> Loop: ...
    @property
    def frame_handler(self) -> FrameHandler: ...
    @property
    def settings(self) -> SocketSettings: ...
    @property
    def scratch(self) -> memoryview:
        """Where every connection receives; copied from before the next one does."""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]: ...


class Receiver(ABC):
    """The half of a connection that receives, with the state that both halves go by."""

    __slots__ = (
        "_blocked",
        "_filled",
        "_frame_buffer",
        "_needed_bytes",
        "_partial",
        "_paused",
        "_ports",
        "_refusal",
        "_waiting",
        "_waiting_position",
        "_watched",
        "channel",
        "closed",
        "fd",
        "last_active_ms",
        "queue",
        "sock",
    )

    def __init__(self, ports: ConnectionPorts, sock: socket.socket, channel: Channel) -> None:
        self._ports = ports
        self.sock = sock
        self.fd = sock.fileno()
        self.channel = channel
        channel.max_frame_bytes = ports.settings.request_max_bytes
        self.queue = SendQueue(sock)
        self.closed = False
        self.last_active_ms = ports.loop.turn_ms
        self._partial: bytearray | None = None  # the start of a frame
        self._needed_bytes = (
            _PREFIX_BYTES  # how many bytes `_partial` or `_own` needs before anything can be done
        )
        self._frame_buffer: bytearray | None = None  # the buffer of a frame beyond the scratch buffer
        self._filled = 0  # how much of `_own` has arrived
        self._waiting: bytearray | None = None  # whole frames that had to wait, from `_waiting_position` on
        self._waiting_position = 0
        self._paused = False  # not receiving until replies have left
        self._refusal: str | None = None  # why the connection is closed once all is answered
        self._blocked = False  # the socket takes no more for now
        self._watched = EPOLLIN

    @abstractmethod
    def close(self, reason: str) -> None:
        """Close, for a reason that is nobody's fault."""

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Close, since the peer broke the protocol."""

    @abstractmethod
    def mark_dirty(self) -> None:
        """See to this connection when the turn ends."""

    def _is_full(self) -> bool:
        """Whether the peer has so much under way that nothing more is taken from it."""
        channel = self.channel
        return (
            len(channel.slots) >= MAX_PENDING_REQUESTS
            or channel.pending_bytes > MAX_PENDING_BYTES
            or self.queue.size_bytes + channel.queued_bytes > MAX_UNSENT_BYTES
        )

    def _receive(self) -> None:
        if self._waiting is not None:
            return  # its turn comes at the end of this one
        if (self.channel.slots or self.queue.size_bytes) and self._is_full():
            self._pause()
            return
        ports = self._ports
        frame_buffer = self._frame_buffer
        try:
            if frame_buffer is None:
                count = self.sock.recv_into(ports.scratch)
            else:
                count = self.sock.recv_into(memoryview(frame_buffer)[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"receiving failed: {error.strerror}")
            return
        if count == 0:
            self.close("the peer closed the connection")
            return
        self.last_active_ms = ports.loop.turn_ms
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
                size: int = _SIZE.unpack_from(ports.scratch)[0]
                if SCRATCH_BYTES - _PREFIX_BYTES < size <= self.channel.max_frame_bytes:
                    self._needed_bytes = _PREFIX_BYTES + size
                    self._start_frame_buffer(ports.scratch[:count])
                    return
            received = bytearray(ports.scratch[:count])
        else:
            partial += ports.scratch[:count]
            received = partial
            if len(received) < self._needed_bytes:
                if self._needed_bytes > SCRATCH_BYTES and len(received) >= FRAME_BUFFER_FROM_BYTES:
                    self._partial = None
                    self._start_frame_buffer(received)
                return
            self._partial = None
        self._handle_frames(received, 0)

    def _respond_to_repeated(self, repeated: RepeatedRequest) -> bool:
        """Answer at once if what was received is the one request again; False where it is anything else.

        It goes without a slot, and does not wait for the end of the turn: nothing is before it, and it
        depends on nothing that is to be written.
        """
        queue = self.queue
        if self.channel.slots or queue.size_bytes:
            return False
        ports = self._ports
        scratch = ports.scratch
        size_bytes = repeated.size_bytes
        if _SIZE.unpack_from(scratch)[0] != size_bytes:
            return False
        answer = repeated.respond(scratch[_PREFIX_BYTES : _PREFIX_BYTES + size_bytes])
        if not answer:
            return False
        try:
            sent = self.sock.send(answer)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"sending failed: {error.strerror}")
            return True
        if sent < len(answer):
            queue.extend([answer[sent:]], len(answer) - sent)
            self.mark_dirty()
        request_metrics = self.channel.request_metrics
        if request_metrics is not None:
            began = ports.loop.turn_began
            header, channel = repeated.header_of(scratch[_PREFIX_BYTES:]), self.channel
            channel.received_s = began
            number = channel.log_request(request_metrics, header, size_bytes)
            request_metrics.record(number, header, channel, size_bytes, len(answer), began, False)
        return True

    def _received_in_frame_buffer(self, frame_buffer: bytearray, count: int) -> None:
        self._filled += count
        if self._filled == self._needed_bytes:
            self._frame_buffer = None
            self._handle_frames(frame_buffer, 0)
        elif self._filled == len(frame_buffer):
            self._frame_buffer = self._grow(frame_buffer)

    def _start_frame_buffer(self, received: Buffer) -> None:
        """Receive the frame that this is the start of into a buffer of its own from here on."""
        self._filled = len(received)
        self._frame_buffer = self._grow(received)

    def _grow(self, received: Buffer) -> bytearray:
        """A larger buffer for the frame that `received` is the start of."""
        have = len(received)
        grown = bytearray(
            self._needed_bytes if self._needed_bytes <= FULL_BUFFER_FROM_SHARE * have else 4 * have
        )
        grown[:have] = received
        return grown

    def _handle_frames(self, received: bytearray, position: int) -> None:
        """Hand over the whole frames from `position` on, and keep the rest for later."""
        ports = self._ports
        handle_frame = ports.frame_handler.handle_frame
        channel = self.channel
        if channel.ending:
            return
        view = memoryview(received)
        end = len(received)
        frames = False
        channel.received_s = ports.loop.turn_began
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
            # Without a slot there is nothing under way that was not when this was received.
            if (frames and perf_counter() > deadline) or (
                channel.slots
                and (self._is_full() or ports.frame_handler.must_wait(channel, view[body : body + size]))
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
            except Exception:
                ports.logger.exception("%r: a request failed, and its connection is closed", self)
                self.close("the request failed")
                return
            if self.closed or channel.ending:
                return
        if position == end:
            return
        if self._needed_bytes > SCRATCH_BYTES and end - position >= FRAME_BUFFER_FROM_BYTES:
            self._start_frame_buffer(view[position:])
        else:
            self._partial = received[position:]

    def _refuse_size(self, size: int) -> None:
        channel = self.channel
        limit = "negative" if size < 0 else f"above {channel.max_frame_bytes}"
        reason = f"a frame's size is {size}, which is {limit}"
        authentication, now_ms = channel.authentication, self._ports.loop.now_ms()
        if authentication is None or not authentication.fail_invalid_size(channel, reason, now_ms):
            self._refuse(reason if size < 0 else f"{reason} (socket.request.max.bytes)")

    def _refuse(self, reason: str) -> None:
        """The peer broke the protocol: take nothing more, and close when what came before is answered."""
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
        """At the start of a turn: take the frames that had to wait in the one before."""
        if self.closed:
            return
        self.mark_dirty()
        waiting = self._waiting
        if waiting is not None and not self._is_full():
            self._waiting = None
            self._handle_frames(waiting, self._waiting_position)

    def _must_wait(self, waiting: bytearray) -> bool:
        """Whether the first frame that waits has to wait for an answer."""
        frame = memoryview(waiting)[self._waiting_position + _PREFIX_BYTES :]
        return self._ports.frame_handler.must_wait(self.channel, frame)

    def _watch(self) -> None:
        mask = (0 if self._paused else EPOLLIN) | (EPOLLOUT if self._blocked else 0)
        if mask != self._watched:
            self._watched = mask
            self._ports.loop.rewatch(self.fd, mask)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is received until the peer has taken replies."""
        return self._paused

    @property
    def held_bytes(self) -> int:
        """Memory that is held for frames which have not arrived completely."""
        return len(self._partial or b"") + len(self._frame_buffer or b"")
