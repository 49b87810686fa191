"""DescribeQuorum v0–2: the state of voters and observers. KIP-595, KIP-836 (v1), KIP-853 (v2)."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from kwire.broker.api.quorum.leader import respond_when_durable
from kwire.broker.api.request.context import Delayed
from kwire.broker.api.request.error_responses import with_results
from kwire.broker.controller.commands import Fault
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    QuorumNode,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole
    from kwire.broker.raft.leading import ReplicaProgress

METADATA_PARTITION = 0
FIRST_WITH_DIRECTORIES = 2


def describe_quorum(
    node: ControllerRole, context: ControllerRequestContext, request: DescribeQuorumRequest
) -> Message | Delayed:
    """Return the state of voters and observers, or an error if this node is not the leader."""
    return respond_when_durable(node, context, lambda: _describe_quorum(node, context, request))


def _describe_quorum(
    node: ControllerRole, context: ControllerRequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Describe the metadata partition. If the request has any other partition, all partitions get errors."""
    asked = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if len(request.topics) != 1 or asked != [(METADATA_TOPIC, METADATA_PARTITION)]:
        text = "This server does not host this topic-partition."
        return _refused(request, Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
    quorum = node.quorum.describe()
    if quorum is None:
        text = "This server does not lead the metadata quorum."
        return _refused(request, Fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
    with_directories = context.api_version >= FIRST_WITH_DIRECTORIES
    now_ms = node.host.now_ms()
    voters, observers = (
        [_state(one, now_ms, with_directories) for one in replicas]
        for replicas in (quorum.voters, quorum.observers)
    )
    partition = ResponsePartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        current_voters=voters,
        observers=observers,
    )
    response = DescribeQuorumResponse(
        topics=[ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
    if with_directories:
        response.nodes = [
            QuorumNode(
                node_id=voter.key.replica_id,
                listeners=[Listener(name=at.name, host=at.host, port=at.port) for at in voter.endpoints],
            )
            for voter in quorum.voter_set
        ]
    return response


def _state(replica: ReplicaProgress, now_ms: int, with_directories: bool) -> ReplicaState:
    fetched_ms, caught_up_ms = (
        -1 if since_ms is None else now_ms - since_ms
        for since_ms in (replica.since_fetch_ms, replica.since_caught_up_ms)
    )
    return ReplicaState(
        replica_id=replica.key.replica_id,
        replica_directory_id=replica.key.directory_id if with_directories else ZERO_UUID,
        log_end_offset=replica.end_offset,
        last_fetch_timestamp=fetched_ms,
        last_caught_up_timestamp=caught_up_ms,
    )


def _refused(request: DescribeQuorumRequest, fault: Fault) -> DescribeQuorumResponse:
    return with_results(ApiKey.DESCRIBE_QUORUM, DescribeQuorumResponse(), request, repeat(fault))
