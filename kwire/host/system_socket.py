"""Sockets, safe from libraries that replace or block them in tests.

pytest-socket and others replace names in the module `socket`, which is written in Python. This module uses
the class and the function in C below it.
"""

from __future__ import annotations

import _socket
from errno import ECONNABORTED
from typing import Any

Socket = _socket.socket
getaddrinfo = _socket.getaddrinfo


def accept(listener: Socket) -> tuple[Socket, Any]:
    """Accept a connection, and return its socket and the address of the peer. Raises OSError."""
    descriptor, address = listener._accept()  # type: ignore[attr-defined]
    sock = Socket(listener.family, listener.type, listener.proto, descriptor)
    if not address:  # macOS returns a connection that was reset before it was accepted, without an address
        sock.close()
        raise ConnectionAbortedError(ECONNABORTED, "the peer has reset the connection")
    return sock, address


def connect(host: str, port: int, timeout_seconds: float) -> Socket:
    """Open a TCP connection, and keep the timeout for its socket. Raises OSError."""
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in getaddrinfo(host, port, 0, _socket.SOCK_STREAM):
        sock = Socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_seconds)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure
