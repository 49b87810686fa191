"""A member's next step towards its target assignment. KIP-848, "Reconciliation Process".

A partition moves in three steps. Its owner must revoke it (UNREVOKED_PARTITIONS), the owner confirms the
revocation, and then the next member can get the partition. Meanwhile the next member has the partitions that
are free already (UNRELEASED_PARTITIONS). A member reaches the epoch of the target when it has nothing left to
revoke. `STEPS` has a function for each state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.consumer.group import NO_EPOCH
from kwire.coordinator.groups.consumer.member import NONE_ASSIGNED, Assigned, ConsumerGroupMember, MemberState
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.named_tuple import NamedTuple

Owned = Mapping[bytes, Collection[int]]
"""The partitions that a member reports as owned."""


class ReconciliationInput(NamedTuple):
    """A member, and everything that its next step depends on."""

    member: ConsumerGroupMember
    target_epoch: int
    target: Partitions
    subscribed: Collection[bytes]
    """The ids of the existing topics that the member subscribes to."""
    subscription_changed: bool
    """Whether this request changed the subscription."""
    owned: Owned | None
    """The partitions that the member reports as owned, or None if the request does not have this field."""
    owner_epoch: Callable[[bytes, int], int]
    """Returns the epoch of the member that owns a partition, or NO_EPOCH if no member does."""

    def still_owns(self, assigned: Assigned) -> bool:
        """Whether the member may still consume one of these partitions. True if `owned` is None."""
        if self.owned is None:
            return True
        return any(
            partition in assigned.get(topic_id, ())
            for topic_id, partitions in self.owned.items()
            for partition in partitions
        )


def next_step(inputs: ReconciliationInput) -> ConsumerGroupMember:
    """Return the member after its next step, or unchanged if the member must wait.

    Raises ApiError FENCED_MEMBER_EPOCH if the member has an unknown state and must rejoin.
    """
    return STEPS[inputs.member.state](inputs)


def _stable(inputs: ReconciliationInput) -> ConsumerGroupMember:
    member = inputs.member
    if member.epoch != inputs.target_epoch:
        return _towards_target(inputs, member.epoch)
    if inputs.subscription_changed:
        return _without_unsubscribed(inputs)
    return member


def _unrevoked(inputs: ReconciliationInput) -> ConsumerGroupMember:
    if not inputs.still_owns(inputs.member.pending_revocation):
        return _towards_target(inputs, inputs.member.epoch)
    if inputs.subscription_changed:
        return _without_unsubscribed(inputs)
    return inputs.member


def _unreleased(inputs: ReconciliationInput) -> ConsumerGroupMember:
    return _towards_target(inputs, inputs.member.epoch)


def _unknown(inputs: ReconciliationInput) -> ConsumerGroupMember:
    if inputs.owned is None or inputs.owned:
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions "
            "and rejoin.",
        )
    return _towards_target(inputs, inputs.target_epoch)


STEPS: Final[Mapping[MemberState, Callable[[ReconciliationInput], ConsumerGroupMember]]] = {
    MemberState.STABLE: _stable,
    MemberState.UNREVOKED_PARTITIONS: _unrevoked,
    MemberState.UNRELEASED_PARTITIONS: _unreleased,
    MemberState.UNKNOWN: _unknown,
}
"""For each state, the function that returns the member after its next step."""


def _without_unsubscribed(inputs: ReconciliationInput) -> ConsumerGroupMember:
    """Revoke partitions of unsubscribed topics at once, before a new target assignment."""
    member = inputs.member
    assigned: Assigned = {}
    pending = member.assigned
    if inputs.subscribed or member.pending_revocation:
        lost = [topic_id for topic_id in member.assigned if topic_id not in inputs.subscribed]
        if not lost:
            return member
        assigned = {topic_id: parts for topic_id, parts in member.assigned.items() if topic_id not in lost}
        pending = {
            **member.pending_revocation,
            **{
                topic_id: {**member.pending_revocation.get(topic_id, {}), **member.assigned[topic_id]}
                for topic_id in lost
            },
        }
    elif not member.assigned:
        # As in Apache Kafka, this step is stored: the previous epoch is no longer accepted.
        return member._replace(previous_epoch=member.epoch)
    if inputs.still_owns(pending):
        return member.advance_to(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending)
    return member.advance_to(member.epoch, member.state, assigned, member.pending_revocation)


def _towards_target(inputs: ReconciliationInput, epoch: int) -> ConsumerGroupMember:
    """Revoke the partitions that are not in the target, or add the target's free partitions.

    `epoch` is the member's epoch until the member has confirmed the revocation.
    """
    member = inputs.member
    kept: dict[bytes, Mapping[int, int]] = {}
    lost: dict[bytes, Mapping[int, int]] = {}
    reached: dict[bytes, Mapping[int, int]] = {}
    waits = False
    for topic_id in dict.fromkeys([*inputs.target, *member.assigned]):
        target = inputs.target.get(topic_id, frozenset()) if topic_id in inputs.subscribed else frozenset()
        current = member.assigned.get(topic_id, {})
        own_pending = member.pending_revocation.get(topic_id, {})
        keeps = {partition: since for partition, since in current.items() if partition in target}
        # Partitions that this member itself must revoke are free for it.
        takes = [
            partition
            for partition in sorted(target.difference(current))
            if partition in own_pending or inputs.owner_epoch(topic_id, partition) == NO_EPOCH
        ]
        waits = waits or len(keeps) + len(takes) < len(target)
        if keeps:
            kept[topic_id] = keeps
        if len(keeps) < len(current):
            lost[topic_id] = {part: since for part, since in current.items() if part not in target}
        if keeps or takes:
            reached[topic_id] = {**keeps, **dict.fromkeys(takes, inputs.target_epoch)}
    if lost and inputs.still_owns(lost):
        return member.advance_to(epoch, MemberState.UNREVOKED_PARTITIONS, kept, lost)
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return member.advance_to(inputs.target_epoch, state, reached, NONE_ASSIGNED)
