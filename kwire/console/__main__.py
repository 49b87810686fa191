"""The process of a console: it answers the connections that it is handed, until who started it has gone."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence

import trio

from kwire.broker.security.settings import Credentials
from kwire.client.security import PLAINTEXT, Security
from kwire.console.app import Console
from kwire.console.handover import serve_connections
from kwire.console.page import CLIENT_ID, ConsoleSettings
from kwire.host.loggers import NodeLogger, node_name
from kwire.http.hosts import NOT_LOCAL_MESSAGE, HostFilter, is_known_name, is_local_name

NICENESS = 10
"""Whoever reads what brokers have written can wait for who writes, but not for ever.

On a machine that has no time to spare somebody wants to see why. With 19, beside forty busy processes, no
page came within a minute.
"""
UNKNOWN_HOST_MESSAGE = (
    "ask for this console by an address of its machine, or by a host that its broker advertises\n"
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m kwire.console", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a socket by which connections are handed over")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--client-id", default=CLIENT_ID, help="what brokers know it by")
    parser.add_argument("--node-id", type=int, default=-1)
    parser.add_argument("--log-dir", action="append", default=[])
    parser.add_argument(
        "--host", action="append", default=[], help="for whom it may be asked, beside addresses"
    )
    parser.add_argument(
        "--only-local-names", action="store_true", help="it may be asked for as localhost alone"
    )
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--credentials-fd", type=int, help="where it reads as whom it asks")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the broker, which ends this
    os.nice(NICENESS)
    settings = ConsoleSettings(
        options.bootstrap_server,
        options.node_id,
        tuple(options.log_dir),
        may_write=not options.read_only,
        client_id=options.client_id,
        security=PLAINTEXT if options.credentials_fd is None else _security(options.credentials_fd),
    )
    names = {socket.gethostname(), *options.host}
    trio.run(_serve, settings, socket.socket(fileno=options.fd), None if options.only_local_names else names)


async def _serve(settings: ConsoleSettings, channel: socket.socket, names: set[str] | None) -> None:
    """`names`: of this host, beside its addresses; None where only local names are."""
    with Console(settings, secrets.token_urlsafe(24)) as console:
        app = console.app()
        if names is None:
            app = HostFilter(app, is_local_name, NOT_LOCAL_MESSAGE)
        else:
            app = HostFilter(app, lambda host: is_known_name(host, names), UNKNOWN_HOST_MESSAGE)
        logger = NodeLogger("kwire.http", node_name(settings.node_id))
        handed = trio.socket.from_stdlib_socket(channel)
        # At once: nobody waits for what its threads have begun.
        await serve_connections(handed, app, lambda: os._exit(0), logger)


def _security(fd: int) -> Security:
    with open(fd, encoding="utf-8") as file:
        found = json.load(file)
    return PLAINTEXT if found is None else Security(None, Credentials(*found))


if __name__ == "__main__":
    main(sys.argv[1:])
