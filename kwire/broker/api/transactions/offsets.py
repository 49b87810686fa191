"""TxnOffsetCommit v0–5: offset commits that take effect when a transaction commits. KIP-98, KIP-447, KIP-890.

From v5 on, this request also adds the group's partition of the offsets topic to the transaction. Clients of
older versions send AddOffsetsToTxn for that first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.api.transactions.verification import ErrorWithMessage, verify_transaction
from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC
from kwire.coordinator.groups.errors import response_error
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.coordinator.transactions.state_machine import ProducerIdAndEpoch
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kwire.wire.primitives import utf16_length

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

FIRST_VERSION_THAT_ADDS = 5
FIRST_VERSION_WITH_LOADING = 2
FIRST_VERSION_WITH_ABORTABLE = 4


def txn_offset_commit(
    node: BrokerRole, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Delayed:
    """Return one result per partition, after the offsets are written."""
    response = TxnOffsetCommitResponse()
    existing: list[TxnOffsetCommitResponsePartition] = []
    """The results of existing partitions. If there are any, the coordinator checks group and member."""
    commits: list[PartitionCommit] = []
    for topic in request.topics:
        topic_response = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(topic_response)
        for partition in topic.partitions:
            index = partition.partition_index
            partition_response = TxnOffsetCommitResponsePartition(partition_index=index)
            topic_response.partitions.append(partition_response)
            if not node.partition_exists(topic.name, index):
                partition_response.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            existing.append(partition_response)
            metadata = partition.committed_metadata or ""
            if utf16_length(metadata) > node.config.offset_metadata_max_bytes:
                partition_response.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            # Kafka stores a topic id only with offsets that are committed outside of a transaction.
            offset, epoch = partition.committed_offset, partition.committed_leader_epoch
            commits.append(PartitionCommit(topic.name, index, offset, epoch, metadata))
    if not existing:
        return response

    def done(code: ErrorCode) -> None:
        if (
            code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            and context.api_version < FIRST_VERSION_WITH_LOADING
        ):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code:
            for partition_response in existing:
                partition_response.error_code = code
        context.complete(response)

    def checked(error: ApiError | None) -> None:
        if error is not None:
            # Unlike plain producers, clients that commit offsets know the coordinator's errors.
            done(error.underlying if isinstance(error, ErrorWithMessage) else response_error(error))
            return
        commit = OffsetCommit(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            commits=commits,
            retention_ms=None,
            api_version=context.api_version,
        )
        producer = (request.producer_id, request.producer_epoch)
        node.groups.commit_offsets(commit, done, producer)

    if not request.group_id:
        done(ErrorCode.INVALID_GROUP_ID)
        return DELAYED
    adds = context.api_version >= FIRST_VERSION_THAT_ADDS
    checks = adds or node.config.transaction_partition_verification_enable
    if checks and GROUP_METADATA_TOPIC not in node.image.topics:
        done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return DELAYED
    verify_transaction(
        node,
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        (GROUP_METADATA_TOPIC, node.groups.offsets_partition(request.group_id)),
        adds=adds,
        supports_abortable=context.api_version >= FIRST_VERSION_WITH_ABORTABLE,
        done=checked,
    )
    return DELAYED
