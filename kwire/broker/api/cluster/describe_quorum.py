"""DescribeQuorum v0–2: how the voters of the metadata log are doing. KIP-595, KIP-836, KIP-853."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.broker.metadata.names import CLUSTER_METADATA_TOPIC
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node as Broker

METADATA_PARTITION = 0


def handle(node: Broker, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """There is one quorum: who asks for anything else, or for anything beside it, is told of nothing."""
    asked = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if len(request.topics) != 1 or asked != [(CLUSTER_METADATA_TOPIC, METADATA_PARTITION)]:
        return _unknown(request)
    quorum = node.quorum.describe()
    # The leader has always just caught up with itself.
    now_ms = node.host.now_ms()
    partition = ResponsePartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=node.node_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=[
            ReplicaState(
                replica_id=node.node_id,
                replica_directory_id=quorum.directory_id,
                log_end_offset=quorum.log_end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
        observers=[],
    )
    listeners = [Listener(name=name, host=host, port=port) for name, host, port in quorum.endpoints]
    response = DescribeQuorumResponse(
        topics=[ResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])]
    )
    if context.api_version >= 2:
        response.nodes = [Node(node_id=node.node_id, listeners=listeners)]
    else:
        partition.current_voters[0].replica_directory_id = ReplicaState().replica_directory_id
    return response


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            ResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    ResponsePartitionData(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="This server does not host this topic-partition.",
                        current_voters=[],
                        observers=[],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
