"""A check before Spark starts that brokers are reachable. Kafka clients would retry without a message."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterator
from typing import Final

from kwire.pipeline.config import ConfigError

SECONDS: Final = 12.0
_PAUSE_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 4.0
_PORT: Final = 9092
_ADDRESS: Final = re.compile(r"(?:\w+://)?(?:\[(?P<ip>[^]]+)\]|(?P<host>[^:/\s]+))(?::(?P<port>\d{1,5}))?")


def check_reachable(key: str, servers: str, seconds: float = SECONDS) -> None:
    """Raise ConfigError if no address in `servers` accepts a connection within `seconds`.

    Also raises ConfigError if `servers` is malformed. `key` is the configuration key in the message.
    """
    addresses = list(_addresses(key, servers))
    deadline = time.monotonic() + seconds
    while True:
        for address in addresses:
            left = deadline - time.monotonic()
            with (
                contextlib.suppress(OSError, OverflowError, UnicodeError),
                socket.create_connection(address, max(0.1, min(left, _CONNECT_SECONDS))),
            ):
                return
        if time.monotonic() + _PAUSE_SECONDS > deadline:
            raise ConfigError(f"cannot connect to {servers}: check {key}, and that a broker runs there")
        time.sleep(_PAUSE_SECONDS)


def _addresses(key: str, servers: str) -> Iterator[tuple[str, int]]:
    for part in servers.split(","):
        if part.strip():
            match = _ADDRESS.fullmatch(part.strip())
            if match is None:
                raise ConfigError(f"{key} must be a list like 'one:9092,two:9092', not {servers!r}")
            yield match["ip"] or match["host"], int(match["port"] or _PORT)
