"""`kwire cluster`: several nodes on this machine, each a process of its own."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast

from kwire.cli.broker_settings import Failure, parse_overrides
from kwire.cli.cluster.folder import (
    LOOK_SECONDS,
    START_SECONDS,
    ClusterFolder,
    ClusterNode,
    also_running,
    kill,
    start,
    stop,
)
from kwire.cli.cluster.node_queries import ask_brokers, ask_quorum
from kwire.cli.cluster.plan import Wanted
from kwire.cli.cluster.status import Status, bootstrap
from kwire.cli.shared.output import plural
from kwire.wire.messages.describe_quorum import ResponsePartitionData

ELECTION_SECONDS: Final = 10
"""How long a quorum may have no leader and is still taken for one that elects."""
CLEAR: Final = "\x1b[H\x1b[2J"
"""Of a terminal: what is shown."""


def run(options: argparse.Namespace) -> int:
    """Run the command, and give its exit status. Failure; OSError where standard output cannot be written."""
    folder = ClusterFolder(options.dir)
    try:
        return _ACTIONS[cast(str, options.action)](folder, options)
    except _Untold as untold:
        raise untold.why from None
    except OSError as error:
        why = error.strerror or str(error)
        raise Failure(
            f"{error.filename or folder.path}: {why}: give a folder of your own by --dir"
        ) from error


class _Untold(Exception):
    """Standard output cannot be written, which says nothing of the folder."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        raise _Untold(error) from error


def _up(folder: ClusterFolder, options: argparse.Namespace) -> int:
    wanted = Wanted(options.brokers, options.controllers, options.combined)
    settings = parse_overrides(options.overrides)
    made = folder.make(wanted, options.port, settings)
    nodes = folder.nodes()
    try:
        start(nodes)
    except Failure as failure:
        anew = f"{folder.command('down')} and {folder.command('up --port PORT')} begin anew at other ports"
        raise Failure(f"{failure}; {anew}" if "port is in use" in str(failure) else str(failure)) from failure
    _await_all(nodes, made)
    brokers = [node for node in nodes if node.is_broker]
    serve = "1 broker serves" if len(brokers) == 1 else f"{len(brokers)} brokers serve"
    _say(
        f"{serve} on {bootstrap(nodes)}, all that is of the cluster is in {folder.path}; "
        f"{folder.command('status')} tells how it is, {folder.command('stop')} stops it"
    )
    for told in (_few_replicas(folder, nodes), _set_otherwise(folder, nodes, settings)):
        if told:
            _say(told)
    return 0


def _few_replicas(folder: ClusterFolder, nodes: Sequence[ClusterNode]) -> str | None:
    """What is to be done where a cluster has grown: some nodes still make topics with fewer replicas."""
    known = [node for node in nodes if node.fault is None]
    most = max(node.config.default_replication_factor for node in known)
    behind = [str(node.node_id) for node in known if node.config.default_replication_factor < most]
    if not behind:
        return None
    return (
        f"topics keep the replicas that they have, kafka-reassign-partitions gives them more; nodes "
        f"{', '.join(behind)} make new ones with fewer than {most}, too, until the replication factors in "
        f"their properties are raised and {folder.command('restart')} is run for each"
    )


def _set_otherwise(
    folder: ClusterFolder, nodes: Sequence[ClusterNode], settings: Mapping[str, str]
) -> str | None:
    """What is to be done where nodes that were there before have other settings than are wanted now."""
    known = [node for node in nodes if node.fault is None]
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
        f"{', '.join(keys)}: set it there and run {folder.command('restart')} for each"
    )


