"""Listening sockets and their names in the configuration."""

from __future__ import annotations

import errno
import socket

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.config.listeners import MAX_PORT
from kwire.broker.net.socket_settings import SYSTEM_DEFAULT, SocketSettings
from kwire.host.system_socket import Socket, getaddrinfo

REASONS = {
    errno.EADDRINUSE: "the port is in use: stop the program that uses it, or set another port in {}",
    errno.EADDRNOTAVAIL: "this machine does not have the address: set one that it has, or 0.0.0.0, in {}",
    errno.EACCES: "only root may listen on this port: set a port of 1024 or above in {}",
    errno.EMFILE: "too many open files: raise the limit of file descriptors of this process (ulimit -n)",
}
"""The reason and the remedy for each errno; `{}` is the option or configuration key to change."""


class BindError(Exception):
    """A listener cannot be opened. The message names its address and the reason."""


class Listener:
    """A socket that is bound to an address, with the name of its listener."""

    def __init__(self, name: str, sock: Socket, role: ListenerRole) -> None:
        self.name = name
        self.role = role
        """Whether the node serves connections to this listener as a broker or as a controller."""
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
    """Bind an address, without listening yet. An empty host means all addresses.

    `name` is the listener name, or the command-line option that sets the address. Raises BindError if the
    address is invalid, unknown or in use.
    """
    where = f"{host or '*'}:{port}"
    if not 0 <= port <= MAX_PORT:
        raise BindError(f"cannot listen on {where} (listener {name}): ports are from 0 to {MAX_PORT}")
    try:
        if not host:
            host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        # An IP address in bytes keeps Python from loading the IDNA tables, which takes 2 ms.
        known = host if host.strip("0123456789.") else host.encode()
        found = getaddrinfo(known, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        sock = Socket(family, socket.SOCK_STREAM)
    except UnicodeError as error:
        raise BindError(f"cannot listen on {where} (listener {name}): no such host") from error
    except OSError as error:
        raise bind_error(name, where, error) from error
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
        raise bind_error(name, where, error) from error
    return Listener(name, sock, role)


def bind_error(name: str, where: str, error: OSError) -> BindError:
    """Return the error of a listener that cannot use the address `where`, with what to do about it."""
    option = name if name.startswith("--") else "listeners"
    reason = REASONS.get(error.errno or 0, str(error.strerror)).format(option)
    return BindError(f"cannot listen on {where} (listener {name}): {reason}")


def own_host_name() -> str:
    """Return the host name to advertise, as Java's InetAddress.getLocalHost().getCanonicalHostName().

    The result is the name that DNS has for this machine's address, if that name resolves to the address.
    Otherwise it is the address, or the machine's own name if that name has no address.
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
