"""What each member of a consumer group is to have: an assignor decides, and the differences are stored."""

from __future__ import annotations

from collections.abc import Collection

from kwire.coordinator.groups.assignors.spec import Assignor, GroupSpec, MemberSpec
from kwire.coordinator.groups.consumer.group import NO_TARGET, ConsumerGroup
from kwire.coordinator.groups.consumer.member import Member, Partitions, target_record
from kwire.coordinator.machine import StoredRecord
from kwire.coordinator.ports import TopicsView
from kwire.wire.java import hash_map_order, hash_set_order, string_hash


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
    takes its target over. Members and topics come in the order of Kafka's maps, which decides between equals.
    ApiError where the assignor fails.
    """
    members = {member.id: member for member in group.members_in_order()}
    previous_id = None if updated.instance_id is None else group.static_ids.get(updated.instance_id)
    if previous_id is not None and previous_id != updated.id:
        members.pop(previous_id, None)
    members[updated.id] = updated
    told = hash_map_order(members, string_hash)
    counts: dict[bytes, int] = {}
    known: dict[frozenset[str], Collection[bytes]] = {}
    for member_id in told:
        names = group.subscribed_topics(members[member_id])
        if names in known:
            continue
        found = [topics.by_name(name) for name in hash_set_order(sorted(names), string_hash)]
        existing = [topic for topic in found if topic is not None]
        for topic in existing:
            counts.setdefault(topic.topic_id, topic.partition_count)
        known[names] = dict.fromkeys(topic.topic_id for topic in existing)
    specs: dict[str, MemberSpec] = {}
    for member in members.values():
        names = group.subscribed_topics(member)
        subscribed = known[names]
        specs[member.id] = MemberSpec(
            subscribed,
            member.instance_id,
            member.rack_id,
            group.targets.get(member.id, NO_TARGET),
            len(names) - len(subscribed),
        )
    if previous_id is not None and previous_id != updated.id:
        specs[updated.id] = specs[updated.id]._replace(assigned=group.targets.get(previous_id, NO_TARGET))
    assigned = assign(GroupSpec(specs, homogeneous, counts))
    records = []
    for member_id in told:
        target = assigned.get(member_id, NO_TARGET)
        if target != group.targets.get(member_id):
            records.append(target_record(group.id, member_id, target))
    records.append(group.assignment_epoch_record(epoch, now_ms))
    return records, assigned.get(updated.id, NO_TARGET)
