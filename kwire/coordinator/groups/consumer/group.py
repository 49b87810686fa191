"""The state of one consumer group (KIP-848): epochs, members, target assignments and partition ownership.

A group has three kinds of epochs. The group epoch is bumped when a new target assignment is needed: a member
joined, left or changed its subscription, or topics changed. The assignment epoch is the group epoch of the
latest target assignment. A member's epoch is the epoch of the target assignment that the member has reached.
Only `replay` changes stored state; all other methods read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from kwire.coordinator.groups.consumer.member import (
    Assigned,
    ConsumerGroupMember,
    removal_records,
    target_record,
)
from kwire.coordinator.groups.group_type import Group
from kwire.coordinator.groups.offsets import OffsetCommit
from kwire.coordinator.state_machine import CoordinatorRecord
from kwire.host.loggers import NodeLogger
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid, uuid_to_text
from kwire.wire.records.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kwire.wire.schema import Message

FIRST_EPOCH: Final = 1
"""The group and assignment epoch of a group without a stored epoch."""

FIRST_COMMIT_VERSION_WITH_EPOCH: Final = 9
NO_EPOCH: Final = -1
NO_TARGET: Final[Partitions] = {}

SubscriptionCounts = dict[str, tuple[int, int]]
"""For each subscribed topic: the number of members that name it, and of regular expressions that match it."""


class ConsumerGroupState(Enum):
    """The states of a consumer group. Each value is the state's name in responses."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches."""

    topics: frozenset[str]
    version: int
    """The metadata version at which the topics were matched."""
    timestamp_ms: int


