"""OffsetCommit v2–10: remember how far a group has come.

KIP-211 (no retention from v5), KIP-320 (leader epochs, v6), KIP-345 (instance id, v7), KIP-848 (v9), topic
ids (v10). Topics are checked here, the group and its member by the coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.groups.commit_answers import refused_first
from kwire.coordinator.groups.offsets import Commit, PartitionCommit
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kwire.wire.primitives import ZERO_UUID, Uuid, utf16_length

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_VERSION_WITH_TOPIC_IDS = 10
LAST_VERSION_WITH_RETENTION = 4
DEFAULT_RETENTION = -1

Who = tuple[str, Uuid]
"""A topic as the request names it: by name, or from v10 on by id."""


def handle(
    node: Node, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Parked:
    """Answer for each partition once the offsets are committed."""
    version = context.api_version
    by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
    commits: list[PartitionCommit] = []
    refused: dict[Who, OffsetCommitResponseTopic] = {}
    """What does not exist, by topic: the coordinator is not asked about it."""
    asked: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        name = node.topic_names().of(topic.topic_id) if by_id else topic.name
        image = None if name is None else node.image.topics.get(name)
        missing: list[OffsetCommitResponsePartition] = []
        there: list[OffsetCommitResponsePartition] = []
        for partition in topic.partitions:
            index = partition.partition_index
            answer = OffsetCommitResponsePartition(partition_index=index)
            if name is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                missing.append(answer)
                continue
            if not node.partition_exists(name, index):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                missing.append(answer)
                continue
            there.append(answer)
            metadata = partition.committed_metadata
            if metadata is not None and utf16_length(metadata) > node.config.offset_metadata_max_bytes:
                answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            commits.append(
                PartitionCommit(
                    name,
                    index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata or "",
                    ZERO_UUID if image is None else image.topic_id,
                )
            )
        if missing or image is None:
            told = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=missing)
            known = refused.setdefault((topic.name, topic.topic_id), told)
            if known is not told:
                known.partitions += missing
        if there:
            asked.append(
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=there)
            )
    if not asked:
        return OffsetCommitResponse(topics=list(refused.values()))
    retention_ms = None
    if version <= LAST_VERSION_WITH_RETENTION and request.retention_time_ms != DEFAULT_RETENTION:
        retention_ms = request.retention_time_ms

    def done(code: ErrorCode) -> None:
        if code:
            for topic_answer in asked:
                for partition_answer in topic_answer.partitions:
                    partition_answer.error_code = code
        topics = refused_first(refused, asked, lambda topic: (topic.name, topic.topic_id))
        context.complete(OffsetCommitResponse(topics=topics))

    commit = Commit(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        commits,
        retention_ms,
        version,
    )
    node.groups.commit_offsets(commit, done)
    return PARKED
