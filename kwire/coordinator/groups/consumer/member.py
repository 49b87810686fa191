"""One member of a consumer group (KIP-848). Members are immutable, so that changes can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.offsets import PartitionCommit
from kwire.coordinator.state_machine import CoordinatorRecord
from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.plural import plural
from kwire.wire.primitives import Uuid
from kwire.wire.records.consumer_groups import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
    TopicPartitions,
)

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2
"""The member epoch of a static member that has left and will return with the same instance id."""

Assigned: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""By topic id and partition: the member epoch at which the partition was assigned. KIP-1251."""

NONE_ASSIGNED: Final[Assigned] = {}


class MemberState(IntEnum):
    """A member's progress towards its target assignment. Each value is the state's number in records."""

    STABLE = 0
    """The member has reached the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """The member must revoke partitions, and has not confirmed the revocation."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members have not released."""
    UNKNOWN = 127
    """The record is of a later version, with a state that this version does not know."""

    @classmethod
    def from_value(cls, value: int) -> MemberState:
        """Return the state with this number in a record."""
        return cls(value) if value in (0, 1, 2) else cls.UNKNOWN


class ConsumerGroupMember(NamedTuple):
    """A member's identity, subscription and current assignment."""

    id: str
    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed: frozenset[str] = frozenset()
    """The topics that the member subscribes to by name."""
    regex: str | None = ""
    """The regular expression that the member also subscribes to. None or empty if there is none."""
    assignor: str | None = None
    assigned: Assigned = NONE_ASSIGNED
    pending_revocation: Assigned = NONE_ASSIGNED
    """The partitions that the member must revoke."""
    classic: ClassicMemberMetadata | None = None
    """Set for a member of the classic protocol."""

    def is_stale(self, epoch: int, commit: PartitionCommit) -> bool:
        """Whether the member has not owned the partition since this epoch."""
        since = self.assignment_epoch(commit.topic_id, commit.partition)
        return since is None or epoch < since

    @property
    def stale_error(self) -> ErrorCode:
        """The error of an offset request with another epoch than the member's."""
        return ErrorCode.ILLEGAL_GENERATION if self.is_classic else ErrorCode.STALE_MEMBER_EPOCH

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether the member's assignment is the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch at which the member got a partition, or None if the member does not own it."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        if epoch is None:
            epoch = self.pending_revocation.get(topic_id, {}).get(partition)
        return epoch

    def advance_to(
        self, epoch: int, state: MemberState, assigned: Assigned, pending: Assigned
    ) -> ConsumerGroupMember:
        """Return the member with a new epoch, state and assignment. The member must revoke `pending`."""
        return self._replace(
            epoch=epoch,
            previous_epoch=self.epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending,
        )

    def after_static_leave(self) -> ConsumerGroupMember:
        """Return the static member after a temporary leave.

        The member keeps its partitions, but its offset commits are refused.
        """
        return self._replace(
            epoch=STATIC_LEAVING_EPOCH,
            assigned={topic_id: dict.fromkeys(parts, 0) for topic_id, parts in self.assigned.items()},
            pending_revocation=NONE_ASSIGNED,
        )

    # --- records

    def metadata_record(self, group_id: str) -> CoordinatorRecord:
        """Return the record of the member's identity and subscription."""
        return CoordinatorRecord(
            ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.id),
            ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=sorted(self.subscribed),
                subscribed_topic_regex=self.regex,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.assignor,
                classic_member_metadata=self.classic,
            ),
        )

    def assignment_record(self, group_id: str) -> CoordinatorRecord:
        """Return the record of the member's current assignment."""
        return CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=self.state.value,
                assigned_partitions=_stored(self.assigned),
                partitions_pending_revocation=_stored(self.pending_revocation),
            ),
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        """Return the member with the identity and subscription of a record."""
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment(
        self, value: ConsumerGroupCurrentMemberAssignmentValue, logger: NodeLogger
    ) -> ConsumerGroupMember:
        """Return the member with the epoch, state and current assignment of a record."""
        return self._replace(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState.from_value(value.state),
            assigned=_loaded(value.assigned_partitions, value.member_epoch, self.id, logger),
            pending_revocation=_loaded(
                value.partitions_pending_revocation, value.member_epoch, self.id, logger
            ),
        )

    def without_assignment(self) -> ConsumerGroupMember:
        """Return the member after the tombstone of its current assignment."""
        return self._replace(
            epoch=LEAVING_EPOCH,
            previous_epoch=LEAVING_EPOCH,
            assigned=NONE_ASSIGNED,
            pending_revocation=NONE_ASSIGNED,
        )


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """Return the record of a member's target assignment."""
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                TopicPartition(topic_id=Uuid(topic_id), partitions=sorted(partitions))
                for topic_id, partitions in target.items()
            ]
        ),
    )


def removal_records(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return tombstones for all records of a member, in the order that replay requires."""
    return [
        CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        ),
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
        ),
        CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def _stored(assigned: Assigned) -> list[TopicPartitions]:
    stored = []
    for topic_id, epochs in assigned.items():
        stored.append(
            TopicPartitions(
                topic_id=Uuid(topic_id),
                partitions=list(epochs),
                assignment_epochs=list(epochs.values()),
            )
        )
    return stored


def _loaded(
    stored: Iterable[TopicPartitions], member_epoch: int, member_id: str, logger: NodeLogger
) -> Assigned:
    """Return the partitions of a record.

    Records from before KIP-1251 have no assignment epochs. The member epoch is used instead, or 0 if the
    member epoch is negative.
    """
    default_epoch = max(member_epoch, 0)
    assigned: dict[bytes, Mapping[int, int]] = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        if epochs is not None and len(epochs) != len(topic.partitions):
            logger.error(
                "Using the member epoch instead of the stored assignment epochs of member %s: the record has "
                "%s for %s",
                member_id,
                plural(len(epochs), "epoch"),
                plural(len(topic.partitions), "partition"),
            )
            epochs = None
        if epochs is None:
            assigned[topic.topic_id] = dict.fromkeys(topic.partitions, default_epoch)
        else:
            assigned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return assigned