def _await_all(nodes: Sequence[ClusterNode], made: Collection[int]) -> None:
    """Wait until all brokers are a part of the cluster, also those that ran before, and those controllers
    vote that were `made` now. Failure.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        cluster, _ = ask_brokers(nodes)
        serving = (
            {broker.broker_id for broker in cluster.brokers if not broker.is_fenced} if cluster else set()
        )
        missing = [node for node in nodes if node.is_broker and node.node_id not in serving]
        if not missing:
            quorum = ask_quorum(nodes)
            voters = {voter.replica_id for voter in quorum.current_voters} if quorum else set()
            new = [node for node in nodes if node.is_controller and node.node_id in made]
            missing = [node for node in new if node.node_id not in voters]
        if not missing:
            return
        ended = [node for node in nodes if node.pid is None]
        if ended or time.monotonic() > deadline:
            late = ended or missing
            logs = ", ".join(str(node.log) for node in late)
            raise Failure(
                f"not every node serves: what became of the others is told by {logs}{also_running(nodes)}"
            )
        time.sleep(LOOK_SECONDS)


def _stop(folder: ClusterFolder, options: argparse.Namespace) -> int:
    nodes = folder.nodes() if options.node is None else [folder.node(options.node)]
    running = [node for node in nodes if node.pid is not None]
    _stop_nodes(nodes, folder)
    if not running:
        _say("no node runs" if options.node is None else f"node {options.node} does not run")
    elif options.node is None:
        _say(
            f"{plural(len(running), 'node')} stopped, the data stays in {folder.path}; "
            f"{folder.command('up')} goes on with it"
        )
    else:
        _say(f"node {options.node} stopped, {_back(folder, options.node)}")
    return 0


def _back(folder: ClusterFolder, node_id: int) -> str:
    return f"{folder.command(f'restart {node_id}')} brings it back"


def _stop_nodes(nodes: Sequence[ClusterNode], folder: ClusterFolder) -> None:
    """Stop them. Failure, at once where brokers would wait for a controller that does not run."""
    everyone = folder.nodes()
    brokers = [node for node in nodes if node.is_broker and node.pid is not None]
    quorum = _led(everyone) if brokers else None
    if brokers and quorum is None:
        raise Failure(
            f"no controller leads, and a broker that ends asks it who leads then: "
            f"{folder.command('up')} starts those that do not run, "
            f"{folder.command(f'kill {brokers[0].node_id}')} ends the broker at once"
        )
    voters = {voter.replica_id for voter in quorum.current_voters} if quorum else set()

    def can_be_led() -> bool:
        ended = [node for node in everyone if node.node_id in voters and node.pid is None]
        return 2 * len(ended) < len(voters)

    stop(nodes, can_be_led)


def _led(nodes: Sequence[ClusterNode]) -> ResponsePartitionData | None:
    """The quorum, once it is led, where any of its controllers runs; None if it is not for too long."""
    deadline = time.monotonic() + ELECTION_SECONDS
    while (quorum := ask_quorum(nodes)) is None and time.monotonic() < deadline:
        if all(node.pid is None for node in nodes if node.is_controller):
            break
        time.sleep(LOOK_SECONDS)
    return quorum


def _kill(folder: ClusterFolder, options: argparse.Namespace) -> int:
    node = folder.node(options.node)
    is_running = node.pid is not None
    kill([node])
    _say(f"node {node.node_id} {f'killed, {_back(folder, node.node_id)}' if is_running else 'does not run'}")
    return 0


def _restart(folder: ClusterFolder, options: argparse.Namespace) -> int:
    node = folder.node(options.node)
    if node.fault is not None:
        raise Failure(node.fault)  # which would keep it from coming back
    _stop_nodes([node], folder)
    start([node])
    _say(f"node {node.node_id} serves on {node.address}")
    return 0


def _down(folder: ClusterFolder, options: argparse.Namespace) -> int:
    nodes = folder.nodes()
    kill(nodes)  # nothing of it stays, so nothing has to be handed over
    folder.remove()
    _say(f"the cluster in {folder.path} is removed, and all its data")
    return 0


def _status(folder: ClusterFolder, options: argparse.Namespace) -> int:
    if options.watch is None:
        _say(_told(folder, as_json=options.json))
        return 0
    try:
        while True:
            told = _told(folder, as_json=options.json)
            _say(f"{CLEAR}{told}" if sys.stdout.isatty() and not options.json else told)
            time.sleep(options.watch)
    except KeyboardInterrupt:
        return 0


def _told(folder: ClusterFolder, *, as_json: bool) -> str:
    nodes = folder.nodes()
    if not nodes:
        raise Failure(f"no node in {folder.path} is finished: {folder.command('up')} goes on with it")
    status = Status(nodes, ask_brokers(nodes), ask_quorum(nodes))
    return status.as_json() if as_json else "\n".join(status.lines())


_ACTIONS: Final[dict[str, Callable[[ClusterFolder, argparse.Namespace], int]]] = {
    "up": _up,
    "status": _status,
    "stop": _stop,
    "kill": _kill,
    "restart": _restart,
    "down": _down,
}
