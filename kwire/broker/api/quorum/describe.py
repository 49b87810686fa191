"""DescribeQuorum v0–2: how those do that keep the metadata log. KIP-595, KIP-836 (v1), KIP-853 (v2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.metadata.names import CLUSTER_METADATA_TOPIC
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from kwire.wire.messages.describe_quorum import Node as QuorumNode

if TYPE_CHECKING:
    from kwire.broker.api.ports import Asked, ControllerRole

METADATA_PARTITION = 0
FIRST_WITH_DIRECTORIES = 2


def describe_quorum(
    node: ControllerRole, context: Asked, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """There is one quorum: who asks for anything else, or for anything beside it, is told of nothing."""
    asked = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if len(request.topics) != 1 or asked != [(CLUSTER_METADATA_TOPIC, METADATA_PARTITION)]:
        text = "This server does not host this topic-partition."
        return _refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if not node.quorum.leads:
        text = "This server does not lead the metadata quorum."
        return _refused(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    quorum = node.quorum.describe()
    # The leader has always just caught up with itself.
    now_ms = node.host.now_ms()
    partition = ResponsePartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=quorum.leader_id,
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
        observers=[
            ReplicaState(
                replica_id=state.key.replica_id,
                replica_directory_id=state.key.directory_id,
                log_end_offset=state.end_offset,
                last_fetch_timestamp=state.last_fetch_ms,
                last_caught_up_timestamp=state.last_caught_up_ms,
            )
            for state in quorum.observers
        ],
    )
    listeners = [Listener(name=name, host=host, port=port) for name, host, port in quorum.endpoints]
    response = DescribeQuorumResponse(
        topics=[ResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])]
    )
    if context.api_version >= FIRST_WITH_DIRECTORIES:
        response.nodes = [QuorumNode(node_id=node.node_id, listeners=listeners)]
    else:
        for state in (*partition.current_voters, *partition.observers):
            state.replica_directory_id = ReplicaState().replica_directory_id
    return response


def _refused(request: DescribeQuorumRequest, code: ErrorCode, text: str) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            ResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    ResponsePartitionData(
                        partition_index=partition.partition_index,
                        error_code=code,
                        error_message=text,
                        current_voters=[],
                        observers=[],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
