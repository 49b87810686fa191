"""OffsetCommit v2–10: remember how far a group has come.

KIP-211 (no retention from v5), KIP-320 (leader epochs, v6), KIP-345 (instance id, v7), KIP-848 (v9), topic
ids (v10). Topics are checked here, the group and its member by the coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.handlers.context import PARKED, Parked, RequestContext
from coordinator.groups.offsets import PartitionCommit
from coordinator.service import Commit
from kwire.errors import ErrorCode
from kwire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from broker.node import Node

FIRST_VERSION_WITH_TOPIC_IDS = 10
LAST_VERSION_WITH_RETENTION = 4
DEFAULT_RETENTION = -1


def handle(
    node: Node, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Parked:
    """Answer for each partition once the offsets are committed."""
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    response = OffsetCommitResponse(topics=[])
    commits: list[PartitionCommit] = []
    known: list[OffsetCommitResponsePartition] = []
    """Answers for partitions that exist: what is wrong with the whole commit concerns them."""
    for topic in request.topics:
        name = node.topic_names().of(topic.topic_id) if by_id else topic.name
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
        response.topics.append(answer)
        for partition in topic.partitions:
            partition_answer = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            answer.partitions.append(partition_answer)
            if name is None:
                partition_answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            if not node.partition_exists(name, partition.partition_index):
                partition_answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            known.append(partition_answer)
            metadata = partition.committed_metadata or ""
            if len(metadata) > node.config.offset_metadata_max_bytes:
                partition_answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            commits.append(
                PartitionCommit(
                    name,
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                )
            )
    if not known:
        return response
    retention_ms = None
    if context.api_version <= LAST_VERSION_WITH_RETENTION and request.retention_time_ms != DEFAULT_RETENTION:
        retention_ms = request.retention_time_ms

    def done(code: ErrorCode) -> None:
        if code:
            for partition_answer in known:
                partition_answer.error_code = code
        context.complete(response)

    node.groups.commit_offsets(
        Commit(
            group_id=request.group_id,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            commits=commits,
            retention_ms=retention_ms,
            api_version=context.api_version,
        ),
        done,
    )
    return PARKED