class ConsumerGroup(Group):
    protocol_type = CONSUMER_PROTOCOL_TYPE
    __slots__ = (
        "_logger",
        "assignment_epoch",
        "assignment_timestamp",
        "assignor_counts",
        "classic_members",
        "classic_protocols",
        "counts",
        "epoch",
        "has_partition_metadata",
        "id",
        "members",
        "metadata_hash",
        "partition_epochs",
        "refresh_at_ms",
        "refresh_epoch",
        "regex_counts",
        "resolved",
        "static_member_ids",
        "targets",
    )

    def __init__(self, group_id: str, logger: NodeLogger) -> None:
        self.id = group_id
        self._logger = logger
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_member_ids: dict[str, str] = {}
        """Member ids by instance id."""
        self.targets: dict[str, Partitions] = {}
        self.partition_epochs: dict[bytes, dict[int, int]] = {}
        """By topic id and partition: the epoch of the member that owns the partition or must revoke it."""
        self.counts: SubscriptionCounts = {}
        self.regex_counts: dict[str, int] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.assignor_counts: dict[str, int] = {}
        self.classic_members = 0
        self.classic_protocols: dict[str, int] = {}
        """The number of classic members that support each assignment protocol."""
        self.has_partition_metadata = False
        """Whether the log has a partition metadata record, which brokers before KIP-1101 wrote."""
        self.refresh_at_ms = 0
        """The monotonic time at which to check the topics even without a metadata change."""
        self.refresh_epoch = 0

    # --- reading

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state, from its epochs and the progress of its members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def homogeneous(self) -> bool:
        """Whether the subscription counts show that all members subscribe to the same topics."""
        return is_homogeneous(self.regex_counts, self.counts, len(self.members))

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to this topic, by name or by regular expression."""
        return topic in self.counts

    def check_commit(self, commit: OffsetCommit, *, is_transactional: bool) -> None:
        """Check the sender and the member epoch of a commit. KIP-848, KIP-1251.

        A member that has moved to a later epoch may have commits in flight. Such a commit is valid for
        partitions that the member has owned since the epoch in the commit, since no other member can have
        consumed them meanwhile.

        Raises ApiError for the whole commit: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH (ILLEGAL_GENERATION for
        classic members and transactions); UNSUPPORTED_VERSION if a member with the consumer protocol sent
        OffsetCommit before v9.
        """
        epoch, member_id = commit.generation, commit.member_id
        if epoch < 0 and not self.members:
            return
        if is_transactional and epoch == NO_EPOCH and not member_id and commit.instance_id is None:
            return
        member = self.member(member_id)
        if (
            not is_transactional
            and not member.is_classic
            and commit.api_version < FIRST_COMMIT_VERSION_WITH_EPOCH
        ):
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if epoch != member.epoch and (
            epoch > member.epoch or any(member.is_stale(epoch, one) for one in commit.commits)
        ):
            raise ApiError(ErrorCode.ILLEGAL_GENERATION if is_transactional else member.stale_error)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check the member id and member epoch of an OffsetFetch. Clients outside of the group send neither.

        Raises ApiError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION for classic members).
        """
        if member_id is not None or member_epoch >= 0:
            member = self.member(member_id or "")
            if member_epoch != member.epoch:
                raise ApiError(member.stale_error)

    def check_offset_deletion(self) -> None:
        """Accept the deletion, since the subscriptions are known."""

    def member(self, member_id: str) -> ConsumerGroupMember:
        """Return the member with this id. Raises ApiError UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.id}.",
            )
        return member

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        """Return the member with this instance id, or None if no member has it.

        Raises ApiError UNKNOWN_MEMBER_ID if the member id of this instance id is not in the group.
        """
        member_id = self.static_member_ids.get(instance_id)
        return None if member_id is None else self.member(member_id)

    def known_static_member(self, member_id: str, instance_id: str) -> ConsumerGroupMember:
        """Return the static member with this instance id and member id.

        Raises ApiError: UNKNOWN_MEMBER_ID if the instance id is unknown; FENCED_INSTANCE_ID if another member
        has the instance id.
        """
        member = self.static_member(instance_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.id != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.id}.",
            )
        return member

    def leaving_member(self, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
        """Return the member of a LeaveGroup, which may have only an instance id. Raises ApiError."""
        if instance_id is None:
            return self.member(member_id)
        member = self.static_member(instance_id)
        if member_id or member is None:
            return self.known_static_member(member_id, instance_id)
        return member

    def target(self, member_id: str, instance_id: str | None) -> Partitions:
        """Return a member's target assignment. A static member inherits the target of its predecessor."""
        if instance_id is not None:
            previous_id = self.static_member_ids.get(instance_id)
            return NO_TARGET if previous_id is None else self.targets.get(previous_id, NO_TARGET)
        return self.targets.get(member_id, NO_TARGET)

    def owner_epoch(self, topic_id: bytes, partition: int) -> int:
        """Return the epoch of the member that owns this partition, or NO_EPOCH if no member does."""
        return self.partition_epochs.get(topic_id, {}).get(partition, NO_EPOCH)

    def needs_refresh(self, monotonic_ms: int) -> bool:
        """Whether the topics must be checked for changes."""
        return monotonic_ms >= self.refresh_at_ms or self.epoch < self.refresh_epoch

    def request_refresh(self) -> None:
        """Make the next heartbeat check the topics for changes."""
        self.refresh_at_ms = 0
        self.refresh_epoch = 0

    def preferred_assignor(self) -> str | None:
        """Return the assignor that most members name, or None if no member names an assignor.

        On a tie, the alphabetically last name wins.
        """
        return _most_named(self.assignor_counts)

    def preferred_assignor_after(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> str | None:
        """Return what `preferred_assignor` returns after member `new` has replaced member `old`."""
        counts = dict(self.assignor_counts)
        _count(counts, old.assignor, -1)
        _count(counts, new.assignor, 1)
        return _most_named(counts)

    def counts_after(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> SubscriptionCounts:
        """Return `counts` as they are after member `new` has replaced member `old`."""
        counts = dict(self.counts)
        _subscribe(counts, old.subscribed, by_name=-1)
        _subscribe(counts, new.subscribed, by_name=1)
        if old.regex and old.regex != new.regex and self.regex_counts.get(old.regex) == 1:
            _subscribe(counts, self.matched(old.regex), by_regex=-1)
        return counts

    def counts_without(
        self, members: Iterable[ConsumerGroupMember], expressions: Iterable[str]
    ) -> SubscriptionCounts:
        """Return `counts` without these members and regular expressions."""
        counts = dict(self.counts)
        for member in members:
            _subscribe(counts, member.subscribed, by_name=-1)
        for expression in expressions:
            _subscribe(counts, self.matched(expression), by_regex=-1)
        return counts

    def counts_resolved(self, resolved: Mapping[str, ResolvedRegex]) -> SubscriptionCounts:
        """Return `counts` as they are after these regular expressions were resolved again."""
        counts = dict(self.counts)
        for expression, found in resolved.items():
            _subscribe(counts, self.matched(expression), by_regex=-1)
            _subscribe(counts, found.topics, by_regex=1)
        return counts

    def regex_counts_after(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> dict[str, int]:
        """Return `regex_counts` as they are after member `new` has replaced member `old`."""
        counts = dict(self.regex_counts)
        _count(counts, old.regex, -1)
        _count(counts, new.regex, 1)
        return counts

    def matched(self, expression: str) -> frozenset[str]:
        """Return the topics that a regular expression matches, empty before it is resolved."""
        resolved = self.resolved.get(expression)
        return frozenset() if resolved is None else resolved.topics

    def subscribed_topics(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the names of all topics that a member subscribes to."""
        if not member.regex:
            return member.subscribed
        return member.subscribed | self.matched(member.regex)

    # --- records

    def epoch_record(self, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        """Return the record of a group epoch and of the hash of the topics at this epoch."""
        return CoordinatorRecord(
            ConsumerGroupMetadataKey(group_id=self.id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        )

    def assignment_epoch_record(self, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        """Return the record of the assignment epoch."""
        return CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group_id=self.id),
            ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=epoch, assignment_timestamp=timestamp_ms
            ),
        )

    def regex_record(self, expression: str, resolved: ResolvedRegex | None) -> CoordinatorRecord:
        """Return the record of a resolved regular expression, or its tombstone."""
        return CoordinatorRecord(
            ConsumerGroupRegularExpressionKey(group_id=self.id, regular_expression=expression),
            None
            if resolved is None
            else ConsumerGroupRegularExpressionValue(
                topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
            ),
        )

    def partition_metadata_tombstone(self) -> CoordinatorRecord:
        """Return the tombstone of the record that brokers before KIP-1101 wrote."""
        return CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id=self.id), None)

    def creation_records(self) -> list[CoordinatorRecord]:
        """Return records for the complete state of the group."""
        members = self.members.values()
        return [
            *(member.metadata_record(self.id) for member in members),
            self.epoch_record(self.epoch, self.metadata_hash),
            *(
                target_record(self.id, member.id, self.targets.get(member.id, NO_TARGET))
                for member in members
            ),
            self.assignment_epoch_record(self.assignment_epoch, self.assignment_timestamp),
            *(member.assignment_record(self.id) for member in members),
        ]

    def tombstones(self, member_ids: Iterable[str] | None = None) -> list[CoordinatorRecord]:
        """Return tombstones for all records of the group.

        `member_ids` are the members whose records are in the log. The default is all current members.
        """
        ids = list(self.members if member_ids is None else member_ids)
        of_members = [removal_records(self.id, member_id) for member_id in ids]
        return [
            *(records[0] for records in of_members),
            *(records[1] for records in of_members),
            CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=self.id), None),
            *(records[2] for records in of_members),
            *(self.regex_record(expression, None) for expression in self.resolved),
            self.partition_metadata_tombstone(),
            CoordinatorRecord(ConsumerGroupMetadataKey(group_id=self.id), None),
        ]

    # --- replay

    def replay(self, key: Message, value: Message | None) -> None:
        """Apply a record.

        A value of None is a tombstone. `ConsumerGroups` handles the tombstone of the group itself.
        """
        REPLAY[type(key)](self, key, value)

    def _replay_epoch(self, _key: Any, value: ConsumerGroupMetadataValue) -> None:
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def _replay_partition_metadata(self, _key: Any, value: Message | None) -> None:
        self.has_partition_metadata = value is not None

    def _replay_member(self, key: ConsumerGroupMemberMetadataKey, value: Any) -> None:
        if value is None:
            self._remove(key.member_id)
            return
        known = self.members.get(key.member_id)
        self.put((ConsumerGroupMember(key.member_id) if known is None else known).with_metadata(value))

    def _replay_assignment_epoch(
        self, _key: Any, value: ConsumerGroupTargetAssignmentMetadataValue | None
    ) -> None:
        self.assignment_epoch = NO_EPOCH if value is None else value.assignment_epoch
        self.assignment_timestamp = 0 if value is None else value.assignment_timestamp

    def _replay_target(self, key: ConsumerGroupTargetAssignmentMemberKey, value: Any) -> None:
        if value is None:
            self.targets.pop(key.member_id, None)
            return
        self.targets[key.member_id] = {
            topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
        }

    def _replay_assignment(self, key: ConsumerGroupCurrentMemberAssignmentKey, value: Any) -> None:
        known = self.members.get(key.member_id)
        if value is not None:
            self.put(
                (ConsumerGroupMember(key.member_id) if known is None else known).with_assignment(
                    value, self._logger
                )
            )
        elif known is not None:
            self.put(known.without_assignment())

    def _replay_regex(
        self,
        key: ConsumerGroupRegularExpressionKey,
        value: ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        expression = key.regular_expression
        old = self.resolved.pop(expression, None)
        if old is not None:
            _subscribe(self.counts, old.topics, by_regex=-1)
        if value is not None:
            new = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.resolved[expression] = new
            _subscribe(self.counts, new.topics, by_regex=1)

    def put(self, member: ConsumerGroupMember) -> None:
        """Add or update a member. Only for replay, and for groups that are not stored yet."""
        self._forget(self.members.get(member.id))
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static_member_ids[member.instance_id] = member.id
        _subscribe(self.counts, member.subscribed, by_name=1)
        _count(self.regex_counts, member.regex, 1)
        _count(self.assignor_counts, member.assignor, 1)
        if member.classic is not None:
            self.classic_members += 1
            for protocol in member.classic.supported_protocols:
                _count(self.classic_protocols, protocol.name, 1)
        self._own(member.assigned, member)
        self._own(member.pending_revocation, member)

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._forget(member)
        if member is not None and self.static_member_ids.get(member.instance_id or "") == member_id:
            del self.static_member_ids[member.instance_id or ""]

    def _forget(self, member: ConsumerGroupMember | None) -> None:
        if member is None:
            return
        _subscribe(self.counts, member.subscribed, by_name=-1)
        _count(self.regex_counts, member.regex, -1)
        _count(self.assignor_counts, member.assignor, -1)
        if member.classic is not None:
            self.classic_members -= 1
            for protocol in member.classic.supported_protocols:
                _count(self.classic_protocols, protocol.name, -1)
        self._disown(member.assigned, member.epoch)
        self._disown(member.pending_revocation, member.epoch)

    def _own(self, assigned: Assigned, member: ConsumerGroupMember) -> None:
        for topic_id, partitions in assigned.items():
            owners = self.partition_epochs.setdefault(topic_id, {})
            for partition in partitions:
                if partition in owners and owners[partition] >= member.epoch:
                    self._logger.error(
                        "Group %s: partition %d of topic id %s was assigned to member %s at member epoch %d, "
                        "but its previous owner has not released it",
                        self.id, partition, uuid_to_text(Uuid(topic_id)), member.id, member.epoch,
                    )  # fmt: skip
                owners[partition] = member.epoch

    def _disown(self, assigned: Assigned, epoch: int) -> None:
        for topic_id, partitions in assigned.items():
            owners = self.partition_epochs.get(topic_id)
            if owners is None:
                continue
            for partition in partitions:
                if owners.get(partition) == epoch:
                    del owners[partition]
            if not owners:
                del self.partition_epochs[topic_id]


REPLAY: Final[Mapping[type[Message], Callable[[ConsumerGroup, Any, Any], None]]] = {
    ConsumerGroupMetadataKey: ConsumerGroup._replay_epoch,
    ConsumerGroupPartitionMetadataKey: ConsumerGroup._replay_partition_metadata,
    ConsumerGroupMemberMetadataKey: ConsumerGroup._replay_member,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._replay_assignment_epoch,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._replay_target,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._replay_assignment,
    ConsumerGroupRegularExpressionKey: ConsumerGroup._replay_regex,
}
"""The replay method of each record type."""


def is_homogeneous(
    regex_counts: Mapping[str, int], counts: Mapping[str, tuple[int, int]], members: int
) -> bool:
    """Whether all members (their number is `members`) have the same subscription.

    Either all subscribe by name, or all by the same regular expression.
    """
    if not regex_counts:
        return all(by_name == members for by_name, _ in counts.values())
    if next(iter(regex_counts.values())) != members:
        return False
    return all(by_regex == 1 and by_name <= 0 for by_name, by_regex in counts.values())


def _most_named(counts: Mapping[str, int]) -> str | None:
    return max(counts, key=lambda name: (counts[name], name), default=None)


def _count(counts: dict[str, int], name: str | None, change: int) -> None:
    if not name:
        return
    value = counts.get(name, 0) + change
    if value:
        counts[name] = value
    else:
        counts.pop(name, None)


def _subscribe(
    counts: SubscriptionCounts, topics: Iterable[str], *, by_name: int = 0, by_regex: int = 0
) -> None:
    for topic in topics:
        names, expressions = counts.get(topic, (0, 0))
        changed = (names + by_name, expressions + by_regex)
        if changed == (0, 0):
            counts.pop(topic, None)
        else:
            counts[topic] = changed
