"""A program's end of a simulated connection, as asyncio has them: bytes, which come in any pieces.

The network carries frames of Kafka's protocol: what was written of one waits here for the rest of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from kwire.host.host import PeerAddress
from kwire.testing.network import Connection, Network

SIZE_BYTES: Final = 4
SPLIT_PROBABILITY: Final = 0.2
"""How likely an answer comes in two pieces."""
CLOSED: Final = "the peer closed the connection"
REFUSED: Final = "connections are refused"

StreamProtocol = asyncio.Protocol | asyncio.BufferedProtocol
"""What asyncio takes for a stream: any object that has the methods of one of them."""


class ConnectionObserver(Protocol):
    """Who listens to what passes on one connection."""

    def on_request(self, frame: bytes) -> None:
        """A request is sent, its size in front."""

    def on_response(self, frame: memoryview) -> None:
        """An answer has come, without its size."""


class Transport(asyncio.Transport):
    """See the module. To the network it is a `kwire.broker.net.peer_link.TransportEvents`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        to: PeerAddress,
        program: str,
        rng: random.Random,
        conversation: ConnectionObserver,
        on_closed: Callable[[Transport], object],
    ) -> None:
        """Connect: `ready` tells when that is done, or raises what keeps it from that."""
        super().__init__({"peername": (to.host, to.port), "sockname": (program, 0)})
        self.ready: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._to = to
        self._rng = rng
        self._observer = conversation
        self._on_closed = on_closed
        self._protocol: StreamProtocol | None = None
        self._written = bytearray()
        self._received: deque[bytes] = deque()
        self._close_reason: str | None = None
        """Why the other end has closed it, once it has."""
        self._reading_paused = self._is_closing = self._is_told = False
        self._connection = Connection(network, to, self, program, self._call_soon)

    def _call_soon(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():  # else there is nobody to hear it
            self._loop.call_soon(call)

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Once it is ready: tell this one what comes."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._loop.call_soon(self._deliver)

    # --- what the network tells

    def opened(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def received(self, frame: memoryview) -> None:
        if not self._is_closing:
            self._observer.on_response(frame)
        answer = len(frame).to_bytes(SIZE_BYTES, "big") + frame
        cut = self._rng.randrange(len(answer)) if self._rng.random() < SPLIT_PROBABILITY else 0
        self._received += [piece for piece in (answer[:cut], answer[cut:]) if piece]
        self._deliver()

    def closed(self, reason: str) -> None:
        self._close_reason = reason
        if not self.ready.done():
            kind = ConnectionRefusedError if reason == REFUSED else ConnectionResetError
            self.ready.set_exception(kind(f"{self._to}: {reason}"))
        self._deliver()

    def _deliver(self) -> None:
        """Tell the program the next thing that has come, and that it is over behind the last one."""
        protocol = self._protocol
        if protocol is None or self._is_closing or self._reading_paused:
            return
        if self._received:
            self._deliver_piece(protocol)
            self._loop.call_soon(self._deliver)
        elif self._close_reason == CLOSED:
            if not protocol.eof_received():
                self.close()
        elif self._close_reason is not None:
            self._close(ConnectionResetError(f"{self._to}: {self._close_reason}"))

    def _deliver_piece(self, protocol: StreamProtocol) -> None:
        """Have the next piece be received, or what the protocol has room for."""
        piece = self._received.popleft()
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = memoryview(protocol.get_buffer(len(piece)))
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            if piece[count:]:
                self._received.appendleft(piece[count:])
            protocol.buffer_updated(count)
        else:
            protocol.data_received(piece)

    def _close(self, error: ConnectionError | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.close()
            self._loop.call_soon(self._lost, error)

    def hang_up(self) -> None:
        """Close it, and tell nobody here."""
        self._is_closing = True
        self._connection.close()

    def _lost(self, error: ConnectionError | None) -> None:
        protocol, self._protocol = self._protocol, None
        self._on_closed(self)
        if protocol is not None:
            protocol.connection_lost(error)

    # --- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        written = self._written
        written += data
        while len(written) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(written[:SIZE_BYTES], "big")
            if len(written) < end:
                return
            frame = bytes(written[:end])
            del written[:end]
            self._observer.on_request(frame)
            self._connection.send(frame)

    def close(self) -> None:
        self._close(None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("StreamProtocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "the connection is over"
        return self._protocol

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._loop.call_soon(self._deliver)

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        """The network takes everything."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """None are met."""
