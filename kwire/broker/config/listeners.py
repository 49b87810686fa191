"""Listeners: where a broker accepts connections, and what clients are told to connect to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kwire.broker.config.definition import ConfigError, invalid, parse_integer

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED_PROTOCOLS: Final = ("PLAINTEXT",)
META_ADDRESS: Final = "0.0.0.0"

_ENDPOINT: Final = re.compile(r"^([^:/]+)://(\[[0-9A-Fa-f:.%]*\]|[^\[\]:/,\s]*):(-?\d+)$")


class ListenerEndpoint(NamedTuple):
    """One listener: its name, and a host (empty for every interface) and port."""

    name: str
    host: str
    port: int


def parse_listeners(key: str, entries: Sequence[str]) -> list[ListenerEndpoint]:
    """Read `NAME://host:port` entries. ConfigError for one that is none, and for a name used twice."""
    endpoints: list[ListenerEndpoint] = []
    for entry in entries:
        match = _ENDPOINT.match(entry)
        if match is None:
            raise invalid(key, entry, "expected NAME://host:port, like PLAINTEXT://127.0.0.1:9092")
        port = int(match[3])
        if not 0 <= port <= 65535:
            raise invalid(key, entry, "a port is a number from 0 to 65535")
        endpoints.append(ListenerEndpoint(match[1].upper(), match[2].strip("[]"), port))
    names = [endpoint.name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise invalid(key, ",".join(entries), f"listener names must differ, {name} is there twice")
    return endpoints


def parse_protocol_map(key: str, text: str) -> dict[str, str]:
    """Read `NAME:PROTOCOL` pairs: listener name -> security protocol. ConfigError."""
    protocols: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = pair.rpartition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise invalid(key, text, f"expected NAME:PROTOCOL, with a protocol of {', '.join(PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol.upper()
    return protocols


def parse_counts(key: str, text: str) -> dict[str, int]:
    """Read `host:count` pairs. ConfigError, in Kafka's words where a pair has no colon or no number."""
    counts: dict[str, int] = {}
    for host, count in parse_pairs(key, text):
        number = parse_integer(count)
        if number is None:
            raise ConfigError(f'For input string: "{count}"')
        counts[host] = number
    return counts


def parse_pairs(key: str, text: str) -> list[tuple[str, str]]:
    """Read `left:right` pairs. ConfigError, in Kafka's words, where one has no colon."""
    pairs = re.split(r"\s*,\s*", text, flags=re.ASCII)
    while pairs and not pairs[-1]:
        pairs.pop()
    found: list[tuple[str, str]] = []
    for pair in pairs:
        left, colon, right = pair.rpartition(":")
        if not colon:
            raise ConfigError(
                f"Error parsing configuration property '{key}': begin 0, end -1, length {len(pair)}"
            )
        found.append((left.strip(), right.strip()))
    return found


def check_protocols(listeners: Sequence[ListenerEndpoint], protocols: Mapping[str, str]) -> None:
    """Every listener needs a protocol, and one that can be served. ConfigError."""
    for listener in listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise ConfigError(
                f"listeners has {listener.name}, which listener.security.protocol.map does not say "
                f"a protocol of"
            )
        if protocol not in SERVED_PROTOCOLS:
            raise ConfigError(
                f"listeners has {listener.name}, which asks for {protocol}, which is not served yet: "
                f"use {', '.join(SERVED_PROTOCOLS)}"
            )
