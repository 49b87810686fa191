"""What each member of a consumer group is to have: an assignor decides, and the differences are stored."""

from __future__ import annotations

from coordinator.assignors.spec import Assignor, GroupSpec, MemberSpec
from coordinator.consumer.group import NO_TARGET, ConsumerGroup
from coordinator.consumer.member import Member, Partitions, target_record
from coordinator.machine import StoredRecord
from coordinator.ports import TopicsView


def new_target(
    group: ConsumerGroup,
    updated: Member,
    *,
    epoch: int,
    homogeneous: bool,
    assign: Assignor,
    topics: TopicsView,
    now_ms: int,
) -> tuple[list[StoredRecord], Partitions]:
    """Share the group's partitions out at `epoch`, with one member as it is now.

    Gives the records of what changes, and that member's target. A static member that takes another's place
    takes its target over. ApiError where the assignor fails.
    """
    members = dict(group.members)
    previous_id = None if updated.instance_id is None else group.static_ids.get(updated.instance_id)
    if previous_id is not None and previous_id != updated.id:
        members.pop(previous_id, None)
    members[updated.id] = updated
    counts: dict[bytes, int] = {}
    specs: dict[str, MemberSpec] = {}
    known: dict[frozenset[str], frozenset[bytes]] = {}
    for member in members.values():
        names = group.subscribed_topics(member)
        subscribed = known.get(names)
        if subscribed is None:
            found = [topic for topic in map(topics.by_name, names) if topic is not None]
            counts.update((topic.topic_id, topic.partition_count) for topic in found)
            subscribed = known[names] = frozenset(topic.topic_id for topic in found)
        specs[member.id] = MemberSpec(
            subscribed,
            member.instance_id,
            member.rack_id,
            group.targets.get(member.id, NO_TARGET),
        )
    if previous_id is not None and previous_id != updated.id:
        specs[updated.id] = specs[updated.id]._replace(assigned=group.targets.get(previous_id, NO_TARGET))
    assigned = assign(GroupSpec(specs, homogeneous, counts))
    records = []
    for member_id in members:
        target = assigned.get(member_id, NO_TARGET)
        if target != group.targets.get(member_id):
            records.append(target_record(group.id, member_id, target))
    records.append(group.assignment_epoch_record(epoch, now_ms))
    return records, assigned.get(updated.id, NO_TARGET)
