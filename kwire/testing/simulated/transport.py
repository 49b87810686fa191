"""An asyncio transport over a simulated connection.

The program sends and receives bytes in arbitrary pieces. The network transfers frames of Kafka's protocol, so
the transport collects written bytes until a frame is complete.
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
"""The probability that a response arrives in two pieces."""
CLOSED: Final = "the peer closed the connection"
REFUSED: Final = "connection refused"

StreamProtocol = asyncio.Protocol | asyncio.BufferedProtocol
"""Protocols of a stream. asyncio accepts any object with the methods of one of them."""


class ConnectionObserver(Protocol):
    """An observer of the frames of one connection."""

    def on_request(self, frame: bytes) -> None:
        """Observe a request frame, including its size prefix."""

    def on_response(self, frame: memoryview) -> None:
        """Observe a response frame without its size prefix."""


class Transport(asyncio.Transport):
    """A stream transport, and the `kwire.broker.net.peer_link.TransportEvents` of its connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        to: PeerAddress,
        program: str,
        rng: random.Random,
        observer: ConnectionObserver,
        on_closed: Callable[[Transport], object],
    ) -> None:
        """Open a connection. `ready` completes when the connection is established, or raises its error.

        `program` is the program's name in the network. `on_closed` is called with this transport.
        """
        super().__init__({"peername": (to.host, to.port), "sockname": (program, 0)})
        self.ready: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._to = to
        self._rng = rng
        self._observer = observer
        self._on_closed = on_closed
        self._protocol: StreamProtocol | None = None
        self._written = bytearray()
        self._received: deque[bytes] = deque()
        self._close_reason: str | None = None
        """The reason if the other end has closed the connection."""
        self._reading_paused = self._is_closing = False
        self._connection = Connection(network, to, self, program, self._call_soon)

    def _call_soon(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():  # nothing of the program runs after that
            self._loop.call_soon(call)

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach a protocol after the connection is established, and deliver data to the protocol."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._loop.call_soon(self._deliver)

    # --- TransportEvents

    def opened(self) -> None:
        """Complete `ready`."""
        if not self.ready.done():
            self.ready.set_result(None)

    def received(self, frame: memoryview) -> None:
        """Observe a response and deliver it, perhaps in two pieces."""
        if not self._is_closing:
            self._observer.on_response(frame)
        response = len(frame).to_bytes(SIZE_BYTES, "big") + frame
        cut = self._rng.randrange(len(response)) if self._rng.random() < SPLIT_PROBABILITY else 0
        self._received += [piece for piece in (response[:cut], response[cut:]) if piece]
        self._deliver()

    def closed(self, reason: str) -> None:
        """Fail `ready`, or notify the protocol after it has received all data."""
        self._close_reason = reason
        if not self.ready.done():
            kind = ConnectionRefusedError if reason == REFUSED else ConnectionResetError
            self.ready.set_exception(kind(f"{self._to}: {reason}"))
        self._deliver()

    def _deliver(self) -> None:
        """Deliver the next piece of data, or the end of the connection after the last piece."""
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
        """Deliver the next piece, or as much of it as the buffer of the protocol can hold."""
        piece = self._received.popleft()
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(len(piece)))
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
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
        """Close the connection without notifying the protocol."""
        self._is_closing = True
        self._connection.close()

    def _lost(self, error: ConnectionError | None) -> None:
        protocol, self._protocol = self._protocol, None
        self._on_closed(self)
        if protocol is not None:
            protocol.connection_lost(error)

    # --- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the frames that are complete, and keep the rest."""
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
        """Close the connection, and notify the protocol."""
        self._close(None)

    abort = close

    def is_closing(self) -> bool:
        """Return whether the transport is closing or closed."""
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = cast("StreamProtocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None, "the connection is closed"
        return self._protocol

    def is_reading(self) -> bool:
        """Return whether data is being delivered."""
        return not self._reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Pause the delivery of data."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Resume the delivery of data."""
        self._reading_paused = False
        self._loop.call_soon(self._deliver)

    def can_write_eof(self) -> bool:
        """Return False: half-closed connections are not supported."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return 0, since the network accepts all data at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, since the write buffer is never full."""
