"""The nodes of a cluster on this machine, and their properties files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kwire.broker.config.roles import BOOTSTRAP, BROKER, CONTROLLER, VOTERS
from kwire.cli.shared.command_error import CommandError, UsageError
from kwire.wire.named_tuple import NamedTuple

FIRST_CONTROLLER: Final = 100
"""Id of the first node that is only a controller."""
MAX_BROKERS: Final = 32
MAX_CONTROLLERS: Final = 7
MAX_REPLICAS: Final = 3
DEFAULT: Final = 3
"""Number of nodes if no option is given."""

Roles = tuple[str, ...]
BOTH: Final = (BROKER, CONTROLLER)


class NodeCounts(NamedTuple):
    """Numbers of nodes as given to 'up'; None for options that are missing."""

    brokers: int | None = None
    """All brokers, including combined nodes."""
    controllers: int | None = None
    """Nodes that are only controllers."""
    combined: int | None = None
    """Nodes that are broker and controller."""

    def nodes(self, known: Mapping[int, Roles]) -> dict[int, Roles]:
        """Return the roles of all nodes by id, including the existing nodes `known`. Raises CommandError."""
        both = [each for each, roles in known.items() if roles == BOTH]
        alone = [each for each, roles in known.items() if roles == (CONTROLLER,)]
        brokers = len(known) - len(alone)
        if (self.combined and (self.controllers or alone)) or (self.controllers and both):
            raise UsageError(
                "the controllers of a cluster are either all combined nodes or all separate: use the option, "
                "--combined or --controllers, with which the cluster was created"
            )
        combined = _node_count("--combined", self.combined, len(both), MAX_CONTROLLERS, "combined nodes")
        if not known and self[:2] == (None, None):
            combined = combined or DEFAULT
        if taken := [each for each in range(1, combined + 1) if known.get(each, BOTH) != BOTH]:
            raise CommandError(f"--combined {combined}: node {taken[0]} already exists as a broker only")
        brokers = _node_count("--brokers", self.brokers, brokers, MAX_BROKERS, "brokers")
        if self.brokers is not None and brokers < combined:
            raise UsageError(f"--brokers {brokers}: --combined {combined} already makes more brokers")
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
    """Return the new number of nodes of a kind, given the number of existing nodes `known`.

    Raises CommandError if the option's value is smaller than `known`, or not from 1 to `most`.
    """
    if value is None:
        return known
    if not 1 <= value <= most:
        raise UsageError(f"{option} {value}: expected 1 to {most}")
    if value < known:
        raise CommandError(
            f"the cluster already has more than {value} {what}: omit {option}, and stop a node with "
            f"'kwire cluster stop N'"
        )
    return value


class NodePorts(NamedTuple):
    """Ports of a node; None for a role that the node does not have."""

    broker: int | None
    controller: int | None


def assign_ports(missing: Mapping[int, Roles], first: int) -> dict[int, NodePorts]:
    """Assign ports from `first` on to new nodes: to brokers in the order of ids, then to controllers."""
    ports = iter(range(first, first + 2 * len(missing)))
    brokers = {each: next(ports) for each in sorted(missing) if BROKER in missing[each]}
    controllers = {each: next(ports) for each in sorted(missing) if CONTROLLER in missing[each]}
    return {each: NodePorts(brokers.get(each), controllers.get(each)) for each in missing}


class ControllerAddresses(NamedTuple):
    """Addresses of the controllers, as in the properties of every node."""

    servers: Sequence[str]
    """Bootstrap servers of a dynamic quorum (KIP-853)."""
    voters: str = ""
    """`controller.quorum.voters` of an old cluster with one static voter."""

    def lines(self, roles: Roles, *, joins: bool) -> dict[str, str]:
        """Return the properties of the quorum; `joins` lets a new controller become a voter."""
        lines = {VOTERS: self.voters} if self.voters else {BOOTSTRAP: ",".join(self.servers)}
        if joins and CONTROLLER in roles:
            lines["controller.quorum.auto.join.enable"] = "true"
        return lines


def properties(
    node_id: int,
    roles: Roles,
    ports: NodePorts,
    quorum: Mapping[str, str],
    brokers: int,
    data: Path,
    settings: Mapping[str, str],
) -> str:
    """Return the text of a node's properties file, which Apache Kafka can read as well.

    `quorum` has the properties of the quorum. `brokers` is the number of brokers, which limits replication.
    """
    replicas = min(MAX_REPLICAS, brokers)
    listeners = (("PLAINTEXT", ports.broker), ("CONTROLLER", ports.controller))
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
