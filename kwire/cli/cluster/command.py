"""`kwire cluster`: several nodes on this machine, each in its own process."""

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
from kwire.cli.cluster.node_queries import QuorumReply, query_brokers, query_quorum
from kwire.cli.cluster.plan import NodeCounts
from kwire.cli.cluster.status import ClusterStatus, bootstrap
from kwire.cli.shared.command_error import CommandError
from kwire.wire.plural import plural

ELECTION_SECONDS: Final = 10
"""Maximum time of an election before the quorum counts as having no leader."""
CLEAR: Final = "\x1b[H\x1b[2J"
"""Control sequences that clear a terminal."""


def run(options: argparse.Namespace) -> int:
    """Run the command and return its status. Raises CommandError, or OSError for standard output."""
    directory = ClusterDirectory(options.dir)
    try:
        return _ACTIONS[cast(str, options.action)](directory, options)
    except _OutputError as untold:
        raise untold.why from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CommandError(
            f"{error.filename or directory.path}: {why}: choose a writable directory with --dir"
        ) from error


class _OutputError(Exception):
    """An error of standard output. All other OSErrors concern the cluster's directory."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        raise _OutputError(error) from error


def _note(text: str) -> None:
    """Print a note that is not the result of the command."""
    print(f"kwire: {text}", file=sys.stderr, flush=True)


def _up(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    wanted = NodeCounts(options.brokers, options.controllers, options.combined)
    settings = parse_overrides(options.overrides)
    made = directory.create(wanted, options.port, settings)
    nodes = directory.nodes()
    try:
        start(nodes)
    except CommandError as failure:
        start_over = (
            f"{directory.command('down')} and {directory.command('up --port PORT')} start over on other ports"
        )
        raise CommandError(
            f"{failure}; {start_over}" if "port is in use" in str(failure) else str(failure)
        ) from failure
    _wait_until_joined(nodes, made)
    brokers = [node for node in nodes if node.is_broker]
    serve = f"{plural(len(brokers), 'broker')} {'serves' if len(brokers) == 1 else 'serve'}"
    _print(
        f"{serve} on {bootstrap(nodes)}, with all files in {directory.path}; "
        f"{directory.command('status')} shows the nodes, {directory.command('stop')} stops them"
    )
    for note in (_replication_factor_note(directory, nodes), _settings_note(directory, nodes, settings)):
        if note:
            _print(note)
    return 0


def _replication_factor_note(directory: ClusterDirectory, nodes: Sequence[ClusterNode]) -> str | None:
    """Return advice for a grown cluster whose older nodes still have lower default replication factors."""
    known = [node for node in nodes if node.config_error is None]
    most = max(node.config.default_replication_factor for node in known)
    behind = [str(node.node_id) for node in known if node.config.default_replication_factor < most]
    if not behind:
        return None
    return (
        f"existing topics keep their replicas, and kafka-reassign-partitions can add replicas; nodes "
        f"{', '.join(behind)} still create topics with fewer than {most} replicas: raise the replication "
        f"factors in their properties files, and run {directory.command('restart')} for each node"
    )


def _settings_note(
    directory: ClusterDirectory, nodes: Sequence[ClusterNode], settings: Mapping[str, str]
) -> str | None:
    """Return advice for `--set` keys that existing nodes do not have."""
    known = [node for node in nodes if node.config_error is None]
    keys = [
        key
        for key in settings
        if any(node.config.static_settings.get(key) != settings[key] for node in known)
    ]
    if not keys:
        return None
    behind = [
        str(node.node_id)
        for node in known
        if any(node.config.static_settings.get(key) != settings[key] for key in keys)
    ]
    return (
        f"existing nodes {', '.join(behind)} keep their own settings of "
        f"{', '.join(keys)}: edit their properties files, and run {directory.command('restart')} for each "
        f"node"
    )


def _wait_until_joined(nodes: Sequence[ClusterNode], made: Collection[int]) -> None:
    """Wait until all brokers are registered and unfenced, and the new controllers are voters.

    `made` has the ids of new nodes. Raises CommandError if a node ends, or after START_SECONDS.
    """
    begin = time.monotonic()
    while True:
        cluster, _, refusal, _ = query_brokers(nodes)
        serving = (
            {broker.broker_id for broker in cluster.brokers if not broker.is_fenced} if cluster else set()
        )
        missing = [node for node in nodes if node.is_broker and node.node_id not in serving]
        if not missing:
            quorum, refusal = query_quorum(nodes)
            voters = {voter.replica_id for voter in quorum.current_voters} if quorum else set()
            new = [node for node in nodes if node.is_controller and node.node_id in made]
            missing = [node for node in new if node.node_id not in voters]
        if not missing:
            return
        ended = [node for node in nodes if node.pid is None]
        waited = time.monotonic() - begin
        if refusal is not None and not ended and waited > ELECTION_SECONDS:
            raise CommandError(f"all nodes run, but their state is unknown: {refusal}")
        if ended or waited > START_SECONDS:
            late = ended or missing
            logs = ", ".join(str(node.log) for node in late)
            raise CommandError(f"not every node serves: see {logs}{describe_running(nodes)}")
        time.sleep(POLL_SECONDS)


def _stop(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    nodes = directory.nodes() if options.node is None else [directory.node(options.node)]
    running = [node for node in nodes if node.pid is not None]
    _stop_nodes(nodes, directory)
    if not running:
        _print("no node is running" if options.node is None else f"node {options.node} is not running")
    elif options.node is None:
        _print(
            f"{plural(len(running), 'node')} stopped, the data is kept in {directory.path}; "
            f"{directory.command('up')} starts them again"
        )
    else:
        _print(f"node {options.node} stopped, {_restart_hint(directory, options.node)}")
    return 0


def _restart_hint(directory: ClusterDirectory, node_id: int) -> str:
    return f"{directory.command(f'restart {node_id}')} starts it again"


def _stop_nodes(nodes: Sequence[ClusterNode], directory: ClusterDirectory) -> None:
    """Stop nodes. Raises CommandError at once if brokers would wait for a controller that is down."""
    everyone = directory.nodes()
    brokers = [node for node in nodes if node.is_broker and node.pid is not None]
    quorum, refusal = _wait_for_leader(everyone) if brokers else QuorumReply(None)
    if refusal is not None:
        # The brokers may have an active controller, and can shut down. Otherwise they still run at the end.
        _note(f"the state of the quorum is unknown: {refusal}")
    elif brokers and quorum is None:
        raise CommandError(
            f"the quorum has no leader, which brokers need for a controlled shutdown: "
            f"{directory.command('up')} starts the nodes that are down, "
            f"{directory.command(f'kill {brokers[0].node_id}')} kills the broker at once"
        )
    voters = {node.node_id for node in everyone if node.is_controller} if refusal else set()
    if quorum is not None:
        voters = {voter.replica_id for voter in quorum.current_voters}

    def has_majority() -> bool:
        ended = [node for node in everyone if node.node_id in voters and node.pid is None]
        return 2 * len(ended) < len(voters)

    stop(nodes, has_majority)


def _wait_for_leader(nodes: Sequence[ClusterNode]) -> QuorumReply:
    """Query the quorum until it has a leader, a node refuses this, no controller runs, or time is up."""
    deadline = time.monotonic() + ELECTION_SECONDS
    while (reply := query_quorum(nodes)) == QuorumReply(None) and time.monotonic() < deadline:
        if all(node.pid is None for node in nodes if node.is_controller):
            break
        time.sleep(POLL_SECONDS)
    return reply


def _kill(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    node = directory.node(options.node)
    is_running = node.pid is not None
    kill([node])
    outcome = f"killed, {_restart_hint(directory, node.node_id)}" if is_running else "is not running"
    _print(f"node {node.node_id} {outcome}")
    return 0


def _restart(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    node = directory.node(options.node)
    if node.config_error is not None:
        raise CommandError(node.config_error)  # the node could not start again
    _stop_nodes([node], directory)
    start([node])
    _print(f"node {node.node_id} serves on {node.address}")
    return 0


def _down(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    nodes = directory.nodes()
    kill(nodes)  # the data is removed, so no clean shutdown is needed
    directory.remove()
    _print(f"removed the cluster in {directory.path} and its data")
    return 0


def _status(directory: ClusterDirectory, options: argparse.Namespace) -> int:
    if options.watch is None:
        status = _cluster_status(directory)
        _print(_render(status, as_json=options.json))
        return 0 if status.is_known else 1
    try:
        while True:
            text = _render(_cluster_status(directory), as_json=options.json)
            _print(f"{CLEAR}{text}" if sys.stdout.isatty() and not options.json else text)
            time.sleep(options.watch)
    except KeyboardInterrupt:
        return 0


def _cluster_status(directory: ClusterDirectory) -> ClusterStatus:
    nodes = directory.nodes()
    if not nodes:
        raise CommandError(
            f"no node in {directory.path} is completely set up: {directory.command('up')} completes the setup"
        )
    return ClusterStatus(nodes, query_brokers(nodes), query_quorum(nodes))


def _render(status: ClusterStatus, *, as_json: bool) -> str:
    return status.as_json() if as_json else "\n".join(status.lines())


_ACTIONS: Final[dict[str, Callable[[ClusterDirectory, argparse.Namespace], int]]] = {
    "up": _up,
    "status": _status,
    "stop": _stop,
    "kill": _kill,
    "restart": _restart,
    "down": _down,
}
