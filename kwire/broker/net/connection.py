"""One client's socket: bytes in and frames out of them, replies out; never blocking, bounded in memory.

What a peer can make us hold is bounded on each side.

*Receiving.* Each turn receives at most once, up to 256 KiB, into a scratch buffer that all connections
share; what arrived is copied once, and its frames are views onto that copy, which the storage may keep and
write to. The start of a frame that is not complete yet waits in a bytearray. A frame beyond the scratch
buffer is received straight into a buffer of its own, which grows with what has arrived (fourfold, up to the
size announced), so a peer who announces much and sends little costs little.

*Processing.* Once a turn has worked for `TURN_BUDGET_SECONDS`, each connection gets one more frame and no
second one: a burst of requests holds the others back for no longer than that. The rest waits for the next
turn.

A frame also waits where the node says that what its connection has asked before must be answered first.

*Answering.* While `MAX_PENDING_REQUESTS` requests, or requests of `MAX_PENDING_BYTES` together, wait for
their replies, or `MAX_UNSENT_BYTES` of replies wait for the peer to read them, nothing more is received: the
peer's sends fill the kernel's buffers and stop.
"""

from __future__ import annotations

import logging
import socket
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, cast

from kwire.broker.api.context import Channel, size_of
from kwire.broker.net.send_queue import RegionTruncated, SendQueue, Sent
from kwire.wire.errors import WireError

if TYPE_CHECKING:
    from kwire.broker.api.repeated import Repeated
    from kwire.broker.host.host import Timer
    from kwire.broker.net.send_queue import Piece
    from kwire.broker.net.server import Server

logger = logging.getLogger("kwire.net")

SCRATCH_BYTES = 256 << 10
OWN_BUFFER_FROM_BYTES = 64 << 10
"""A frame above the scratch buffer's size gets its own buffer once this much of it has arrived."""
TURN_BUDGET_SECONDS = 0.002
MAX_PENDING_REQUESTS = 512
MAX_PENDING_BYTES = 8 << 20
MAX_UNSENT_BYTES = 1 << 20

_SIZE = Struct(">i")
_PREFIX_BYTES = 4


