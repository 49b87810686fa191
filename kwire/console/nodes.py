"""The page of the cluster: brokers, features and the KRaft quorum."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.cli.shared.command_client import CommandClient
from kwire.client.errors import Disconnected, raise_for_code
from kwire.console.page import Page, PageRequest, PageResult
from kwire.wire.errors import ApiError
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kwire.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kwire.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from kwire.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)


def cluster_page(request: PageRequest) -> PageResult:
    cluster = request.cluster
    metadata = cluster.metadata(None)
    partitions = [one for topic in metadata.topics for one in topic.partitions]
    leads = Counter(one.leader_id for one in partitions)
    keeps = Counter(broker for one in partitions for broker in one.replica_nodes)
    describe = DescribeClusterRequest(include_fenced_brokers=True)
    description = cluster.retry(lambda: cluster.send(describe, DescribeClusterResponse))
    raise_for_code(description.error_code, description.error_message, "the cluster")
    may_describe = request.may_describe_cluster()
    rows = [
        {
            "broker": broker,
            "leads": leads[broker.broker_id],
            "keeps": keeps[broker.broker_id],
            "directories": None
            if broker.is_fenced or not may_describe
            else _directories(cluster, broker.broker_id),
        }
        for broker in sorted(description.brokers, key=lambda broker: broker.broker_id)
    ]
    versions = cluster.send(
        ApiVersionsRequest(client_software_name="kwire", client_software_version="console"),
        ApiVersionsResponse,
    )
    return Page(
        "cluster.html",
        {
            "cluster_id": description.cluster_id,
            "controller": description.controller_id,
            "rows": rows,
            "partitions": len(partitions),
            "leaderless": leads[-1],
            "features": sorted(
                (feature.name, feature.max_version_level) for feature in versions.finalized_features
            ),
            "quorum": _quorum(cluster) if may_describe else None,
            "may_describe": may_describe,
            "now_ms": request.now_ms,
        },
    )


def _directories(cluster: CommandClient, broker: int) -> list[dict[str, Any]] | None:
    """Return the log directories of a broker; None if the request fails."""
    try:
        response = cluster.send_to_node(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    except (ApiError, Disconnected):
        return None
    return [
        {
            "path": one.log_dir,
            "is_offline": bool(one.error_code),
            "size": sum(each.partition_size for topic in one.topics for each in topic.partitions),
            "free": one.usable_bytes,
        }
        for one in response.results
    ]


def _quorum(cluster: CommandClient) -> ResponsePartitionData | None:
    """Return the KRaft quorum; None if the request fails, for example because there is no leader."""
    request = DescribeQuorumRequest(
        topics=[
            RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])
        ]
    )
    try:
        response = cluster.send(request, DescribeQuorumResponse)
    except (ApiError, Disconnected):
        return None
    if response.error_code or not response.topics or response.topics[0].partitions[0].error_code:
        return None
    return response.topics[0].partitions[0]
