"""Queries to the nodes of a cluster on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.cli.cluster.directory import ClusterNode
from kwire.client.connection import Connection
from kwire.client.errors import Disconnected
from kwire.wire.errors import ApiError, WireError
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kwire.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.named_tuple import NamedTuple

QUERY_ERRORS: Final = (ApiError, Disconnected, WireError)
QUERY_SECONDS: Final = 5
FORWARDED_QUERY_SECONDS: Final = 1
"""Timeout of DescribeQuorum at a broker, which waits for a controller if none is active."""


class ClusterMetadata(NamedTuple):
    """Responses of the first reachable broker; None if no broker is reachable."""

    cluster: DescribeClusterResponse | None
    metadata: MetadataResponse | None


def query_brokers(nodes: Sequence[ClusterNode]) -> ClusterMetadata:
    """Query the first reachable broker for the cluster's brokers and topics."""
    for node in nodes:
        if node.is_broker and node.config_error is None and node.pid is not None:
            who = DescribeClusterRequest(include_fenced_brokers=True)
            try:
                with _connect(node.config.listener_endpoints()) as broker:
                    return ClusterMetadata(
                        broker.send(who, DescribeClusterResponse),
                        broker.send(MetadataRequest(topics=None), MetadataResponse),
                    )
            except QUERY_ERRORS:
                continue
    return ClusterMetadata(None, None)


def query_quorum(nodes: Sequence[ClusterNode]) -> ResponsePartitionData | None:
    """Return the quorum as its leader describes it; None if no leader responds."""
    partitions = [RequestPartitionData(partition_index=0)]
    request = DescribeQuorumRequest(
        topics=[RequestTopicData(topic_name=METADATA_TOPIC, partitions=partitions)]
    )
    running = [node for node in nodes if node.config_error is None and node.pid is not None]
    targets = [(node.config.controller_endpoints(), QUERY_SECONDS) for node in running if node.is_controller]
    if any(node.is_controller and node not in running for node in nodes):
        # The leader may be an Apache Kafka process with the properties of a stopped node. A broker forwards
        # the request to the leader.
        brokers = [node.config.listener_endpoints() for node in running if node.is_broker]
        targets += [(at, FORWARDED_QUERY_SECONDS) for at in brokers[:1]]
    for endpoints, seconds in targets:
        try:
            with _connect(endpoints, seconds) as controller:
                response = controller.send(request, DescribeQuorumResponse)
        except QUERY_ERRORS:
            continue
        if not response.error_code and not (found := response.topics[0].partitions[0]).error_code:
            return found
    return None


def _connect(endpoints: Iterable[tuple[str, str, int]], seconds: float = QUERY_SECONDS) -> Connection:
    """Connect to the first listener of a node. Raises Disconnected, WireError."""
    _, host, port = next(iter(endpoints))
    return Connection(host or "127.0.0.1", port, "kwire-cluster", seconds)
