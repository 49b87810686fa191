"""A member's next step towards its target assignment. KIP-848, "Reconciliation Process".

A partition changes hands in three steps: its owner is told to give it up (UNREVOKED_PARTITIONS), says that it
has, and only then is it free for the next one, who waits for it meanwhile (UNRELEASED_PARTITIONS) with what
it could be given already. A member reaches the epoch of the target when it has nothing left to give up.
What each state does next is the table `STEPS`.

Clients are told partitions in the order of Kafka's hash maps, so they are put together here as there: each
map has as many buckets as in `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Final, NamedTuple, TypeVar

from kwire.coordinator.groups.assignors.spec import order_of
from kwire.coordinator.groups.consumer.group import NO_EPOCH
from kwire.coordinator.groups.consumer.member import NOTHING, Assigned, Member, MemberState, Partitions
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java import (
    FEWEST_BUCKETS,
    HashTable,
    buckets_of_copy,
    buckets_of_map_copy,
    hash_map_order,
    hash_set_order,
    uuid_hash,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Owned = Mapping[bytes, Collection[int]]
"""The partitions that a member says it has."""


class Situation(NamedTuple):
    """A member, and all that its next step depends on."""

    member: Member
    target_epoch: int
    target: Partitions
    subscribed: Collection[bytes]
    """The topics that it wants and that there are."""
    subscription_changed: bool
    """Whether it has just said so."""
    owned: Owned | None
    """What it says it has; None where it does not say."""
    owner_epoch: Callable[[bytes, int], int]
    """The epoch of the member that has a partition; NO_EPOCH where it is free."""

    def still_owns(self, assigned: Assigned) -> bool:
        """Whether the member may still use some of these. Not saying counts as yes."""
        if self.owned is None:
            return True
        return any(
            partition in assigned.get(topic_id, ())
            for topic_id, partitions in self.owned.items()
            for partition in partitions
        )


def next_step(situation: Situation) -> Member:
    """The member as it is to be from now on: unchanged where it must wait.

    ApiError FENCED_MEMBER_EPOCH where nothing is known of it, and it must begin anew.
    """
    return STEPS[situation.member.state](situation)


def _stable(now: Situation) -> Member:
    member = now.member
    if member.epoch != now.target_epoch:
        return _towards_target(now, member.epoch)
    if now.subscription_changed:
        return _without_unsubscribed(now)
    return member


def _unrevoked(now: Situation) -> Member:
    if not now.still_owns(now.member.pending_revocation):
        return _towards_target(now, now.member.epoch)
    if now.subscription_changed:
        return _without_unsubscribed(now)
    return now.member


def _unreleased(now: Situation) -> Member:
    return _towards_target(now, now.member.epoch)


def _unknown(now: Situation) -> Member:
    if now.owned is None or now.owned:
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions "
            "and rejoin.",
        )
    return _towards_target(now, now.target_epoch)


STEPS: Final[Mapping[MemberState, Callable[[Situation], Member]]] = {
    MemberState.STABLE: _stable,
    MemberState.UNREVOKED_PARTITIONS: _unrevoked,
    MemberState.UNRELEASED_PARTITIONS: _unreleased,
    MemberState.UNKNOWN: _unknown,
}
"""From each state, what decides upon the next."""


def _without_unsubscribed(now: Situation) -> Member:
    """Take away at once what the member does not want any more, before there is a new target."""
    member = now.member
    assigned: Assigned = {}
    pending = member.assigned
    if now.subscribed or member.pending_revocation:
        lost = [topic_id for topic_id in member.assigned if topic_id not in now.subscribed]
        if not lost:
            return member
        kept = _copied(member.assigned, uuid_hash)
        assigned = {topic_id: epochs for topic_id, epochs in kept.items() if topic_id in now.subscribed}
        pending = _with_lost(member, lost)
    elif not member.assigned:
        # Apache Kafka stores this step, too: the epoch before this one is not accepted any more.
        return member._replace(previous_epoch=member.epoch)
    if now.still_owns(pending):
        return member.moved_to(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending)
    return member.moved_to(member.epoch, member.state, assigned, member.pending_revocation)


def _with_lost(member: Member, lost: Collection[bytes]) -> Assigned:
    """What a member has to give up, once it has lost these topics."""
    pending = dict(member.pending_revocation)
    order = HashTable(uuid_hash, buckets_of_map_copy(len(pending)))
    for topic_id in pending:
        order.put(topic_id)
    for topic_id in lost:
        order.compute(topic_id)
        known = pending.get(topic_id)
        epochs = member.assigned[topic_id]
        if known is not None:
            epochs = _in_buckets({**known, **epochs}, int, buckets_of_map_copy(len(known)))
        pending[topic_id] = epochs
    return {topic_id: pending[topic_id] for topic_id in order.order}


def _towards_target(now: Situation, epoch: int) -> Member:
    """Give up first what is not in the target; then take what of it is free."""
    member = now.member
    assigned: dict[bytes, Mapping[int, int]] = {}
    order = HashTable(uuid_hash)
    pending: dict[bytes, dict[int, int]] = {}
    free: dict[bytes, list[int]] = {}
    waits = False
    buckets = buckets_of_copy(len(now.target))
    for topic_id in hash_map_order([*now.target, *member.assigned], uuid_hash, buckets):
        target = now.target.get(topic_id, frozenset()) if topic_id in now.subscribed else frozenset()
        current = _copied(member.assigned.get(topic_id, {}), int)
        kept = {partition: since for partition, since in current.items() if partition in target}
        if kept:
            order.put(topic_id)
            assigned[topic_id] = kept
        if len(kept) != len(current):
            pending[topic_id] = {
                partition: since for partition, since in current.items() if partition not in target
            }
        own_pending = member.pending_revocation.get(topic_id, {})
        for partition in hash_set_order(order_of(target), int):
            if partition in kept:
                continue
            # What it was itself about to give up needs nobody's release.
            if now.owner_epoch(topic_id, partition) == NO_EPOCH or partition in own_pending:
                free.setdefault(topic_id, []).append(partition)
            else:
                waits = True
    if pending and now.still_owns(pending):
        assigned = {topic_id: assigned[topic_id] for topic_id in order.order}
        pending = _in_buckets(pending, uuid_hash, FEWEST_BUCKETS)
        return member.moved_to(epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending)
    for topic_id in hash_map_order(free, uuid_hash):
        order.compute(topic_id)
        buckets = FEWEST_BUCKETS
        if topic_id in assigned:
            buckets = buckets_of_map_copy(len(member.assigned[topic_id]))
        since = {**assigned.get(topic_id, {}), **dict.fromkeys(free[topic_id], now.target_epoch)}
        assigned[topic_id] = _in_buckets(since, int, buckets)
    assigned = {topic_id: assigned[topic_id] for topic_id in order.order}
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return member.moved_to(now.target_epoch, state, assigned, NOTHING)


def _copied(entries: Mapping[K, V], hash_of: Callable[[K], int]) -> dict[K, V]:
    """A `HashMap` made from this one."""
    return _in_buckets(entries, hash_of, buckets_of_map_copy(len(entries)))


def _in_buckets(entries: Mapping[K, V], hash_of: Callable[[K], int], buckets: int) -> dict[K, V]:
    """A `HashMap` that had so many buckets, and then got these entries."""
    return {key: entries[key] for key in hash_map_order(entries, hash_of, buckets)}
