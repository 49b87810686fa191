"""`kwire cluster status`: nodes, quorum and partitions, as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kwire.cli.cluster.directory import ClusterNode
from kwire.cli.cluster.node_queries import ClusterMetadata, QuorumReply
from kwire.cli.shared.output import format_table
from kwire.wire.messages.describe_quorum import ReplicaState, ResponsePartitionData
from kwire.wire.plural import plural
from kwire.wire.primitives import uuid_to_text

MAX_LINES: Final = 20
"""Rows of under-replicated partitions in the text output."""

Row = dict[str, object]


class ClusterStatus:
    """Status of a cluster at one moment."""

    def __init__(
        self, nodes: Sequence[ClusterNode], responses: ClusterMetadata, quorum_reply: QuorumReply
    ) -> None:
        cluster, metadata, refusal, self._limited_to = responses
        quorum = quorum_reply.quorum
        self._refusals = [*dict.fromkeys(filter(None, (quorum_reply.refusal, refusal)))]
        self._are_brokers_refused = refusal is not None
        self._is_quorum_refused = quorum_reply.refusal is not None
        fenced = {broker.broker_id: broker.is_fenced for broker in cluster.brokers} if cluster else None
        topics = metadata.topics if metadata else []
        partitions = [one for topic in topics for one in topic.partitions]
        self._bootstrap = bootstrap(nodes)
        self._answers = metadata is not None
        self._faults = {node.node_id: node.config_error for node in nodes if node.config_error is not None}
        self._quorum = None if quorum is None else _quorum_row(quorum)
        places = {} if quorum is None else _quorum_roles(quorum)
        self._nodes: list[Row] = [
            {
                "node": node.node_id,
                "roles": node.roles,
                "address": node.address,
                "pid": node.pid,
                "state": _state(node, fenced),
                **places.get(node.node_id, {"quorum": None, "lag": None}),
                "leaders": sum(one.leader_id == node.node_id for one in partitions),
                "replicas": sum(node.node_id in one.replica_nodes for one in partitions),
                "in_sync": sum(node.node_id in one.isr_nodes for one in partitions),
            }
            for node in nodes
        ]
        self._unexpired = [
            node.node_id for node in nodes if node.pid is None and (fenced or {}).get(node.node_id) is False
        ]
        """Stopped brokers that the controller has not fenced yet."""
        runs = any(node.is_broker and node.pid is not None for node in nodes)
        self.is_known = not self._refusals and (metadata is not None or not runs)
        """Whether the running nodes have described the cluster."""
        self._behind: list[Row] = [
            {
                "under_replicated_partition": f"{topic.name}-{one.partition_index}",
                "leader": one.leader_id if one.leader_id >= 0 else None,
                "replicas": one.replica_nodes,
                "in_sync": one.isr_nodes,
            }
            for topic in topics
            for one in topic.partitions
            if len(one.isr_nodes) < len(one.replica_nodes)
        ]
        self._totals = {
            "topics": len(topics),
            "partitions": len(partitions),
            "under_replicated": len(self._behind),
            "offline": sum(one.leader_id < 0 for one in partitions),
        }

    def as_json(self, indent: int | None = 2) -> str:
        """Return the status as JSON."""
        document = {
            "bootstrap_servers": self._bootstrap,
            "reachable": self._answers,
            **self._totals,
            "quorum": self._quorum,
            "nodes": self._nodes,
            "under_replicated_partitions": self._behind,
            "stopped_with_open_session": self._unexpired,
            "config_errors": self._faults,
            "rejected_requests": self._refusals,
        }
        return json.dumps(document, indent=indent)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text output."""
        yield from format_table(self._nodes)
        if (quorum := self._quorum) is None:
            yield "the quorum is unknown" if self._is_quorum_refused else "the quorum has no leader"
        else:
            yield (
                f"node {quorum['leader']} leads the quorum in leader epoch {quorum['epoch']}, high watermark "
                f"{quorum['high_watermark']}"
            )
        if self._answers:
            topics, partitions, behind, offline = self._totals.values()
            yield (
                f"{plural(topics, 'topic')}, {plural(partitions, 'partition')}, {behind} under-replicated, "
                f"{offline} offline"
            )
            if self._limited_to:
                yield f"these are the topics that {self._limited_to} may describe (not in super.users)"
        elif self._are_brokers_refused:
            yield "the topics are unknown"
        else:
            yield "no broker is reachable"
        if self._behind:
            yield from format_table(self._behind[:MAX_LINES])
            if (more := len(self._behind) - MAX_LINES) > 0:
                yield f"and {more} more"
        for broker_id in self._unexpired:
            yield (
                f"broker {broker_id} is not running, but the controller has not fenced it yet: its "
                "partitions keep their leader until its session times out (broker.session.timeout.ms)"
            )
        yield from map(str, self._faults.values())
        yield from self._refusals


def bootstrap(nodes: Sequence[ClusterNode]) -> str:
    """Return the addresses of all brokers, for bootstrap.servers."""
    return ",".join(node.address for node in nodes if node.is_broker and node.address)


def _state(node: ClusterNode, fenced: Mapping[int, bool] | None) -> str:
    """Return the state of a node. `fenced` has the registered brokers; None if no broker has responded."""
    if node.pid is None:
        return "stopped"
    if not node.is_broker:
        return "running"
    if fenced is None:
        return "unknown"
    return {None: "not registered", True: "fenced", False: "running"}[fenced.get(node.node_id)]


def _quorum_roles(quorum: ResponsePartitionData) -> dict[int, Row]:
    """Return the role in the quorum, and the lag in metadata records, of each node."""
    end = _leader(quorum).log_end_offset
    places: dict[int, Row] = {}
    for name, replicas in (("observer", quorum.observers), ("voter", quorum.current_voters)):
        for one in replicas:
            place = "leader" if one.replica_id == quorum.leader_id else name
            places[one.replica_id] = {"quorum": place, "lag": _lag(one, end)}
    return places


def _quorum_row(quorum: ResponsePartitionData) -> Row:
    leader = _leader(quorum)

    def replica_rows(replicas: Sequence[ReplicaState]) -> list[Row]:
        return [
            {
                "node": one.replica_id,
                "directory": uuid_to_text(one.replica_directory_id),
                "log_end": one.log_end_offset,
                "lag": _lag(one, leader.log_end_offset),
                "lag_ms": _lag_ms(one, leader),
            }
            for one in replicas
        ]

    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": replica_rows(quorum.current_voters),
        "observers": replica_rows(quorum.observers),
    }


def _leader(quorum: ResponsePartitionData) -> ReplicaState:
    """Return the leader's row. The row is among the observers if the leader was removed from the voters."""
    replicas = (*quorum.current_voters, *quorum.observers)
    return next(one for one in replicas if one.replica_id == quorum.leader_id)


def _lag(replica: ReplicaState, end: int) -> int | None:
    """Return the lag in records; None before the replica's first fetch from this leader."""
    return end - replica.log_end_offset if replica.log_end_offset >= 0 else None


def _lag_ms(replica: ReplicaState, leader: ReplicaState) -> int | None:
    """Return how long a replica has not been caught up, as kafka-metadata-quorum calculates it."""
    known = replica.last_caught_up_timestamp
    return max(0, leader.last_caught_up_timestamp - known) if known >= 0 else None
