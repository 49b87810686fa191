"""Listeners: addresses to bind and to advertise, security protocols, and dynamic changes. KIP-226.

The rules and messages for a running broker are those of Apache Kafka 4.3.1 in KRaft mode. A running broker
adds and removes listeners, which are identified by their names. The broker does not change the address of a
listener, and does not register again, so the advertised addresses are those at the start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, cast

from kwire.broker.config.definition import ConfigError, Value, invalid, parse_integer
from kwire.wire.named_tuple import NamedTuple

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
META_ADDRESS: Final = "0.0.0.0"
MAX_PORT: Final = 65_535

LISTENERS: Final = "listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
CONTROLLER_NAMES: Final = "controller.listener.names"
INTER_BROKER_NAME: Final = "inter.broker.listener.name"
ADVERTISED: Final = "advertised.listeners"

LISTENER_UPDATE_KEYS: Final = frozenset(
    {
        LISTENERS,
        PROTOCOL_MAP,
        "principal.builder.class",
        "max.connections",
        "max.connection.creation.rate",
        "num.network.threads",
    }
)
"""Keys whose changes make Kafka compare the listeners, besides the keys of SSL and SASL."""

EMPTY_NAME_FAULT: Final = "The provided listener name is null or empty string"

_STRICT_ENDPOINT: Final = re.compile(r"^([^:/]+)://(\[[0-9A-Fa-f:.%]*\]|[^\[\]:/,\s]*):(-?\d+)$")
_ENDPOINT: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


class ListenerEndpoint(NamedTuple):
    """One listener: its name, its host (empty for all interfaces) and its port."""

    name: str
    host: str
    port: int


def parse_listeners(key: str, entries: Sequence[str]) -> list[ListenerEndpoint]:
    """Parse `NAME://host:port` entries. Raises ConfigError for an invalid entry or a duplicate name."""
    endpoints: list[ListenerEndpoint] = []
    for entry in entries:
        match = _STRICT_ENDPOINT.match(entry)
        if match is None:
            raise invalid(key, entry, "expected NAME://host:port, like PLAINTEXT://127.0.0.1:9092")
        port = int(match[3])
        if not 0 <= port <= MAX_PORT:
            raise invalid(key, entry, f"the port must be a number from 0 to {MAX_PORT}")
        endpoints.append(ListenerEndpoint(match[1].upper(), match[2].strip("[]"), port))
    names = [endpoint.name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise invalid(key, ",".join(entries), f"listener names must differ, but {name} occurs twice")
    return endpoints


def parse_protocol_map(key: str, text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL` pairs into name -> security protocol. Raises ConfigError for an invalid pair."""
    protocols: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = pair.rpartition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise invalid(key, text, f"expected NAME:PROTOCOL with a protocol of {', '.join(PROTOCOLS)}")
        protocols[name.strip().upper()] = protocol.upper()
    return protocols


def parse_counts(key: str, text: str) -> dict[str, int]:
    """Parse `host:count` pairs. Raises ConfigError, with Kafka's message, for an invalid pair."""
    counts: dict[str, int] = {}
    for host, count in parse_pairs(key, text):
        number = parse_integer(count)
        if number is None:
            raise ConfigError(f'For input string: "{count}"')
        counts[host] = number
    return counts


def parse_pairs(key: str, text: str) -> list[tuple[str, str]]:
    """Parse `left:right` pairs. Raises ConfigError, with Kafka's message, for a pair without a colon."""
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


def check_protocol(listener: str, protocols: Mapping[str, str]) -> None:
    """Raise ConfigError for a listener without a security protocol."""
    if listener not in protocols:
        raise ConfigError(
            f"listeners has {listener}, but listener.security.protocol.map has no protocol for it"
        )


# --- effective listener settings


class ListenerSettings(NamedTuple):
    """The listener settings of a broker."""

    endpoints: list[ListenerEndpoint]
    advertised: list[ListenerEndpoint]
    """The endpoints of `advertised.listeners`, or else all endpoints."""
    protocols: dict[str, str]
    controllers: list[str]
    """The names of the controller listeners."""
    inter_broker: str

    def broker_endpoints(self) -> list[ListenerEndpoint]:
        """Return the endpoints of the broker listeners."""
        return [endpoint for endpoint in self.endpoints if endpoint.name not in self.controllers]

    def advertised_broker_names(self) -> list[str]:
        """Return the names of the advertised broker listeners."""
        return [endpoint.name for endpoint in self.advertised if endpoint.name not in self.controllers]