class Connection:
    """A socket, the channel that it carries, and what is under way in both directions."""

    __slots__ = (
        "_blocked",
        "_filled",
        "_need",
        "_own",
        "_partial",
        "_paused",
        "_reading_ahead",
        "_refusal",
        "_server",
        "_waiting",
        "_waiting_position",
        "_watched",
        "channel",
        "closed",
        "dirty",
        "fd",
        "idle_timer",
        "last_active_ms",
        "listener",
        "peer",
        "queue",
        "sock",
    )

    def __init__(
        self, server: Server, sock: socket.socket, channel_id: int, listener: str, peer: tuple[str, int]
    ) -> None:
        self._server = server
        self.sock = sock
        self.fd = sock.fileno()
        self.listener = listener
        self.peer = peer
        self.channel = Channel(
            channel_id,
            peer_host=peer[0],
            local_host=sock.getsockname()[0],
            listener=listener,
            on_ready=self._reply_ready,
        )
        self.queue = SendQueue(sock)
        self.closed = False
        self.dirty = False
        """In the server's list of connections to look at when the turn ends."""
        self.last_active_ms = server.loop.turn_ms
        self.idle_timer: Timer | None = None
        self._partial: bytearray | None = None  # the start of a frame
        self._need = _PREFIX_BYTES  # how many bytes `_partial` or `_own` needs before anything can be done
        self._own: bytearray | None = None  # the buffer of a frame beyond the scratch buffer
        self._filled = 0  # how much of `_own` has arrived
        self._waiting: bytearray | None = None  # whole frames that had to wait, from `_waiting_position` on
        self._waiting_position = 0
        self._paused = False  # not receiving until replies have left
        self._refusal: str | None = None  # why the connection is closed once all is answered
        self._blocked = False  # the socket takes no more for now
        self._reading_ahead = False  # a thread is reading what is to be sent next
        self._watched = EPOLLIN
        server.loop.watch(self.fd, EPOLLIN, self._on_events)

    def __repr__(self) -> str:
        return f"<{self.listener} {self.peer[0]}:{self.peer[1]}>"

    # --- receiving

    def _on_events(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._blocked = False
            self._server.look_at(self)
        if mask & EPOLLIN:
            self._receive()
        elif mask & (EPOLLHUP | EPOLLERR):
            self._server.close(self, "the peer reset the connection")

    def _must_wait(self) -> bool:
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
        if (self.channel.slots or self.queue.size_bytes) and self._must_wait():
            self._pause()
            return
        server = self._server
        own = self._own
        try:
            if own is None:
                count = self.sock.recv_into(server.scratch)
            else:
                count = self.sock.recv_into(memoryview(own)[self._filled :])
        except BlockingIOError:
            return
        except OSError as error:
            server.close(self, f"receiving failed: {error.strerror}")
            return
        if count == 0:
            server.close(self, "the peer closed the connection")
            return
        self.last_active_ms = server.loop.turn_ms
        if own is not None:
            self._received_own(own, count)
            return
        partial = self._partial
        if partial is None:
            repeated = self.channel.repeated
            if (
                repeated is not None
                and count == _PREFIX_BYTES + repeated.size_bytes
                and self._repeat(repeated)
            ):
                return
            received = bytearray(server.scratch[:count])
        else:
            partial += server.scratch[:count]
            received = partial
            if len(received) < self._need:
                if self._need > SCRATCH_BYTES and len(received) >= OWN_BUFFER_FROM_BYTES:
                    self._partial = None
                    self._filled = len(received)
                    self._own = self._grown(received)
                return
            self._partial = None
        self._take_frames(received, 0)

    def _repeat(self, repeated: Repeated) -> bool:
        """Answer at once if what was received is the one request again; False where it is anything else.

        It goes without a slot, and does not wait for the end of the turn: nothing is before it, and it
        depends on nothing that is to be written.
        """
        queue = self.queue
        if self.channel.slots or queue.size_bytes:
            return False
        server = self._server
        scratch = server.scratch
        size_bytes = repeated.size_bytes
        if _SIZE.unpack_from(scratch)[0] != size_bytes:
            return False
        answer = repeated.answer(scratch[_PREFIX_BYTES : _PREFIX_BYTES + size_bytes], server.loop.now_ms())
        if not answer:
            return False
        try:
            sent = self.sock.send(answer)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            server.close(self, f"sending failed: {error.strerror}")
            return True
        if sent < len(answer):
            queue.extend([answer[sent:]], len(answer) - sent)
            server.look_at(self)
        return True

    def _received_own(self, own: bytearray, count: int) -> None:
        self._filled += count
        if self._filled == self._need:
            self._own = None
            self._take_frames(own, 0)
        elif self._filled == len(own):
            self._own = self._grown(own)

    def _grown(self, received: bytearray) -> bytearray:
        """A larger buffer for the frame that `received` is the start of."""
        grown = bytearray(min(self._need, 4 * len(received)))
        grown[: len(received)] = received
        return grown

    def _take_frames(self, received: bytearray, position: int) -> None:
        """Hand over the whole frames from `position` on, and keep the rest for later."""
        server = self._server
        handle_frame = server.node.handle_frame
        channel = self.channel
        if channel.ending:
            return
        view = memoryview(received)
        end = len(received)
        max_bytes = server.settings.request_max_bytes
        frames = False
        deadline = server.loop.turn_began + TURN_BUDGET_SECONDS
        self._need = _PREFIX_BYTES
        while end - position >= _PREFIX_BYTES:
            size: int = _SIZE.unpack_from(received, position)[0]
            if size < 0 or size > max_bytes:
                limit = "negative" if size < 0 else f"above {max_bytes} (socket.request.max.bytes)"
                self._refuse(f"a request's size is {size}, which is {limit}")
                return
            body = position + _PREFIX_BYTES
            if end - body < size:
                self._need = _PREFIX_BYTES + size
                break
            if (
                (frames and perf_counter() > deadline)
                or self._must_wait()
                or (channel.slots and server.node.must_wait(channel, view[body : body + size]))
            ):
                self._waiting = received
                self._waiting_position = position
                server.look_at(self)
                return
            frames = True
            position = body + size
            try:
                handle_frame(channel, view[body:position])
            except WireError as error:
                self._refuse(str(error))
                return
            except Exception:
                logger.exception("%r: a request failed, and its connection is closed", self)
                server.close(self, "the request failed")
                return
            if self.closed or channel.ending:
                return
        if position == end:
            return
        rest = received[position:]
        if self._need > SCRATCH_BYTES and len(rest) >= OWN_BUFFER_FROM_BYTES:
            self._filled = len(rest)
            self._own = self._grown(rest)
        else:
            self._partial = rest

    def _refuse(self, reason: str) -> None:
        """The peer broke the protocol: take nothing more, and close when what came before is answered."""
        if self.channel.slots or self.queue:
            self._refusal = reason
            self._pause()
            self._server.look_at(self)
        else:
            self._server.refuse(self, reason)

    def _pause(self) -> None:
        self._paused = True
        self._watch()

    # --- the end of the turn

    def _reply_ready(self, channel: Channel) -> None:
        self._server.look_at(self)

    def finish_turn(self) -> bool:
        """Send what is ready. True when there is more to do that waits for nothing but the next turn."""
        channel = self.channel
        queue = self.queue
        slots = channel.slots
        if slots and slots[0].completed:
            queued_bytes = channel.queued_bytes
            pieces = channel.take_ready()
            size_bytes = queued_bytes - channel.queued_bytes
            if channel.closing:
                # What was queued behind the last one is dropped.
                size_bytes = sum(map(size_of, pieces))
            queue.extend(cast("list[Piece]", pieces), size_bytes)
        more = False
        if queue and not self._blocked and not self._reading_ahead:
            try:
                sent = queue.send()
            except RegionTruncated as error:
                self._server.close(self, f"cannot send a reply: {error}")
                return False
            except OSError as error:
                self._server.close(self, f"sending failed: {error.strerror}")
                return False
            self.last_active_ms = self._server.loop.turn_ms
            if sent is Sent.BLOCKED:
                self._blocked = True
            elif sent is Sent.TURN_OVER:
                more = True
            elif sent is Sent.COLD:
                self._read_ahead()
        if channel.closing and not queue:
            self._server.close(self, "its last reply is sent")
            return False
        if self._refusal is not None:
            if not queue and not channel.slots:
                self._server.refuse(self, self._refusal)
                return False
            self._watch()
            return more
        if self._waiting is not None:
            if self._must_wait() or self._is_held(self._waiting):
                self._paused = True
            else:
                more = True
        elif self._paused and not self._server.draining and not self._must_wait():
            self._paused = False
        self._watch()
        return more

    def resume(self) -> None:
        """At the start of a turn: take the frames that had to wait in the one before."""
        if self.closed:
            return
        self._server.look_at(self)
        waiting = self._waiting
        if waiting is not None and not self._must_wait():
            self._waiting = None
            self._take_frames(waiting, self._waiting_position)

    def _is_held(self, waiting: bytearray) -> bool:
        """Whether the first frame that waits has to wait for an answer."""
        frame = memoryview(waiting)[self._waiting_position + _PREFIX_BYTES :]
        return self._server.node.must_wait(self.channel, frame)

    def _watch(self) -> None:
        mask = (0 if self._paused else EPOLLIN) | (EPOLLOUT if self._blocked else 0)
        if mask != self._watched:
            self._watched = mask
            self._server.loop.rewatch(self.fd, mask)

    def _read_ahead(self) -> None:
        work, end = self.queue.cold_window()
        self._reading_ahead = True

        def done(result: BaseException | None) -> None:
            self._reading_ahead = False
            if self.closed:
                return
            if result is not None:
                self._server.close(self, f"cannot read what is to be sent: {result}")
                return
            self.queue.warmed(end)
            self._server.look_at(self)

        self._server.loop.run_in_worker(work, done)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is received until the peer has taken replies."""
        return self._paused

    @property
    def held_bytes(self) -> int:
        """Memory that is held for frames which have not arrived completely."""
        return len(self._partial or b"") + len(self._own or b"")

    # --- the end

    def drain(self) -> None:
        """Receive nothing more; what was received is still answered."""
        self._paused = True
        self._watch()
        self._server.look_at(self)

    @property
    def is_drained(self) -> bool:
        return self._waiting is None and not self.channel.slots and not self.queue

    def release(self) -> None:
        """Give up the socket and everything that is held for it. For `Server.close`."""
        self.closed = True
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self._server.loop.unwatch(self.fd)
        self.sock.close()
        self.queue.clear()
        self._partial = self._own = self._waiting = None
