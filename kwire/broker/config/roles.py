"""The roles of a node, and the quorum and listener settings that they require. KIP-500, KIP-853.

The rules are those of Apache Kafka 4.3.1, with one exception. A single node with both roles needs neither a
controller listener nor voters or bootstrap servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from kwire.broker.config.definition import ConfigError, Value
from kwire.broker.config.listeners import CONTROLLER_NAMES, LISTENERS, PROTOCOL_MAP, ListenerSettings
from kwire.wire.named_tuple import NamedTuple

ROLES: Final = "process.roles"
BROKER: Final = "broker"
CONTROLLER: Final = "controller"
VOTERS: Final = "controller.quorum.voters"
BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"


class Settings(Protocol):
    """The effective settings that the rules read."""

    @property
    def values(self) -> Mapping[str, Value]: ...
    @property
    def listeners(self) -> ListenerSettings: ...


class Voter(NamedTuple):
    """An entry of controller.quorum.voters."""

    voter_id: int
    host: str
    port: int


def parse_voters(entries: Sequence[str]) -> list[Voter]:
    """Parse `id@host:port` entries. Raises ConfigError for an invalid entry."""
    voters = []
    for entry in entries:
        text, at, address = entry.partition("@")
        found = _address(address)
        if not at or not text.isdigit() or found is None:
            raise ConfigError(f"{VOTERS} has {entry!r}: expected id@host:port")
        voters.append(Voter(int(text), *found))
    return voters


def parse_servers(entries: Sequence[str]) -> list[tuple[str, int]]:
    """Parse `host:port` entries. Raises ConfigError for an invalid entry."""
    servers = []
    for entry in entries:
        found = _address(entry)
        if found is None:
            raise ConfigError(f"{BOOTSTRAP} has {entry!r}: expected host:port")
        servers.append(found)
    return servers


def _address(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def check_roles(settings: Settings, node_id: int) -> None:
    """Raise ConfigError if quorum or listener settings do not fit the node's roles."""
    values = settings.values
    roles = cast("list[str]", values[ROLES])
    if not roles:
        raise ConfigError(f"{ROLES} is empty: set it to {BROKER}, {CONTROLLER}, or both")
    voters = [voter.voter_id for voter in parse_voters(cast("list[str]", values[VOTERS]))]
    servers = parse_servers(cast("list[str]", values[BOOTSTRAP]))
    is_alone = set(roles) == {BROKER, CONTROLLER}
    if not is_alone and not voters and not servers:
        raise ConfigError(
            f"If using {ROLES}, either {BOOTSTRAP} must contain the set of bootstrap controllers or {VOTERS} "
            f"must contain a parseable set of controllers."
        )
    if CONTROLLER in roles:
        if voters and node_id not in voters:
            _fail(
                f"If {ROLES} contains the 'controller' role, the node id {node_id} must be included in the "
                f"set of voters {VOTERS}=Set({', '.join(map(str, voters))})"
            )
    else:
        _check_broker(settings, node_id, voters)
    if BROKER not in roles and settings.listeners.broker_endpoints():
        _fail(
            f"The {LISTENERS} config must only contain KRaft controller listeners from "
            f"{CONTROLLER_NAMES} when {ROLES}={CONTROLLER}"
        )


def _check_broker(settings: Settings, node_id: int, voters: Sequence[int]) -> None:
    listeners = settings.listeners
    if node_id in voters:
        _fail(
            f"If {ROLES} contains just the 'broker' role, the node id {node_id} must not be included in the "
            f"set of voters {VOTERS}=Set({', '.join(map(str, voters))})"
        )
    if not listeners.controllers:
        _fail(
            f"{CONTROLLER_NAMES} must contain at least one value when running KRaft with just the broker role"
        )
    if any(endpoint.name in listeners.controllers for endpoint in listeners.endpoints):
        _fail(
            f"{CONTROLLER_NAMES} must not contain a value appearing in the '{LISTENERS}' configuration when "
            f"running KRaft with just the broker role"
        )
    for name in listeners.controllers:
        if name not in listeners.protocols:
            raise ConfigError(
                f"Controller listener with name {name} defined in {CONTROLLER_NAMES} not found in "
                f"{PROTOCOL_MAP}  (an explicit security mapping for each controller listener is required "
                f"if {PROTOCOL_MAP} is non-empty, or if there are security protocols other than PLAINTEXT "
                f"in use)"
            )


def _fail(text: str) -> None:
    raise ConfigError(f"requirement failed: {text}")
