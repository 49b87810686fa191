"""TxnOffsetCommit v0–5: offsets that count if a transaction commits. KIP-98, KIP-447, KIP-890.

From v5 on the group's partition of the offsets topic becomes part of the transaction by this request; before,
AddOffsetsToTxn must have said so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.groups.offsets import refused_first
from kwire.broker.api.transactions.checks import ToldError, check_transaction
from kwire.broker.metadata.names import GROUP_METADATA_TOPIC
from kwire.coordinator.groups.offsets import Commit, PartitionCommit
from kwire.coordinator.transactions.machine import Producer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kwire.wire.primitives import utf16_length

if TYPE_CHECKING:
    from kwire.broker.api.ports import Broker

FIRST_VERSION_THAT_ADDS = 5
FIRST_VERSION_WITH_LOADING = 2
FIRST_VERSION_WITH_ABORTABLE = 4


def txn_offset_commit(
    node: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Parked:
    """Answer for each partition once the offsets are stored."""
    commits: list[PartitionCommit] = []
    refused: dict[str, TxnOffsetCommitResponseTopic] = {}
    """What does not exist, by topic."""
    asked: list[TxnOffsetCommitResponseTopic] = []
    """What the coordinator is asked about, though it may be about whose request it is alone."""
    for topic in request.topics:
        image = node.image.topics.get(topic.name)
        missing = TxnOffsetCommitResponseTopic(name=topic.name)
        there = TxnOffsetCommitResponseTopic(name=topic.name)
        for partition in topic.partitions:
            answer = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            metadata = partition.committed_metadata or ""
            if image is None or not node.partition_exists(topic.name, partition.partition_index):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                missing.partitions.append(answer)
                continue
            there.partitions.append(answer)
            if utf16_length(metadata) > node.config.offset_metadata_max_bytes:
                answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                # Without the topic's id: Kafka stores it for what is committed at once, and not for these.
                commits.append(
                    PartitionCommit(
                        topic.name,
                        partition.partition_index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata,
                    )
                )
        if missing.partitions or image is None:
            known = refused.setdefault(topic.name, missing)
            if known is not missing:
                known.partitions += missing.partitions
        if there.partitions:
            asked.append(there)
    if not asked:
        return TxnOffsetCommitResponse(topics=list(refused.values()))

    def done(code: ErrorCode) -> None:
        if (
            code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            and context.api_version < FIRST_VERSION_WITH_LOADING
        ):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code:
            for topic_answer in asked:
                for partition_answer in topic_answer.partitions:
                    partition_answer.error_code = code
        topics = refused_first(refused, asked, lambda topic: topic.name)
        context.complete(TxnOffsetCommitResponse(topics=topics))

    def checked(error: ApiError | None) -> None:
        if error is not None:
            # A group's clients know what is wrong with a coordinator, unlike producers.
            done(error.underlying if isinstance(error, ToldError) else error.code)
            return
        commit = Commit(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            commits=commits,
            retention_ms=None,
            api_version=context.api_version,
        )
        producer = (request.producer_id, request.producer_epoch)
        node.groups.commit_transactional_offsets(commit, producer, done)

    if not request.group_id:
        done(ErrorCode.INVALID_GROUP_ID)
        return PARKED
    adds = context.api_version >= FIRST_VERSION_THAT_ADDS
    checks = adds or node.config.transaction_partition_verification_enable
    if checks and GROUP_METADATA_TOPIC not in node.image.topics:
        done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return PARKED
    check_transaction(
        node,
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        (GROUP_METADATA_TOPIC, node.groups.offsets_partition(request.group_id)),
        adds=adds,
        knows_abortable=context.api_version >= FIRST_VERSION_WITH_ABORTABLE,
        done=checked,
    )
    return PARKED