def read_listeners(settings: Mapping[str, str], values: Mapping[str, Value]) -> ListenerSettings:
    """Read the listener settings. Raises ConfigError if they are invalid."""
    entries = cast("list[str]", values[LISTENERS])
    controllers = [name.upper() for name in cast("list[str] | None", values[CONTROLLER_NAMES]) or ()]
    protocols: dict[str, str] = {}
    for name, protocol in parse_pairs(PROTOCOL_MAP, cast(str, values[PROTOCOL_MAP])):
        if not name:
            raise ConfigError(EMPTY_NAME_FAULT)
        if protocol.upper() not in PROTOCOLS:
            raise ConfigError(f"Invalid security protocol `{protocol}` defined in {PROTOCOL_MAP}")
        protocols[name.upper()] = protocol.upper()
    if PROTOCOL_MAP not in settings and not _names_secure_protocol([*controllers, *_names(entries)]):
        # KIP-595: without an explicit map, controller listeners use PLAINTEXT.
        protocols |= {name: "PLAINTEXT" for name in controllers if name != "PLAINTEXT"}
    endpoints = _endpoints(entries, protocols, distinct_ports=True)
    advertised = cast("list[str] | None", values[ADVERTISED])
    return ListenerSettings(
        endpoints,
        _endpoints(advertised, protocols, distinct_ports=False) if advertised else endpoints,
        protocols,
        controllers,
        cast(str, values[INTER_BROKER_NAME] or values["security.inter.broker.protocol"]).upper(),
    )


def _names(entries: Iterable[str]) -> list[str]:
    for entry in entries:
        if ":" not in entry:
            raise ConfigError(f"Unable to parse a listener name from {entry}")
    return [entry.partition(":")[0].upper() for entry in entries]


def _names_secure_protocol(names: Iterable[str]) -> bool:
    return any(name in PROTOCOLS and name != "PLAINTEXT" for name in names)


def _endpoints(
    entries: list[str], protocols: Collection[str], *, distinct_ports: bool
) -> list[ListenerEndpoint]:
    shown = f"[{', '.join(entries)}]"
    endpoints: list[ListenerEndpoint] = []
    for entry in entries:
        match = _ENDPOINT.fullmatch(entry)
        if match is None:
            fault: str | None = f"Unable to parse {entry} to a broker endpoint"
        elif not match[1].strip():
            fault = EMPTY_NAME_FAULT
        elif match[1].upper() not in protocols:
            fault = f"No security protocol defined for listener {match[1].upper()}"
        elif not -(1 << 31) <= int(match[3]) < 1 << 31:
            fault = f'For input string: "{match[3]}"'
        else:
            endpoints.append(ListenerEndpoint(match[1].upper(), match[2], int(match[3])))
            continue
        raise ConfigError(f"Error creating broker listeners from '{shown}': {fault}")
    if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
        fault = f"Each listener must have a different name, listeners: {shown}"
    else:
        fault = _ports_error(endpoints, shown) if distinct_ports else None
    if fault is not None:
        raise ConfigError(f"Error creating broker listeners from '{shown}': {fault}")
    return endpoints


def _ports_error(endpoints: list[ListenerEndpoint], shown: str) -> str | None:
    """Return an error if listeners share a port and are not one IPv4 and one IPv6 address. KIP-797."""
    taken = sorted((endpoint for endpoint in endpoints if endpoint.port != 0), key=lambda one: one.port)
    for port, sharing in groupby(taken, key=lambda endpoint: endpoint.port):
        hosts = [endpoint.host for endpoint in sharing]
        if len(hosts) == 1:
            continue
        versions = [version for version in map(_ip_version, hosts) if version is not None]
        if len(hosts) - len(versions) > 1:
            return f"Each listener must have a different port, listeners: {shown}"
        if len(versions) == 2:
            if len(hosts) > 2 or versions[0] == versions[1]:
                return (
                    "If you have two listeners on the same port then one needs to be IPv4 and the other "
                    f"IPv6, listeners: {shown}, port: {port}"
                )
        elif versions:
            return (
                "Each listener must have a different port unless exactly one listener has an IPv4 address "
                f"and the other IPv6 address, listeners: {shown}, port: {port}"
            )
    return None


