"""Listening sockets and their names in the configuration."""

from __future__ import annotations

import errno
import socket

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config.listeners import MAX_PORT
from kwire.broker.net.socket_settings import SYSTEM_DEFAULT, SocketSettings

REASONS = {
    errno.EADDRINUSE: "the port is in use: stop the program that uses it, or set another port in {}",
    errno.EADDRNOTAVAIL: "this machine does not have the address: set one that it has, or 0.0.0.0, in {}",
    errno.EACCES: "only root may listen on this port: set a port of 1024 or above in {}",
}
"""The reason and the remedy for each errno, with the option or config key to change."""


class BindError(Exception):
    """A failure to bind a listener. The message names the listener and the reason."""


class Listener:
    """A listening socket and its name in the configuration."""

    def __init__(self, name: str, sock: socket.socket, role: ListenerRole) -> None:
        self.name = name
        self.role = role
        """The role (broker or controller) in which the node serves connections to this listener."""
        self.sock = sock
        self.fd = sock.fileno()
        host, port = sock.getsockname()[:2]
        self.host: str = host
        self.port: int = port
        self.accepting = False

    @property
    def address(self) -> str:
        """The bound address in the form `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(
    name: str, host: str, port: int, settings: SocketSettings, role: ListenerRole = ListenerRole.BROKER
) -> Listener:
    """Bind an address without listening yet. An empty host means all addresses. Raises BindError."""
    where = f"{host or '*'}:{port}"
    if not 0 <= port <= MAX_PORT:
        raise BindError(f"cannot listen on {where} (listener {name}): ports are from 0 to {MAX_PORT}")
    try:
        if not host:
            host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        # A host in bytes keeps Python from loading the IDNA tables, which would take 2 ms of the start.
        known = host if host.strip("0123456789.") else host.encode()
        found = socket.getaddrinfo(known, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except UnicodeError as error:
        raise BindError(f"cannot listen on {where} (listener {name}): no such host") from error
    except OSError as error:
        raise BindError(f"cannot listen on {where} (listener {name}): {error.strerror}") from error
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if settings.receive_buffer_bytes != SYSTEM_DEFAULT:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
        sock.bind(address)
    except OSError as error:
        sock.close()
        option = name if name.startswith("--") else "listeners"
        reason = REASONS.get(error.errno or 0, str(error.strerror)).format(option)
        raise BindError(f"cannot listen on {where} (listener {name}): {reason}") from error
    return Listener(name, sock, role)


def own_host_name() -> str:
    """Return the host name that this machine advertises, like Java's canonical name of the local host.

    The result is the name of the machine's address if that name resolves to the same address. Otherwise it
    is the address.
    """
    own_name = socket.gethostname()
    try:
        address = socket.gethostbyname(own_name)
    except OSError:
        return own_name
    try:
        name = socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
        return name if address in socket.gethostbyname_ex(name)[2] else address
    except OSError:
        return address
