"""Queries to the nodes of a cluster on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kwire.broker.config.authorizer import authorizer_settings
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.cli.cluster.directory import ClusterNode
from kwire.cli.cluster.node_connection import Target, broker_targets, controller_targets, query
from kwire.client.connection import Connection
from kwire.client.errors import raise_for_code
from kwire.wire.errors import ErrorCode
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

QUERY_SECONDS: Final = 5
FORWARDED_QUERY_SECONDS: Final = 1
"""Timeout of DescribeQuorum at a broker, which waits for a controller if none is active."""


class ClusterMetadata(NamedTuple):
    """Responses of the first broker that returns them; None if no broker does."""

    cluster: DescribeClusterResponse | None
    metadata: MetadataResponse | None
    refusal: str | None = None
    """Why a broker has refused the requests, if no broker has returned responses."""
    limited_to: str | None = None
    """The principal of the requests if it may not be able to describe all topics."""


class QuorumReply(NamedTuple):
    """The response of the quorum's leader."""

    quorum: ResponsePartitionData | None
    """None if no leader has responded."""
    refusal: str | None = None
    """Why a node has refused the request, if no leader has responded. The quorum may have a leader."""


def query_brokers(nodes: Sequence[ClusterNode]) -> ClusterMetadata:
    """Query the brokers, one after the other, for the cluster's brokers and topics."""
    targets = [broker_targets(node, QUERY_SECONDS) for node in _running(nodes) if node.is_broker]
    found, refusal = query(targets, _describe_cluster)
    if found is None:
        return ClusterMetadata(None, None, refusal)
    target, cluster, metadata = found
    return ClusterMetadata(cluster, metadata, limited_to=_limited_principal(target))


def _describe_cluster(
    broker: Connection, target: Target
) -> tuple[Target, DescribeClusterResponse, MetadataResponse]:
    cluster = broker.send(DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse)
    raise_for_code(cluster.error_code, cluster.error_message, "DescribeCluster")
    return target, cluster, broker.send(MetadataRequest(topics=None), MetadataResponse)


def _limited_principal(target: Target) -> str | None:
    settings = authorizer_settings(target.node.config.static_settings)
    if settings is None or target.principal in settings.super_users:
        return None
    return target.principal


def query_quorum(nodes: Sequence[ClusterNode]) -> QuorumReply:
    """Query the controllers for the quorum's leader and its description of the quorum."""
    running = _running(nodes)
    targets = [controller_targets(node, QUERY_SECONDS) for node in running if node.is_controller]
    found, refusal = query(targets, _describe_quorum)
    if found is None and (refusal or any(node.is_controller and node not in running for node in nodes)):
        # The leader may be an Apache Kafka process with the properties of a stopped node. A broker forwards
        # the request to the leader.
        brokers = [broker_targets(node, FORWARDED_QUERY_SECONDS) for node in running if node.is_broker]
        found, other_refusal = query(brokers[:1], _describe_quorum)
        refusal = None if found else refusal or other_refusal
    return QuorumReply(found, refusal)


def _describe_quorum(node: Connection, target: Target) -> ResponsePartitionData | None:
    """Return the quorum if the node, or the node to which it forwards the request, is the leader."""
    partitions = [RequestPartitionData(partition_index=0)]
    topic = RequestTopicData(topic_name=METADATA_TOPIC, partitions=partitions)
    response = node.send(DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse)
    if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise_for_code(response.error_code, None, "DESCRIBE on the cluster")
    if response.error_code or (found := response.topics[0].partitions[0]).error_code:
        return None
    return found


def _running(nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
    return [node for node in nodes if node.config_error is None and node.pid is not None]
