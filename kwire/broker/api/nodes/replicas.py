"""AlterPartition v2–3, AssignReplicasToDirs v0: replica state that brokers send to the controller.

With AlterPartition, leaders change the ISR (KIP-497, KIP-841, KIP-903 in v3). With AssignReplicasToDirs,
brokers report the log directories of their replicas (KIP-858).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.api.request.error_responses import with_results
from kwire.broker.controller.commands import (
    AlteredPartition,
    AlterPartition,
    AssignReplicasToDirs,
    Fault,
    PartitionAlteration,
)
from kwire.broker.metadata.records import DIRECTORIES_LEVEL
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)
from kwire.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kwire.wire.primitives import Uuid

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole

FIRST_WITH_BROKER_EPOCHS = 3


def alter_partition(
    node: ControllerRole, context: ControllerRequestContext, request: AlterPartitionRequest
) -> Delayed:
    """Change the ISR of partitions. Return one result per partition, in the order of the request."""
    has_epochs = context.api_version >= FIRST_WITH_BROKER_EPOCHS

    def isr(partition: RequestPartitionData) -> list[tuple[int, int]]:
        if has_epochs:
            return [(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs]
        return [(broker_id, UNKNOWN_BROKER_EPOCH) for broker_id in partition.new_isr]

    def respond(altered: list[AlteredPartition]) -> AlterPartitionResponse:
        left = iter(altered)
        topics = [
            ResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[_altered(next(left)) for _ in topic.partitions],
            )
            for topic in request.topics
        ]
        return AlterPartitionResponse(topics=topics)

    partitions = [
        PartitionAlteration(
            topic.topic_id,
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            isr(partition),
            partition.leader_recovery_state,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    command = AlterPartition(request.broker_id, request.broker_epoch, partitions)
    return submit(node, context, command, respond)


def _altered(outcome: AlteredPartition) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=outcome.partition_index,
        error_code=outcome.error,
        leader_id=outcome.leader_id,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        leader_recovery_state=outcome.leader_recovery_state,
        partition_epoch=outcome.partition_epoch,
    )


def assign_replicas_to_dirs(
    node: ControllerRole, context: ControllerRequestContext, request: AssignReplicasToDirsRequest
) -> Delayed:
    """Record the log directories of replicas. If a replica occurs twice, its last directory wins.

    Raises ApiError UNSUPPORTED_VERSION if the metadata version is too old.
    """
    if node.image.metadata_version < DIRECTORIES_LEVEL:
        text = "Directory assignment is not supported yet."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)

    def respond(refused: dict[tuple[Uuid, int], ErrorCode]) -> AssignReplicasToDirsResponse:
        faults = (Fault(refused.get(replica, ErrorCode.NONE)) for replica, _ in assigned)
        response = AssignReplicasToDirsResponse()
        return with_results(ApiKey.ASSIGN_REPLICAS_TO_DIRS, response, request, faults)

    assigned = [
        ((topic.topic_id, partition.partition_index), directory.id)
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    command = AssignReplicasToDirs(request.broker_id, request.broker_epoch, dict(assigned))
    return submit(node, context, command, respond)
