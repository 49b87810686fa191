"""`kwire cluster`: several nodes on this machine, each a process of its own."""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from kwire.broker.cli.cluster_folder import (
    LOOK_SECONDS,
    START_SECONDS,
    ClusterFolder,
    ClusterNode,
    kill,
    start,
    stop,
)
from kwire.broker.cli.settings import Failure, parse_overrides
from kwire.wire.errors import WireError
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.registry import decode_response, encode_request
from kwire.wire.schema import Message

ASK_SECONDS: Final = 5
MAX_ANSWER_BYTES: Final = 100 * 1024 * 1024

A = TypeVar("A", bound=Message)


def run(options: argparse.Namespace) -> int:
    """Run the command, and give its exit status. Failure."""
    folder = ClusterFolder(options.dir)
    return _ACTIONS[cast(str, options.action)](folder, options)


def _up(folder: ClusterFolder, options: argparse.Namespace) -> int:
    folder.make(options.brokers, options.port, parse_overrides(options.overrides))
    nodes = folder.nodes()
    start(nodes)
    _await_all(nodes)
    brokers = [node for node in nodes if node.is_broker]
    print(
        f"{len(brokers)} brokers serve on {_bootstrap(nodes)}, all that is theirs is in {folder.path}; "
        f"'kwire cluster status' tells how they are, 'kwire cluster stop' stops them"
    )
    return 0


def _await_all(nodes: Sequence[ClusterNode]) -> None:
    """Wait until all brokers are a part of the cluster, also those that ran before. Failure."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        cluster, _ = _asked(nodes)
        serving = (
            {broker.broker_id for broker in cluster.brokers if not broker.is_fenced} if cluster else set()
        )
        missing = [node for node in nodes if node.is_broker and node.node_id not in serving]
        if not missing:
            return
        ended = [node for node in nodes if node.pid is None]
        if ended or time.monotonic() > deadline:
            late = ended or missing
            logs = ", ".join(str(node.log) for node in late)
            raise Failure(f"not every node serves: what became of the others is told by {logs}")
        time.sleep(LOOK_SECONDS)


def _stop(folder: ClusterFolder, options: argparse.Namespace) -> int:
    _stop_nodes(folder.nodes() if options.node is None else [folder.node(options.node)], folder)
    return 0


def _stop_nodes(nodes: Sequence[ClusterNode], folder: ClusterFolder) -> None:
    """Stop them. Failure, at once where brokers would wait for a controller that does not run."""
    brokers = [node for node in nodes if node.is_broker and node.pid is not None]
    if brokers and all(node.is_broker or node.pid is None for node in folder.nodes()):
        raise Failure(
            f"the controller does not run, and a broker that ends asks it who leads then: 'kwire cluster up' "
            f"starts it, 'kwire cluster kill {brokers[0].node_id}' ends the broker at once"
        )
    stop(nodes)


def _kill(folder: ClusterFolder, options: argparse.Namespace) -> int:
    kill([folder.node(options.node)])
    return 0


def _restart(folder: ClusterFolder, options: argparse.Namespace) -> int:
    nodes = [folder.node(options.node)]
    _stop_nodes(nodes, folder)
    start(nodes)
    return 0


def _down(folder: ClusterFolder, options: argparse.Namespace) -> int:
    nodes = folder.nodes()
    kill(nodes)  # nothing of it stays, so nothing has to be handed over
    folder.remove()
    return 0


def _status(folder: ClusterFolder, options: argparse.Namespace) -> int:
    nodes = folder.nodes()
    if not nodes:
        raise Failure(f"no node in {folder.path} is finished: 'kwire cluster up' goes on with it")
    cluster, metadata = _asked(nodes)
    known = {broker.broker_id: broker.is_fenced for broker in cluster.brokers} if cluster else {}
    partitions = [one for topic in metadata.topics for one in topic.partitions] if metadata else []
    rows = [
        {
            "node": node.node_id,
            "roles": node.roles,
            "address": node.address,
            "pid": node.pid,
            "state": _state(node, known),
            "leads": sum(one.leader_id == node.node_id for one in partitions),
            "replicas": sum(node.node_id in one.replica_nodes for one in partitions),
            "in sync": sum(node.node_id in one.isr_nodes for one in partitions),
        }
        for node in nodes
    ]
    totals = {
        "topics": len(metadata.topics) if metadata else 0,
        "partitions": len(partitions),
        "under-replicated": sum(len(one.isr_nodes) < len(one.replica_nodes) for one in partitions),
        "offline": sum(one.leader_id < 0 for one in partitions),
    }
    if options.json:
        told = {"bootstrap": _bootstrap(nodes), "answered": metadata is not None, **totals, "nodes": rows}
        print(json.dumps(told, indent=2))
        return 0
    table = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if metadata is None:
        print("no broker answers")
    else:
        print(", ".join(f"{count} {name}" for name, count in totals.items()))
    return 0


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _state(node: ClusterNode, fenced: dict[int, bool]) -> str:
    if node.pid is None:
        return "stopped"
    if not node.is_broker:
        return "running"
    return {None: "not registered", True: "fenced", False: "running"}[fenced.get(node.node_id)]


def _bootstrap(nodes: Sequence[ClusterNode]) -> str:
    return ",".join(node.address for node in nodes if node.is_broker)


def _asked(nodes: Sequence[ClusterNode]) -> tuple[DescribeClusterResponse | None, MetadataResponse | None]:
    """What the first broker that answers knows."""
    for node in nodes:
        if node.is_broker and node.pid is not None:
            try:
                cluster = _ask(
                    node, DescribeClusterRequest(include_fenced_brokers=True), 2, DescribeClusterResponse
                )
                return cluster, _ask(node, MetadataRequest(topics=None), 12, MetadataResponse)
            except (OSError, WireError):
                continue
    return None, None


def _ask(node: ClusterNode, request: Message, version: int, kind: type[A]) -> A:
    """One request on a connection of its own. OSError, WireError."""
    _, host, port = node.config.listener_endpoints()[0]
    with socket.create_connection((host or "127.0.0.1", port), ASK_SECONDS) as connection:
        connection.sendall(encode_request(request, version, 1, "kwire-cluster"))
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            if not 0 < size <= MAX_ANSWER_BYTES:
                raise WireError(f"an answer of {size} bytes")
            return decode_response(kind, version, stream.read(size))[1]


_ACTIONS: Final[dict[str, Callable[[ClusterFolder, argparse.Namespace], int]]] = {
    "up": _up,
    "status": _status,
    "stop": _stop,
    "kill": _kill,
    "restart": _restart,
    "down": _down,
}
