"""Entry point of the console process, which runs until the broker's process has ended."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from kwire.broker.security.settings import Credentials
from kwire.client.security import PLAINTEXT, Security
from kwire.console.app import Console
from kwire.console.handover import serve_connections
from kwire.console.page import CLIENT_ID, Access, ConsoleSettings, ListenerAddress, Login
from kwire.host.loggers import NodeLogger, node_name
from kwire.http.hosts import NOT_LOCAL_MESSAGE, HostFilter, is_known_name, is_local_name

if TYPE_CHECKING:
    import ssl

NICENESS = 10
"""Niceness of the process: brokers come first, but pages still load on a busy machine.

With niceness 19, no page was served within a minute beside forty busy processes.
"""
UNKNOWN_HOST_MESSAGE = "unknown host: use an address of this machine, or a host that its broker advertises\n"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m kwire.console", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a socket that passes connections")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--client-id", default=CLIENT_ID, help="client id of the console's requests")
    parser.add_argument("--node-id", type=int, default=-1)
    parser.add_argument("--log-dir", action="append", default=[])
    parser.add_argument(
        "--host", action="append", default=[], help="accepted host name in URLs, besides addresses"
    )
    parser.add_argument(
        "--only-local-names", action="store_true", help="accept only localhost and loopback addresses in URLs"
    )
    parser.add_argument("--https", action="store_true", help="clients of the connections use TLS")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--security-fd", type=int, help="a file with TLS settings and credentials")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the broker, which then stops this process
    os.nice(NICENESS)
    security, access = PLAINTEXT, None
    if options.security_fd is not None:
        security, access = _read_security(options.security_fd)
    settings = ConsoleSettings(
        options.bootstrap_server,
        options.node_id,
        tuple(options.log_dir),
        may_write=not options.read_only,
        client_id=options.client_id,
        security=security,
        access=access,
    )
    names = {socket.gethostname(), *options.host}
    accepted = None if options.only_local_names else names
    trio.run(_serve, settings, socket.socket(fileno=options.fd), accepted, options.https)


async def _serve(
    settings: ConsoleSettings,
    channel: socket.socket,
    names: set[str] | None,
    is_https: bool,
) -> None:
    """Serve connections. `names` are the accepted host names, or None for local names only."""
    with Console(settings, secrets.token_urlsafe(24)) as console:
        app = console.app()
        if names is None:
            app = HostFilter(app, is_local_name, NOT_LOCAL_MESSAGE)
        else:
            app = HostFilter(app, lambda host: is_known_name(host, names), UNKNOWN_HOST_MESSAGE)
        logger = NodeLogger("kwire.http", node_name(settings.node_id))
        handed = trio.socket.from_stdlib_socket(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.expire_sessions)
            # Exit without waiting for threads.
            await serve_connections(handed, app, lambda: os._exit(0), logger, is_https=is_https)
            nursery.cancel_scope.cancel()


def _read_security(fd: int) -> tuple[Security, Access | None]:
    """Read what the broker passes: the console's own security or, with an authorizer, that of its users."""
    with open(fd, encoding="utf-8") as file:
        found = json.load(file)
    access = None
    if (given := found["access"]) is not None:
        logins = tuple(Login(one["mechanism"], _listener(one)) for one in given["logins"])
        access = Access(logins, None if given["anonymous"] is None else _listener(given["anonymous"]))
    credentials = None if found["credentials"] is None else Credentials(*found["credentials"])
    return Security(_context(found["tls"]), credentials), access


def _listener(found: Mapping[str, Any]) -> ListenerAddress:
    return ListenerAddress(found["servers"], _context(found["tls"]))


def _context(settings: Mapping[str, str] | None) -> ssl.SSLContext | None:
    if settings is None:
        return None
    from kwire.client.tls import create_context

    return create_context(settings)


if __name__ == "__main__":
    main(sys.argv[1:])
