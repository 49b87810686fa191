"""AlterPartition: a partition leader shrinks or expands the ISR. KIP-497, KIP-841, KIP-903.

The checks run in Apache Kafka's order: topic, partition, epochs newer than this controller's metadata, leader
epoch, leader id, partition epoch, the new ISR, the recovery state, and the eligibility of every ISR member.

If the request has a newer leader epoch or partition epoch, then another controller has become active. The
partition leader gets NOT_CONTROLLER and looks up the active controller.
"""

from __future__ import annotations

from kwire.broker.controller.broker_registration import check_broker_epoch
from kwire.broker.controller.commands import (
    AlteredPartition,
    AlterPartition,
    ControllerResult,
    PartitionAlteration,
)
from kwire.broker.controller.partition_change_builder import PartitionChangeBuilder, election_for_topic
from kwire.broker.metadata.delta import NO_LEADER_CHANGE, merge_change
from kwire.broker.metadata.image import RECOVERED, RECOVERING, MetadataImage, PartitionImage
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import PartitionChangeRecord


def alter_partition(
    command: AlterPartition, image: MetadataImage, *, unclean_enabled: bool
) -> ControllerResult[list[AlteredPartition]]:
    """Change the ISR of each partition, or return the partition's error in the response.

    Raises ApiError STALE_BROKER_EPOCH if the leader is not registered with `command.broker_epoch`.
    """
    check_broker_epoch(image, command.broker_id, command.broker_epoch)
    records: list[StoredRecord] = []
    altered: dict[tuple[Uuid, int], PartitionImage] = {}
    outcomes: list[AlteredPartition] = []
    for wanted in command.partitions:
        key = wanted.topic_id, wanted.partition_index
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            outcomes.append(AlteredPartition(*key, ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        if not 0 <= wanted.partition_index < len(topic.partitions):
            outcomes.append(AlteredPartition(*key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        partition = altered.get(key, topic.partitions[wanted.partition_index])
        error = _fault(command.broker_id, wanted, partition, image)
        if error is None and key in altered:
            error = ErrorCode.INVALID_UPDATE_VERSION
        if error is not None:
            outcomes.append(AlteredPartition(*key, error))
            continue
        change = PartitionChangeBuilder(image, topic, wanted.partition_index)
        change.election = election_for_topic(image, topic.name, unclean_enabled=unclean_enabled)
        change.isr = [broker_id for broker_id, _ in wanted.new_isr]
        change.recovery_state = wanted.leader_recovery_state
        stored = change.build()
        if stored is not None:
            records.append(stored)
            record = stored.record
            assert isinstance(record, PartitionChangeRecord)
            partition = altered[key] = merge_change(partition, record)
            if record.leader not in (NO_LEADER_CHANGE, command.broker_id):
                # The new ISR completed a reassignment that removes this leader, so report the new leader.
                outcomes.append(AlteredPartition(*key, ErrorCode.NEW_LEADER_ELECTED))
                continue
        outcomes.append(
            AlteredPartition(
                *key,
                ErrorCode.NONE,
                partition.leader,
                partition.leader_epoch,
                partition.isr,
                partition.leader_recovery_state,
                partition.partition_epoch,
            )
        )
    return ControllerResult(records, outcomes, atomic=False)


def _fault(
    broker_id: int, wanted: PartitionAlteration, partition: PartitionImage, image: MetadataImage
) -> ErrorCode | None:
    if wanted.leader_epoch > partition.leader_epoch or wanted.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if wanted.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wanted.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member for member, _ in wanted.new_isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or partition.leader not in isr:
        return ErrorCode.INVALID_REQUEST
    if wanted.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    is_recovering = wanted.leader_recovery_state == RECOVERING
    if is_recovering and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, member, epoch) for member, epoch in wanted.new_isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _is_eligible(image: MetadataImage, broker_id: int, broker_epoch: int) -> bool:
    """Return whether the broker may join an ISR: it is active, and its epoch is `broker_epoch` or that is -1.

    KIP-841, KIP-903.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or not broker.is_active:
        return False
    return broker_epoch in (UNKNOWN_BROKER_EPOCH, broker.broker_epoch)
