"""The send queue of a connection: buffers and file regions, sent in order and without blocking.

Small buffers are sent with one call, together with small regions, because copying a small region costs less
than sending it with a separate call. A buffer before a larger region is sent with MSG_MORE, so that the
kernel puts header and data into the same segments, and TLS into the same record. sendfile then copies the
region from the page cache to the socket.

If the data is not in the page cache, sendfile blocks on the disk and delays every connection. So the queue
first probes the first and last byte of each window with RWF_NOWAIT, which takes 0.6 µs. If one of these bytes
is missing, the caller must let a worker thread read the window into the page cache. macOS has no RWF_NOWAIT:
there, the probe itself reads from the disk.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

from kwire.broker.storage.file_region import CopiedRegion, FileRegion
from kwire.host.platform.files import NOWAIT, read_ahead
from kwire.host.platform.sockets import MSG_MORE
from kwire.host.system_os import os
from kwire.wire.plural import plural
from kwire.wire.primitives import Buffer

if TYPE_CHECKING:
    from kwire.broker.net.transport_layer import TransportLayer

Piece = Buffer | FileRegion

WINDOW_BYTES = 1 << 20
"""The size of the window of a region that is probed and sent at a time."""
TURN_BYTES = 4 << 20
"""The limit for the bytes that one connection sends in one turn."""
READ_AHEAD_BYTES = 256 << 10
SMALL_BYTES = 64 << 10
"""The largest region that is copied, and the most bytes before a copied region in the same call."""
MAX_VECTORS = 256

_BUFFERS = (bytes, bytearray, memoryview)


class Sent(Enum):
    """The reason why a call of `send` stopped."""

    ALL = "the queue is empty"
    BLOCKED = "the socket's send buffer is full"
    TURN_OVER = "the limit of the turn is reached"
    COLD = "the next window is not in the page cache"


ALL_SENT: Final = Sent.ALL
"""A global variable for the hot path: looking up a member of an Enum takes six times as long."""


class RegionTruncated(Exception):
    """A file that ends before the region whose size was announced to the peer."""


class SendQueue:
    """The unsent data of one connection."""

    __slots__ = ("_pieces", "_region_sent", "_scratch", "_transport", "_warm_to", "size_bytes")

    def __init__(self, transport: TransportLayer) -> None:
        self._transport = transport
        self._pieces: deque[Piece] = deque()
        self._region_sent = 0
        self._warm_to = 0
        self._scratch = bytearray(1)
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def extend(self, pieces: Iterable[Piece], size_bytes: int) -> None:
        """Queue pieces with a total size of `size_bytes`."""
        self._pieces.extend(pieces)
        self.size_bytes += size_bytes

    def clear(self) -> None:
        self._pieces.clear()
        self.size_bytes = 0

    def send(self) -> Sent:
        """Send as much as possible without blocking.

        Raises OSError if the connection is lost. Raises RegionTruncated if a file ends before a region does;
        the caller must then close the connection.
        """
        pieces = self._pieces
        goal = self.size_bytes - TURN_BYTES
        try:
            while pieces:
                if self.size_bytes <= goal:
                    return Sent.TURN_OVER
                if isinstance(pieces[0], _BUFFERS):
                    if not self._send_buffers():
                        return Sent.BLOCKED
                elif isinstance(pieces[0], CopiedRegion):
                    pieces[0] = pieces[0].data
                elif not self._send_window(pieces[0]):
                    return Sent.COLD
        except BlockingIOError:
            return Sent.BLOCKED
        return ALL_SENT

    def _send_buffers(self) -> bool:
        """Send buffers and small regions at the head with one call. Return whether all of them were sent."""
        pieces = self._pieces
        first = pieces[0]
        if len(pieces) == 1:
            assert isinstance(first, _BUFFERS)
            total = len(first)
            sent = self._transport.send(first)
        else:
            run: list[Buffer] = []
            total = 0
            flags = 0
            for number, piece in enumerate(pieces):
                if not isinstance(piece, _BUFFERS):
                    copied = _copied(piece) if total <= SMALL_BYTES else None
                    if copied is None:
                        flags = MSG_MORE if self._follows_at_once(piece) else 0
                        break
                    pieces[number] = piece = copied
                if len(run) == MAX_VECTORS:
                    break
                run.append(piece)
                total += len(piece)
            sent = self._transport.sendmsg(run, (), flags)
        self.size_bytes -= sent
        if sent == total:
            if len(pieces) == 1:
                pieces.clear()
            else:
                for _ in run:
                    pieces.popleft()
            return True
        while pieces:
            piece = pieces[0]
            assert isinstance(piece, _BUFFERS)
            if sent < len(piece):
                pieces[0] = memoryview(piece)[sent:]
                break
            sent -= len(piece)
            pieces.popleft()
        return False

    def _follows_at_once(self, region: FileRegion) -> bool:
        """Return whether the bytes of a region can be sent directly after the buffers before it.

        The buffers may wait for these bytes, but not for a worker that reads them from the disk.
        """
        if isinstance(region, CopiedRegion):
            return True
        count = min(region.size_bytes, WINDOW_BYTES)
        if not count or not self._is_resident(region.file.fileno(), region.position, count):
            self._warm_to = 0
            return False
        self._warm_to = region.position + count
        return True

    def _send_window(self, region: FileRegion) -> bool:
        """Send one window of the region at the head. Return False if the window is not in the page cache."""
        left = region.size_bytes - self._region_sent
        if left > 0:
            fd = region.file.fileno()
            position = region.position + self._region_sent
            count = min(left, WINDOW_BYTES)
            if position + count > self._warm_to and not self._is_resident(fd, position, count):
                return False
            sent = self._transport.send_region(fd, position, count)
            if sent == 0:
                raise RegionTruncated(f"file ends {plural(left, 'byte')} before the end of the region")
            self._region_sent += sent
            self.size_bytes -= sent
            left -= sent
        if left <= 0:
            self._pieces.popleft()
            self._region_sent = 0
            self._warm_to = 0
        return True

    def _is_resident(self, fd: int, position: int, count: int) -> bool:
        try:
            os.preadv(fd, [self._scratch], position + count - 1, NOWAIT)
            os.preadv(fd, [self._scratch], position, NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        return True

    def cold_window(self) -> tuple[Callable[[], None], int]:
        """Return work that reads the next window in a thread, and the window's end to pass to `warmed`."""
        region = self._pieces[0]
        assert isinstance(region, FileRegion)
        position = region.position + self._region_sent
        end = position + min(region.size_bytes - self._region_sent, WINDOW_BYTES)
        return lambda: _read_ahead(region, position, end), end

    def warmed(self, end: int) -> None:
        """Let `send` skip the probe up to `end`, because a thread has read that window ahead."""
        self._warm_to = end


def _copied(region: FileRegion) -> Buffer | None:
    """Return the bytes of a region if it is small and in the page cache, otherwise None."""
    if isinstance(region, CopiedRegion):
        return region.data
    if region.size_bytes > SMALL_BYTES:
        return None
    copied = bytearray(region.size_bytes)
    try:
        count = os.preadv(region.file.fileno(), [copied], region.position, NOWAIT)
    except OSError:
        return None  # the region is then sent by itself, which reports the error
    return copied if count == region.size_bytes else None


def _read_ahead(region: FileRegion, position: int, end: int) -> None:
    fd = region.file.fileno()
    read_ahead(fd, position, end - position)
    scratch = memoryview(bytearray(min(end - position, READ_AHEAD_BYTES)))
    while position < end:
        count = os.preadv(fd, [scratch[: end - position]], position)
        if count == 0:
            break  # the file was truncated; sendfile, in the loop's thread, reports that
        position += count
