"""The process of a console: it serves a socket that it is handed, until who started it closes its input."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from kwire.broker.security.settings import Credentials
from kwire.client.security import PLAINTEXT, Security
from kwire.console.app import Console
from kwire.console.asked import CLIENT_ID, Place

NICENESS = 10
"""Whoever reads what brokers have written can wait for who writes, but not for ever.

On a machine that has no time to spare somebody wants to see why. With 19, beside forty busy processes, no
page came within a minute.
"""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m kwire.console", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a socket that listens")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--client-id", default=CLIENT_ID, help="what brokers know it by")
    parser.add_argument("--node-id", type=int, default=-1)
    parser.add_argument("--log-dir", action="append", default=[])
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--credentials-fd", type=int, help="where it reads as whom it asks")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the broker, which ends this
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(NICENESS)
    place = Place(
        options.bootstrap_server,
        options.node_id,
        tuple(options.log_dir),
        may_write=not options.read_only,
        client_id=options.client_id,
        security=PLAINTEXT if options.credentials_fd is None else _security(options.credentials_fd),
    )
    config = Config()
    config.bind = [f"fd://{options.fd}"]
    config.include_server_header = config.include_date_header = False  # whoever passes it on says so
    config.loglevel = "WARNING"
    trio.run(_serve, place, config)


async def _serve(place: Place, config: Config) -> None:
    with Console(place, secrets.token_urlsafe(24)) as console:
        await serve(console.app(), config)  # type: ignore[arg-type]


def _security(fd: int) -> Security:
    with open(fd, encoding="utf-8") as file:
        found = json.load(file)
    return PLAINTEXT if found is None else Security(None, Credentials(*found))


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
