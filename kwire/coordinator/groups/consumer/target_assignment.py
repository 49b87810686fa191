"""Target assignments of consumer groups: an assignor computes them, and the changed ones are stored."""

from __future__ import annotations

from collections.abc import Collection

from kwire.coordinator.groups.assignors.spec import Assignor, GroupSpec, MemberSpec, Partitions
from kwire.coordinator.groups.consumer.group import NO_TARGET, ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember, target_record
from kwire.coordinator.ports import TopicsView
from kwire.coordinator.state_machine import CoordinatorRecord


def build_target_assignment(
    group: ConsumerGroup,
    updated: ConsumerGroupMember,
    *,
    epoch: int,
    homogeneous: bool,
    assign: Assignor,
    topics: TopicsView,
    now_ms: int,
) -> tuple[list[CoordinatorRecord], Partitions]:
    """Compute the target assignment at `epoch`, with `updated` as a new or changed member.

    Returns the records of the changes, and the target of `updated`. A static member that replaces another
    member inherits that member's target. Raises ApiError UNKNOWN_SERVER_ERROR if the assignor fails.
    """
    specs: dict[str, MemberSpec] = {}
    counts: dict[bytes, int] = {}
    known: dict[frozenset[str], Collection[bytes]] = {}
    previous_id = None if updated.instance_id is None else group.static_member_ids.get(updated.instance_id)
    for member in {**group.members, updated.id: updated}.values():
        if member.id == previous_id != updated.id:
            continue
        names = group.subscribed_topics(member)
        if names not in known:
            found = [topic for topic in map(topics.by_name, sorted(names)) if topic is not None]
            counts.update((topic.topic_id, topic.partition_count) for topic in found)
            known[names] = dict.fromkeys(topic.topic_id for topic in found)
        target_of = member.id if member.id != updated.id or previous_id is None else previous_id
        specs[member.id] = MemberSpec(
            known[names], member.instance_id, member.rack_id, group.targets.get(target_of, NO_TARGET)
        )
    assigned = assign(GroupSpec(specs, homogeneous, counts))
    records = []
    for member_id in specs:
        target = assigned.get(member_id, NO_TARGET)
        if target != group.targets.get(member_id):
            records.append(target_record(group.id, member_id, target))
    records.append(group.assignment_epoch_record(epoch, now_ms))
    return records, assigned.get(updated.id, NO_TARGET)