def _ip_version(host: str) -> int | None:
    import ipaddress  # needed only if two listeners share a port

    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


# --- all effective settings


def check_listener_names(listeners: ListenerSettings, *, is_broker: bool, is_controller: bool) -> None:
    """Raise ConfigError if other settings name a listener that does not exist."""
    names = [endpoint.name for endpoint in listeners.endpoints]
    advertised = listeners.advertised_broker_names()
    there = f"appearing in the '{LISTENERS}' configuration when running the KRaft controller role"
    offered = {*names, *(endpoint.name for endpoint in listeners.advertised)}
    if is_controller:
        # Unlike in Kafka, a single node with both roles needs no controller listener.
        if listeners.controllers and not any(name in offered for name in listeners.controllers):
            _fail(f"{CONTROLLER_NAMES} must contain at least one value {there}")
        if not all(name in names for name in listeners.controllers):
            _fail(f"{CONTROLLER_NAMES} must only contain values {there}")
    if not is_broker:
        return
    if not advertised:
        _fail(
            "There must be at least one broker advertised listener. "
            f"Perhaps all listeners appear in {CONTROLLER_NAMES}?"
        )
    if listeners.inter_broker not in advertised:
        _fail(
            f"{INTER_BROKER_NAME} must be a listener name defined in {ADVERTISED}. The valid options "
            f"based on currently configured listeners are {','.join(advertised)}"
        )
    if not set(advertised) <= set(names):
        _fail(
            f"{ADVERTISED} listener names must be equal to or a subset of the ones defined in {LISTENERS}. "
            f"Found {','.join(advertised)}. The valid options based on the current configuration "
            f"are {','.join(names)}"
        )


def check_advertised_addresses(listeners: ListenerSettings) -> None:
    """Raise ConfigError if a broker listener advertises an address that clients cannot connect to."""
    reachable = [endpoint for endpoint in listeners.advertised if endpoint.name not in listeners.controllers]
    if any(endpoint.host == META_ADDRESS for endpoint in reachable):
        _fail(
            f"{ADVERTISED} cannot use the nonroutable meta-address {META_ADDRESS}. Use a routable IP address."
        )


def _fail(text: str) -> None:
    raise ConfigError(f"requirement failed: {text}")


# --- changes of the effective settings


def affects_listeners(changed: Collection[str]) -> bool:
    """Return whether Kafka compares the listeners after a change of these keys."""
    return any(name in LISTENER_UPDATE_KEYS or name.startswith(("ssl.", "sasl.")) for name in changed)


def listener_update_error(
    old: ListenerSettings,
    new: ListenerSettings,
    static_settings: Mapping[str, str],
    settings: Mapping[str, str],
    dynamic_keys: Collection[str],
) -> str | None:
    """Return the reason why a running broker cannot change its listeners from `old` to `new`.

    `settings` are the new effective settings. `dynamic_keys` are the listener keys that can change while the
    listener exists.
    """
    names = [endpoint.name for endpoint in new.endpoints]
    advertised = old.advertised_broker_names()
    if not set(advertised) <= set(names):
        # Kafka compares with the current advertised listeners. Without `advertised.listeners` these are all
        # listeners, so listeners can be added but not removed.
        found, listed = _scala_set(advertised), _scala_set(names)
        return f"Advertised listeners '{found}' must be a subset of listeners '{listed}'"
    for name in names:
        if name not in [endpoint.name for endpoint in old.endpoints]:
            continue
        if _fixed_settings(static_settings, name, dynamic_keys) != _fixed_settings(
            settings, name, dynamic_keys
        ):
            return (
                f"Configs cannot be updated dynamically for existing listener ListenerName({name}), "
                "restart broker or create a new listener for update"
            )
        if old.protocols[name] != new.protocols[name]:
            return f"Security protocol cannot be updated for existing listener ListenerName({name})"
    return None


def _scala_set(names: Iterable[str]) -> str:
    return f"Set({', '.join(f'ListenerName({name})' for name in names)})"


def _fixed_settings(
    settings: Mapping[str, str], listener: str, dynamic_keys: Collection[str]
) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}."
    return {
        name: text
        for name, text in settings.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in dynamic_keys
    }
