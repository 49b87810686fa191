"""`kwire cluster`: several nodes on this machine, each a process of its own."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast

from kwire.cli.broker_settings import parse_overrides
from kwire.cli.cluster.directory import (
    POLL_SECONDS,
    START_SECONDS,
    ClusterDirectory,
    ClusterNode,
    describe_running,
    kill,
    start,
    stop,
)
from kwire.cli.cluster.node_queries import query_brokers, query_quorum
from kwire.cli.cluster.plan import NodeCounts
from kwire.cli.cluster.status import ClusterStatus, bootstrap
from kwire.cli.shared.command_error import CommandError
from kwire.cli.shared.output import plural
from kwire.wire.messages.describe_quorum import ResponsePartitionData

ELECTION_SECONDS: Final = 10
"""How long a quorum may have no leader and is still taken for one that elects."""
CLEAR: Final = "\x1b[H\x1b[2J"
"""Of a terminal: what is shown."""


def run(options: argparse.Namespace) -> int:
    """Run the command, and give its exit status. Failure; OSError where standard output cannot be written."""
    directory = ClusterDirectory(options.dir)
    try:
        return _ACTIONS[cast(str, options.action)](directory, options)
    except _OutputError as untold:
        raise untold.why from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CommandError(
            f"{error.filename or directory.path}: {why}: give a folder of your own by --dir"
        ) from error


class _OutputError(Exception):
    """Standard output cannot be written, which says nothing of the folder."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        raise _OutputError(error) from error


