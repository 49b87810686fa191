"""Which nodes a cluster on this machine is to have, and what their properties say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kwire.broker.config.roles import BOOTSTRAP, BROKER, CONTROLLER, VOTERS
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.wire.named_tuple import NamedTuple

FIRST_CONTROLLER: Final = 100
"""The id of the first node that is only a controller."""
MAX_BROKERS: Final = 32
MAX_CONTROLLERS: Final = 7
MAX_REPLICAS: Final = 3
DEFAULT: Final = 3
"""How many there are of what is not said."""

Roles = tuple[str, ...]
BOTH: Final = (BROKER, CONTROLLER)


class NodeCounts(NamedTuple):
    """How many nodes 'up' was asked for; None where it was not said."""

    brokers: int | None = None
    """All that are brokers, those that are controllers, too, among them."""
    controllers: int | None = None
    """Those that are nothing else."""
    combined: int | None = None
    """Those that are both."""

    def nodes(self, known: Mapping[int, Roles]) -> dict[int, Roles]:
        """All nodes that there are to be, with their roles; `known` are there already. Failure."""
        both = [each for each, roles in known.items() if roles == BOTH]
        alone = [each for each, roles in known.items() if roles == (CONTROLLER,)]
        brokers = len(known) - len(alone)
        if (self.combined and (self.controllers or alone)) or (self.controllers and both):
            raise UsageError(
                "the controllers of a cluster are brokers, too, or none of them is: give either --combined "
                "or --controllers, and what the cluster began with"
            )
        combined = _node_count("--combined", self.combined, len(both), MAX_CONTROLLERS, "of both")
        if not known and self[:2] == (None, None):
            combined = combined or DEFAULT
        if taken := [each for each in range(1, combined + 1) if known.get(each, BOTH) != BOTH]:
            raise CommandError(
                f"--combined {combined}: node {taken[0]} is a broker already, and nothing else"
            )
        brokers = _node_count("--brokers", self.brokers, brokers, MAX_BROKERS, "brokers")
        if self.brokers is not None and brokers < combined:
            raise UsageError(f"--brokers {brokers}: {combined} are brokers by --combined already")
        if not known and self.brokers is None and not combined:
            brokers = DEFAULT
        controllers = _node_count(
            "--controllers", self.controllers, len(alone), MAX_CONTROLLERS, "controllers"
        )
        if not controllers and not combined:
            controllers = 1
        wanted: dict[int, Roles] = {FIRST_CONTROLLER + index: (CONTROLLER,) for index in range(controllers)}
        for node_id in range(1, max(combined, brokers) + 1):
            wanted[node_id] = BOTH if node_id <= combined else (BROKER,)
        return wanted


def _node_count(option: str, value: int | None, known: int, most: int, what: str) -> int:
    """How many of a kind there are to be, of which so many are known. Failure."""
    if value is None:
        return known
    if not 1 <= value <= most:
        raise UsageError(f"{option} {value}: expected 1 to {most}")
    if value < known:
        raise CommandError(
            f"the cluster has more than {value} {what} already: leave {option} off, and end one by "
            f"'kwire cluster stop N'"
        )
    return value


class Address(NamedTuple):
    """The ports of a node on this machine."""

    broker: int | None
    controller: int | None


def addresses(missing: Mapping[int, Roles], first: int) -> dict[int, Address]:
    """Ports from the first on: for brokers, in the order of their ids, and behind them for controllers."""
    ports = iter(range(first, first + 2 * len(missing)))
    brokers = {each: next(ports) for each in sorted(missing) if BROKER in missing[each]}
    controllers = {each: next(ports) for each in sorted(missing) if CONTROLLER in missing[each]}
    return {each: Address(brokers.get(each), controllers.get(each)) for each in missing}


class ControllerAddresses(NamedTuple):
    """Where the controllers are, as all nodes of a cluster are told."""

    servers: Sequence[str]
    """Whom to ask who leads: such a quorum is dynamic (KIP-853)."""
    voters: str = ""
    """`controller.quorum.voters` of a cluster that was made when there was one controller, for good."""

    def lines(self, roles: Roles, *, joins: bool) -> dict[str, str]:
        """What a node's properties say; `joins`: it makes itself a voter."""
        lines = {VOTERS: self.voters} if self.voters else {BOOTSTRAP: ",".join(self.servers)}
        if joins and CONTROLLER in roles:
            lines["controller.quorum.auto.join.enable"] = "true"
        return lines


def properties(
    node_id: int,
    roles: Roles,
    address: Address,
    quorum: Mapping[str, str],
    brokers: int,
    data: Path,
    settings: Mapping[str, str],
) -> str:
    """What a node is; one of Apache Kafka's could start with it as it is."""
    replicas = min(MAX_REPLICAS, brokers)
    listeners = (("PLAINTEXT", address.broker), ("CONTROLLER", address.controller))
    lines = {
        "process.roles": ",".join(roles),
        "node.id": str(node_id),
        **quorum,
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners if port is not None),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(1, replicas - 1)),
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{key}={value}\n" for key, value in {**lines, **settings}.items())
