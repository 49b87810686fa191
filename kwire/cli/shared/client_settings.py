"""Connection settings of a command, from its options and a client's properties file."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.client.security import PLAINTEXT, Security, parse_security
from kwire.wire.java_properties import load

DEFAULT_SERVER: Final = "127.0.0.1:9092"
DEFAULT_PORT: Final = 9092
CLIENT_ID: Final = "kwire-cli"
TIMEOUT_SECONDS: Final = 30.0
MAX_TIMEOUT_SECONDS: Final = 86_400
_SERVER: Final = re.compile(r"(?:[A-Za-z_]\w*://)?(?:\[([^\]]+)\]|([^:\[\]/]+))(?::(\d{1,5}))?")

Address = tuple[str, int]


class ClientSettings(NamedTuple):
    """Bootstrap servers, client id, timeout and security of a command."""

    servers: tuple[Address, ...]
    client_id: str = CLIENT_ID
    timeout_seconds: float = TIMEOUT_SECONDS
    properties: Mapping[str, str] = {}
    """The complete properties file, for commands that read other keys of it."""
    security: Security = PLAINTEXT

    def __repr__(self) -> str:
        servers = ",".join(map(str, self.servers))
        return f"ClientSettings({servers}, {self.client_id}, {self.timeout_seconds}, [hidden])"

    @property
    def request_timeout_ms(self) -> int:
        """The timeout in requests to a broker: shorter than the client's, so that the response arrives."""
        return int(900 * self.timeout_seconds)


def settings_from_options(options: Namespace) -> ClientSettings:
    """Return the settings that the connection options select. Raises CommandError."""
    properties = {} if options.command_config is None else read_properties(options.command_config)
    try:
        security = parse_security(properties)
    except ValueError as error:
        raise CommandError(f"{options.command_config}: {error}") from error
    given, what = options.bootstrap_server, "--bootstrap-server"
    if given is None and "bootstrap.servers" in properties:
        given, what = properties["bootstrap.servers"], f"bootstrap.servers of {options.command_config}"
    seconds = options.timeout
    if seconds is None:
        seconds = _milliseconds(properties, "default.api.timeout.ms", TIMEOUT_SECONDS)
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise UsageError(
            f"--timeout {seconds:g}: expected seconds, more than 0 and up to {MAX_TIMEOUT_SECONDS}"
        )
    servers = servers_of(DEFAULT_SERVER if given is None else given, what)
    return ClientSettings(servers, properties.get("client.id", CLIENT_ID), seconds, properties, security)


def servers_of(text: str, what: str = "--bootstrap-server") -> tuple[Address, ...]:
    """Parse a comma-separated list of HOST:PORT. `what` names its source in a UsageError."""
    servers = []
    for part in filter(None, map(str.strip, text.split(","))):
        found = _SERVER.fullmatch(part)
        port = int((found and found[3]) or DEFAULT_PORT)
        if found is None or not 0 < port < 65536:
            raise UsageError(f"{what} {part}: expected HOST:PORT, like {DEFAULT_SERVER}")
        servers.append((found[1] or found[2], port))
    if not servers:
        raise UsageError(f"{what} is empty: expected HOST:PORT, like {DEFAULT_SERVER}")
    return tuple(servers)


def read_properties(path: str) -> dict[str, str]:
    """Read a file in Java's properties format. Raises CommandError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return load(file.read())
    except OSError as error:
        raise CommandError(
            f"{path}: {error.strerror}: give the path of a client's properties file"
        ) from error
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from error


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Parse KEY=VALUE texts. Raises UsageError, which names `option`."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {text}: expected KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _milliseconds(properties: Mapping[str, str], key: str, default_seconds: float) -> float:
    text = properties.get(key)
    if text is None:
        return default_seconds
    if not text.strip().isdecimal():
        raise CommandError(f"{key}={text}: expected milliseconds")
    return int(text) / 1000
