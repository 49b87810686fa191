"""Options of sockets that differ between Linux and macOS."""

from __future__ import annotations

import socket
import sys
from typing import Final

from kwire.host.system_socket import Socket

if sys.platform == "darwin":
    MSG_MORE: Final = 0
    """The flag of send that delays data until more follows. macOS has none."""
    LOSES_DESCRIPTORS: Final = True
    """Whether a descriptor that was sent to a process may be lost if the sender closes it too early."""
    MSG_NOSIGNAL: Final = 0
    """The flag of send that prevents SIGPIPE. See `prevent_sigpipe`."""
    _SO_NOSIGPIPE: Final = 0x1022
    """The option is not in Python's module `socket`."""

    def prevent_sigpipe(sock: Socket) -> None:
        """Let sends to a closed peer fail with EPIPE instead of SIGPIPE, where no flag of send does that."""
        sock.setsockopt(socket.SOL_SOCKET, _SO_NOSIGPIPE, 1)

elif sys.platform == "linux":
    MSG_MORE: Final = socket.MSG_MORE
    """The flag of send that delays data until more follows."""
    LOSES_DESCRIPTORS: Final = False
    """Whether a descriptor that was sent to a process may be lost if the sender closes it too early."""
    MSG_NOSIGNAL: Final = socket.MSG_NOSIGNAL
    """The flag of send that prevents SIGPIPE."""

    def prevent_sigpipe(sock: Socket) -> None:
        """Let sends to a closed peer fail with EPIPE instead of SIGPIPE, where no flag of send does that."""
