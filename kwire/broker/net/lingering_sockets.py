"""Sockets of failed handshakes, which stay open until the peer has had time to receive the alert.

If a socket is closed while it has unread bytes, the kernel resets the connection, and the peer may lose what
was sent before. A client that loses the alert takes the failure for a lost connection, and tries again.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from kwire.host.platform.events import READABLE

if TYPE_CHECKING:
    from kwire.broker.net.loop import Loop
    from kwire.host.host import Timer
    from kwire.host.system_socket import Socket

MAX_SOCKETS: Final = 64
"""The number of lingering sockets. A further one closes the oldest."""
LINGER_MS: Final = 2_000
"""The time after which a socket is closed whose peer has not closed the connection."""
MAX_DRAINED_BYTES: Final = 256 << 10
"""The bytes that are received from a peer and dropped, before the socket is closed nevertheless."""


class LingeringSockets:
    """Sockets whose connections are closed, except that the peer has not confirmed the end."""

    def __init__(self, loop: Loop, scratch: memoryview) -> None:
        """`scratch` is a buffer for bytes that nothing will read."""
        self._loop = loop
        self._scratch = scratch
        self._sockets: dict[int, _LingeringSocket] = {}
        """By descriptor, in the order in which they were added."""

    def __len__(self) -> int:
        return len(self._sockets)

    def add(self, sock: Socket) -> None:
        """End sending, and close the socket once the peer has closed it or a limit is reached."""
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()  # the peer has closed the connection
            return
        if len(self._sockets) >= MAX_SOCKETS:
            self._close(next(iter(self._sockets)))
        fd = sock.fileno()
        timer = self._loop.internode_clock.schedule(LINGER_MS, lambda: self._close(fd))
        self._sockets[fd] = _LingeringSocket(sock, timer)
        self._loop.watch(fd, READABLE, lambda mask: self._drain(fd))

    def close_all(self) -> None:
        for fd in list(self._sockets):
            self._close(fd)

    def _drain(self, fd: int) -> None:
        lingering = self._sockets[fd]
        try:
            count = lingering.sock.recv_into(self._scratch)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        lingering.drained_bytes += count
        if not count or lingering.drained_bytes >= MAX_DRAINED_BYTES:
            self._close(fd)

    def _close(self, fd: int) -> None:
        lingering = self._sockets.pop(fd)
        lingering.timer.cancel()
        self._loop.unwatch(fd)
        lingering.sock.close()


class _LingeringSocket:
    __slots__ = ("drained_bytes", "sock", "timer")

    def __init__(self, sock: Socket, timer: Timer) -> None:
        self.sock = sock
        self.timer = timer
        self.drained_bytes = 0
