"""Replies on their way out of one socket: buffers and file regions, in order, never blocking.

Small buffers leave together in one call, and small regions with them: to copy one costs less than to send
it by itself. A buffer in front of a larger region is sent with MSG_MORE, so that the kernel puts header and
data into the same segments; the region then goes from the page cache to the socket by sendfile.

sendfile waits for the disk when the data is not in the page cache, and would hold back every connection. So
the two ends of each window are asked for first with RWF_NOWAIT (0.6 µs); when one is not there, the caller
lets a thread read the window ahead.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from kwire.broker.storage.disk import FileRegion
from kwire.wire.primitives import Buffer

Piece = Buffer | FileRegion

WINDOW_BYTES = 1 << 20
"""How much of a region is sent, and asked for, at a time."""
TURN_BYTES = 4 << 20
"""How much one connection may send in one turn."""
READ_AHEAD_BYTES = 256 << 10
SMALL_BYTES = 64 << 10
"""Regions up to this size are copied, as long as what leaves with them is no more than that either."""
MAX_VECTORS = 256

_BUFFERS = (bytes, bytearray, memoryview)


class Sent(Enum):
    """Where a send stopped."""

    ALL = "nothing is left"
    BLOCKED = "the socket takes no more now"
    TURN_OVER = "there is more, but it is the others' turn"
    COLD = "the next window has to be read from the disk first"


ALL_SENT: Final = Sent.ALL
"""For what each reply asks: a member of an enumeration takes six times as long to look up."""


class RegionTruncated(Exception):
    """A file ends before the region that was promised to the peer."""


class SendQueue:
    """What one connection has still to send."""

    __slots__ = ("_pieces", "_region_sent", "_scratch", "_sock", "_warm_to", "size_bytes")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pieces: deque[Piece] = deque()
        self._region_sent = 0
        self._warm_to = 0
        self._scratch = bytearray(1)
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def extend(self, pieces: Iterable[Piece], size_bytes: int) -> None:
        """Queue pieces that are `size_bytes` long together."""
        self._pieces.extend(pieces)
        self.size_bytes += size_bytes

    def clear(self) -> None:
        self._pieces.clear()
        self.size_bytes = 0

    def send(self) -> Sent:
        """Send what the socket takes. OSError: the connection is gone. RegionTruncated: it must go."""
        pieces = self._pieces
        goal = self.size_bytes - TURN_BYTES
        try:
            while pieces:
                if self.size_bytes <= goal:
                    return Sent.TURN_OVER
                if isinstance(pieces[0], _BUFFERS):
                    if not self._send_buffers():
                        return Sent.BLOCKED
                elif not self._send_window(pieces[0]):
                    return Sent.COLD
        except BlockingIOError:
            return Sent.BLOCKED
        return ALL_SENT

    def _send_buffers(self) -> bool:
        """Send what is in memory at the head, and small regions, by one call; False when it took less."""
        pieces = self._pieces
        first = pieces[0]
        if len(pieces) == 1:
            assert isinstance(first, _BUFFERS)
            total = len(first)
            sent = self._sock.send(first)
        else:
            run: list[Buffer] = []
            total = 0
            flags = 0
            for number, piece in enumerate(pieces):
                if not isinstance(piece, _BUFFERS):
                    copied = _copied(piece) if total <= SMALL_BYTES else None
                    if copied is None:
                        flags = socket.MSG_MORE
                        break
                    pieces[number] = piece = copied
                if len(run) == MAX_VECTORS:
                    break
                run.append(piece)
                total += len(piece)
            sent = self._sock.sendmsg(run, (), flags)
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

    def _send_window(self, region: FileRegion) -> bool:
        """Send one window of the region at the head; False when it is not in memory."""
        left = region.size_bytes - self._region_sent
        if left > 0:
            fd = region.file.fileno()
            position = region.position + self._region_sent
            count = min(left, WINDOW_BYTES)
            if position + count > self._warm_to and not self._is_resident(fd, position, count):
                return False
            sent = os.sendfile(self._sock.fileno(), fd, position, count)
            if sent == 0:
                raise RegionTruncated(f"file ends {left} bytes before the end of the region")
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
            os.preadv(fd, [self._scratch], position + count - 1, os.RWF_NOWAIT)
            os.preadv(fd, [self._scratch], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        return True

    def cold_window(self) -> tuple[Callable[[], None], int]:
        """Work for a thread that reads the next window into the page cache; and its end, for `warmed`."""
        region = self._pieces[0]
        assert isinstance(region, FileRegion)
        position = region.position + self._region_sent
        end = position + min(region.size_bytes - self._region_sent, WINDOW_BYTES)
        return lambda: _read_ahead(region, position, end), end

    def warmed(self, end: int) -> None:
        """The window up to `end` was read: send it without asking again."""
        self._warm_to = end


def _copied(region: FileRegion) -> bytearray | None:
    """The bytes of a region that is small and in memory."""
    if region.size_bytes > SMALL_BYTES:
        return None
    copied = bytearray(region.size_bytes)
    try:
        count = os.preadv(region.file.fileno(), [copied], region.position, os.RWF_NOWAIT)
    except OSError:
        return None  # sending it by itself tells what is wrong
    return copied if count == region.size_bytes else None


def _read_ahead(region: FileRegion, position: int, end: int) -> None:
    fd = region.file.fileno()
    os.posix_fadvise(fd, position, end - position, os.POSIX_FADV_WILLNEED)
    scratch = memoryview(bytearray(min(end - position, READ_AHEAD_BYTES)))
    while position < end:
        count = os.preadv(fd, [scratch[: end - position]], position)
        if count == 0:
            break  # truncated: sendfile will find out, on the loop
        position += count
