"""AlterPartitionReassignments: start and cancel partition reassignments. KIP-455, KIP-860."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.controller.commands import (
    MAX_RECORDS_PER_REQUEST,
    TOO_MANY_RECORDS,
    AlterPartitionReassignments,
    ControllerResult,
    Election,
    Fault,
)
from kwire.broker.controller.partition_change_builder import (
    PartitionChangeBuilder,
    election_for_topic,
    find_partition,
    is_reassigning,
    without,
)
from kwire.broker.controller.topics import assignment_fault
from kwire.broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.errors import ErrorCode


def alter_partition_reassignments(
    command: AlterPartitionReassignments, image: MetadataImage, *, unclean_enabled: bool
) -> ControllerResult[list[Fault | None]]:
    """Start or cancel reassignments. Return the error of each partition, or None if it succeeded."""
    records: list[StoredRecord] = []
    outcomes: list[Fault | None] = []
    for name, index, replicas in command.partitions:
        outcome = _reassign(
            image, unclean_enabled, name, index, replicas, command.allow_replication_factor_change
        )
        if isinstance(outcome, StoredRecord) and len(records) == MAX_RECORDS_PER_REQUEST:
            outcome = TOO_MANY_RECORDS
        outcomes.append(outcome if isinstance(outcome, Fault) else None)
        if isinstance(outcome, StoredRecord):
            records.append(outcome)
    return ControllerResult(records, outcomes)


def _reassign(
    image: MetadataImage,
    unclean_enabled: bool,
    name: str,
    index: int,
    replicas: Sequence[int] | None,
    may_change_factor: bool,
) -> StoredRecord | Fault | None:
    if name not in image.topics:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    found = find_partition(image, name, index)
    if found is None:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    topic, partition = found
    if replicas is None:
        return _cancel(image, unclean_enabled, topic, index, partition)
    fault = assignment_fault(image, replicas, None)
    if fault is None and not may_change_factor:
        fault = _replication_factor_fault(partition, replicas)
    if fault is not None:
        return fault
    removing = sorted(without(partition.replicas, replicas))
    change = PartitionChangeBuilder(image, topic, index)
    change.replicas = [*replicas, *removing]
    if removing:
        change.removing = removing
    adding = sorted(without(replicas, partition.replicas))
    if adding:
        change.adding = adding
    return change.build()


def _replication_factor_fault(partition: PartitionImage, replicas: Sequence[int]) -> Fault | None:
    """Return an error if the replication factor would change. A current reassignment counts as completed."""
    present = len(partition.replicas)
    if is_reassigning(partition):
        kept = {*partition.replicas, *partition.adding_replicas} - set(partition.removing_replicas)
        present = len(kept)
    if present == len(replicas):
        return None
    text = f"The replication factor is changed from {present} to {len(replicas)}"
    return Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)


def _cancel(
    image: MetadataImage, unclean_enabled: bool, topic: TopicImage, index: int, partition: PartitionImage
) -> StoredRecord | Fault | None:
    """Return the record that restores the replicas from before the reassignment, or an error."""
    if not is_reassigning(partition):
        return Fault(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = without(partition.replicas, partition.adding_replicas)
    if not replicas:
        text = "Invalid replica assignment: addingReplicas contains all replicas."
        return Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    election = election_for_topic(image, topic.name, unclean_enabled=unclean_enabled)
    isr = without(partition.isr, partition.adding_replicas)
    if not isr:
        if election is not Election.UNCLEAN:
            text = (
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an "
                "unclean leader election."
            )
            return Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        isr = replicas[:1]
    change = PartitionChangeBuilder(image, topic, index)
    change.replicas, change.isr, change.removing, change.adding = replicas, isr, [], []
    change.election = election
    return change.build()