def _up(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    wanted = NodeCounts(options.brokers, options.controllers, options.combined)
    settings = parse_overrides(options.overrides)
    made = directory.create(wanted, options.port, settings)
    nodes = directory.nodes()
    try:
        start(nodes)
    except CommandError as failure:
        anew = (
            f"{directory.command('down')} and {directory.command('up --port PORT')} begin anew at other ports"
        )
        raise CommandError(
            f"{failure}; {anew}" if "port is in use" in str(failure) else str(failure)
        ) from failure
    _wait_until_joined(nodes, made)
    brokers = [node for node in nodes if node.is_broker]
    serve = "1 broker serves" if len(brokers) == 1 else f"{len(brokers)} brokers serve"
    _print(
        f"{serve} on {bootstrap(nodes)}, all that is of the cluster is in {directory.path}; "
        f"{directory.command('status')} tells how it is, {directory.command('stop')} stops it"
    )
    for told in (_replication_factor_note(directory, nodes), _settings_note(directory, nodes, settings)):
        if told:
            _print(told)
    return 0


def _replication_factor_note(directory: ClusterDirectory, nodes: Sequence[ClusterNode]) -> str | None:
    """What is to be done where a cluster has grown: some nodes still make topics with fewer replicas."""
    known = [node for node in nodes if node.config_error is None]
    most = max(node.config.default_replication_factor for node in known)
    behind = [str(node.node_id) for node in known if node.config.default_replication_factor < most]
    if not behind:
        return None
    return (
        f"topics keep the replicas that they have, kafka-reassign-partitions gives them more; nodes "
        f"{', '.join(behind)} make new ones with fewer than {most}, too, until the replication factors in "
        f"their properties are raised and {directory.command('restart')} is run for each"
    )


def _settings_note(
    directory: ClusterDirectory, nodes: Sequence[ClusterNode], settings: Mapping[str, str]
) -> str | None:
    """What is to be done where nodes that were there before have other settings than are wanted now."""
    known = [node for node in nodes if node.config_error is None]
    keys = [key for key in settings if any(node.config.given.get(key) != settings[key] for node in known)]
    if not keys:
        return None
    behind = [
        str(node.node_id)
        for node in known
        if any(node.config.given.get(key) != settings[key] for key in keys)
    ]
    return (
        f"nodes {', '.join(behind)} were there before and keep what their properties say of "
        f"{', '.join(keys)}: set it there and run {directory.command('restart')} for each"
    )


def _wait_until_joined(nodes: Sequence[ClusterNode], made: Collection[int]) -> None:
    """Wait until all brokers are a part of the cluster, also those that ran before, and those controllers
    vote that were `made` now. Failure.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        cluster, _ = query_brokers(nodes)
        serving = (
            {broker.broker_id for broker in cluster.brokers if not broker.is_fenced} if cluster else set()
        )
        missing = [node for node in nodes if node.is_broker and node.node_id not in serving]
        if not missing:
            quorum = query_quorum(nodes)
            voters = {voter.replica_id for voter in quorum.current_voters} if quorum else set()
            new = [node for node in nodes if node.is_controller and node.node_id in made]
            missing = [node for node in new if node.node_id not in voters]
        if not missing:
            return
        ended = [node for node in nodes if node.pid is None]
        if ended or time.monotonic() > deadline:
            late = ended or missing
            logs = ", ".join(str(node.log) for node in late)
            raise CommandError(
                f"not every node serves: what became of the others is told by {logs}{describe_running(nodes)}"
            )
        time.sleep(POLL_SECONDS)


def _stop(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    nodes = directory.nodes() if options.node is None else [directory.node(options.node)]
    running = [node for node in nodes if node.pid is not None]
    _stop_nodes(nodes, directory)
    if not running:
        _print("no node runs" if options.node is None else f"node {options.node} does not run")
    elif options.node is None:
        _print(
            f"{plural(len(running), 'node')} stopped, the data stays in {directory.path}; "
            f"{directory.command('up')} goes on with it"
        )
    else:
        _print(f"node {options.node} stopped, {_restart_hint(directory, options.node)}")
    return 0


def _restart_hint(directory: ClusterDirectory, node_id: int) -> str:
    return f"{directory.command(f'restart {node_id}')} brings it back"


def _stop_nodes(nodes: Sequence[ClusterNode], directory: ClusterDirectory) -> None:
    """Stop them. Failure, at once where brokers would wait for a controller that does not run."""
    everyone = directory.nodes()
    brokers = [node for node in nodes if node.is_broker and node.pid is not None]
    quorum = _wait_for_leader(everyone) if brokers else None
    if brokers and quorum is None:
        raise CommandError(
            f"no controller leads, and a broker that ends asks it who leads then: "
            f"{directory.command('up')} starts those that do not run, "
            f"{directory.command(f'kill {brokers[0].node_id}')} ends the broker at once"
        )
    voters = {voter.replica_id for voter in quorum.current_voters} if quorum else set()

    def has_majority() -> bool:
        ended = [node for node in everyone if node.node_id in voters and node.pid is None]
        return 2 * len(ended) < len(voters)

    stop(nodes, has_majority)


def _wait_for_leader(nodes: Sequence[ClusterNode]) -> ResponsePartitionData | None:
    """The quorum, once it is led, where any of its controllers runs; None if it is not for too long."""
    deadline = time.monotonic() + ELECTION_SECONDS
    while (quorum := query_quorum(nodes)) is None and time.monotonic() < deadline:
        if all(node.pid is None for node in nodes if node.is_controller):
            break
        time.sleep(POLL_SECONDS)
    return quorum


def _kill(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    node = directory.node(options.node)
    is_running = node.pid is not None
    kill([node])
    outcome = f"killed, {_restart_hint(directory, node.node_id)}" if is_running else "does not run"
    _print(f"node {node.node_id} {outcome}")
    return 0


def _restart(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    node = directory.node(options.node)
    if node.config_error is not None:
        raise CommandError(node.config_error)  # which would keep it from coming back
    _stop_nodes([node], directory)
    start([node])
    _print(f"node {node.node_id} serves on {node.address}")
    return 0


def _down(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    nodes = directory.nodes()
    kill(nodes)  # nothing of it stays, so nothing has to be handed over
    directory.remove()
    _print(f"the cluster in {directory.path} is removed, and all its data")
    return 0


def _status(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    if options.watch is None:
        _print(_told(directory, as_json=options.json))
        return 0
    try:
        while True:
            told = _told(directory, as_json=options.json)
            _print(f"{CLEAR}{told}" if sys.stdout.isatty() and not options.json else told)
            time.sleep(options.watch)
    except KeyboardInterrupt:
        return 0


def _told(directory: ClusterDirectory, *, as_json: bool) -> str:
    nodes = directory.nodes()
    if not nodes:
        raise CommandError(
            f"no node in {directory.path} is finished: {directory.command('up')} goes on with it"
        )
    status = ClusterStatus(nodes, query_brokers(nodes), query_quorum(nodes))
    return status.as_json() if as_json else "\n".join(status.lines())


_ACTIONS: Final[dict[str, Callable[[ClusterDirectory, argparse.Namespace], int]]] = {
    "up": _up,
    "status": _status,
    "stop": _stop,
    "kill": _kill,
    "restart": _restart,
    "down": _down,
}
