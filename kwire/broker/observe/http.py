"""The HTTP port of a node, served in the same trio run as the node's event loop. It is off by default.

    port = HttpPort("8080", read_socket_settings(config))
    async with serve(config, background=[port.serve]): ...

Hypercorn and Starlette are in the extra `console`, and are imported only with an HTTP port. A scrape of the
metrics runs in the event loop's thread, so scrapes and Kafka requests delay each other.
"""

from __future__ import annotations

import re
import secrets
import socket
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import trio

from kwire.broker.config.tls import TLS_PROTOCOLS
from kwire.broker.net.listeners import bind
from kwire.broker.net.socket_settings import SocketSettings
from kwire.broker.observe.ports import RunningNode
from kwire.broker.security.settings import requires_authentication

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.observe.tls_termination import TlsTermination

PACKAGES: Final = ("hypercorn", "starlette")
CONSOLE_PACKAGES: Final = ("jinja2",)
LOOPBACK: Final = "127.0.0.1"
OPEN_CONSOLE: Final = (
    "it has no authentication, and reads records with the broker's credentials, although every listener "
    "requires authentication: bind --http to 127.0.0.1, use --http-tls with a listener that has "
    "ssl.client.auth=required, or put an authenticating proxy in front of it"
)
UNENCRYPTED: Final = (
    "passwords pass unencrypted: use --http-tls, bind --http to 127.0.0.1, or put a proxy with TLS in front "
    "of the port"
)
CONSOLE_HOSTS: Final = (
    "ACLs see the address of this broker instead of the browser's: an ACL that allows access only from this "
    "machine also allows it through the console. Remove the host from such ACLs, or bind --http to 127.0.0.1"
)
BACKLOG: Final = 100
ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^\[\]:]+):)?(?P<port>\d{1,5})")


class HttpUnavailable(Exception):
    """A package that the HTTP port needs is not installed. The message names the package."""


def http_address(text: str) -> tuple[str, int]:
    """Parse `[HOST:]PORT`. The default host is 127.0.0.1. Raises ValueError for any other text."""
    found = ADDRESS.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"--http {text}: expected PORT or HOST:PORT, for example --http 8080 or --http 0.0.0.0:8080"
        )
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


def check_tls_listener(config: BrokerConfig, name: str) -> None:
    """Raise ValueError unless the node has a listener of this name, with TLS."""
    listeners = [one.name for one in (*config.listener_endpoints(), *config.controller_endpoints())]
    usable = [one for one in listeners if config.protocol(one) in TLS_PROTOCOLS]
    if name not in usable:
        why = "the listener has no TLS" if name in listeners else "the node has no such listener"
        choices = ", ".join(usable) or "none: add a listener with SSL or SASL_SSL to listeners"
        raise ValueError(f"--http-tls {name}: {why}. TLS listeners of this node: {choices}")


class HttpPort:
    """The HTTP port: a socket that is bound before the node starts, and that serves pages afterwards."""

    def __init__(
        self,
        address: str,
        settings: SocketSettings,
        *,
        console: bool = False,
        console_writes: bool = False,
        tls_listener: str = "",
    ) -> None:
        """Bind to `[HOST:]PORT`. With `console`, the port also serves the console.

        Without an authorizer, the console may change the cluster on a loopback port, and on other ports with
        `console_writes`. With `tls_listener`, which `check_tls_listener` has accepted, the port serves HTTPS
        with the certificates and `ssl.client.auth` of this listener.

        Raises ValueError for a malformed address, BindError if the address cannot be bound, and
        HttpUnavailable if a package is missing.
        """
        made_of = (*PACKAGES, *CONSOLE_PACKAGES) if console else PACKAGES
        missing = [name for name in made_of if find_spec(name) is None]
        if missing:
            option = "--console" if console else "--http"
            *others, last = missing
            names = f"{', '.join(others)} and {last}" if others else last
            raise HttpUnavailable(f"{option} needs {names}: pip install 'kwire[console]'")
        host, port = http_address(address)
        self._listener = bind("--http", host, port, settings)
        self._tls_listener = tls_listener
        self.url = f"{'https' if tls_listener else 'http'}://{self._listener.address}"
        self._is_local = ip_address(self._listener.host.partition("%")[0]).is_loopback
        self.console_url = f"{self.url}/console/" if console else ""
        self._console_writes = console_writes

    async def serve(self, running: RunningNode) -> None:
        """Serve the pages until canceled, then close the socket."""
        from kwire.broker.observe.app import pages
        from kwire.broker.observe.connection_router import ConnectionRouter
        from kwire.broker.observe.console import CONSOLE, ConsoleProcess
        from kwire.broker.observe.console_rate_limit import ConsoleRateLimit
        from kwire.broker.observe.http_login import HttpLogin, PageAccess
        from kwire.http.connections import ConnectionServer

        if running.broker is not None:
            running.broker.has_telemetry_receiver = True
        # Listen first, so that a caller who knows the port can connect at once.
        self._listener.sock.listen(BACKLOG)
        running.loop.logger("kwire.http").info("Listening on %s", self.url)
        tls = self._tls_termination(running)
        has_authorizer = running.node.gate.authorizer is not None
        login = HttpLogin(running, secrets.token_bytes(32), only_local=self._is_local)
        if has_authorizer and tls is None and not self._is_local and login.has_users():
            running.loop.logger("kwire.http").warning("Users can log in at %s, but %s", self.url, UNENCRYPTED)
        console = None
        if self.console_url:
            if has_authorizer and not self._is_local and login.has_users():
                running.loop.logger("kwire.http").warning(
                    "Users can log in to the web console at %s, but %s", self.console_url, CONSOLE_HOSTS
                )
            is_open = not has_authorizer and (tls is None or not tls.requires_certificates)
            if is_open and not self._is_local and requires_authentication(running.node.config):
                running.loop.logger("kwire.http").warning(
                    "Everyone can open the web console at %s: %s", self.console_url, OPEN_CONSOLE
                )
            console = ConsoleProcess(
                running,
                may_write=self._console_writes or self._is_local,
                writes_as_broker=self._console_writes,
                only_local_names=self._is_local,
                is_https=tls is not None,
            )
        app = pages(
            running,
            PageAccess(running, login),
            only_local_names=self._is_local,
            other_paths=[CONSOLE] if console is not None else [],
        )
        logger = running.loop.logger("kwire.http")
        connections = ConnectionServer(logger, is_https=tls is not None)
        router = ConnectionRouter(connections, app, console, ConsoleRateLimit(running), logger, tls)
        sock = socket.socket(fileno=self._listener.sock.detach())
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        try:
            await trio.serve_listeners(router.route, [listener])
        finally:
            if console is not None:
                console.close()

    def _tls_termination(self, running: RunningNode) -> TlsTermination | None:
        if not self._tls_listener:
            return None
        from kwire.broker.observe.tls_termination import TlsTermination

        return TlsTermination(running, self._tls_listener)

    def close(self) -> None:
        """Close the socket. Call this only if `serve` was not called."""
        self._listener.sock.close()
