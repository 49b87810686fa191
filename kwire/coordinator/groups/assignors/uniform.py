"""The `uniform` assignor: members get as many partitions as each other, and keep those they had. KIP-848.

Balance comes before stickiness. This file serves groups of which it is known that their members all want the
same topics; for others see `heterogeneous.py`.

A member's quota is the average, rounded down, and one more for as many members as the rounding has left
partitions over. It gives up what it does not want any more and what exceeds its quota; what is free goes to
those that are below theirs.
"""

from __future__ import annotations

from collections.abc import Collection

from kwire.coordinator.groups.assignors.heterogeneous import assign_heterogeneous
from kwire.coordinator.groups.assignors.partition_map import PartitionMap
from kwire.coordinator.groups.assignors.spec import Assignment, GroupSpec, assignment_failed
from kwire.wire.java import buckets_of_copy, hash_map_order, string_hash, uuid_hash
from kwire.wire.primitives import Uuid, uuid_to_text


def assign(spec: GroupSpec) -> Assignment:
    """Partitions by member and topic id. ApiError: UNKNOWN_SERVER_ERROR where a topic is unknown."""
    members = hash_map_order(spec.members, string_hash)
    wanted: Collection[bytes]
    if spec.homogeneous:
        # The group may have changed since that was so, and then it goes by whoever comes first, as in Kafka.
        wanted = frozenset(spec.members[members[0]].subscribed) if members else ()
    else:
        wanted = frozenset[bytes]().union(*(member.subscribed for member in spec.members.values()))
    for topic_id in sorted(wanted):
        if topic_id not in spec.partition_counts:
            raise assignment_failed(
                f"Members are subscribed to topic {uuid_to_text(Uuid(topic_id))} "
                "which doesn't exist in the topic metadata."
            )
    if not wanted:
        return {}
    if spec.homogeneous:
        return _assign_homogeneous(spec, members, wanted)
    return assign_heterogeneous(spec, members, wanted)


def _assign_homogeneous(spec: GroupSpec, members: list[str], wanted: Collection[bytes]) -> Assignment:
    free = _unowned(spec, wanted, spec.members[members[0]].unknown_topics)
    total = sum(spec.partition_counts[topic_id] for topic_id in wanted)
    fewest, spare = divmod(total, len(members))
    owned: dict[str, PartitionMap] = {}
    room: dict[str, int] = {}
    for index, member_id in enumerate(members):
        own = owned[member_id] = PartitionMap(spec.members[member_id].assigned)
        has_spare = spare > 0
        quota = _revoke(own, wanted, fewest + has_spare, free)
        if quota > 0 and has_spare and len(members) - index > spare:
            # Somebody further on may have one more already, and keep it so.
            quota -= 1
            has_spare = False
        if quota > 0:
            room[member_id] = quota
        spare -= has_spare
    next_free = iter(free)
    for member_id, quota in room.items():
        own = owned[member_id]
        own.to_be_changed()
        for _, (topic_id, partition) in zip(range(quota), next_free, strict=False):
            own.add(topic_id, partition)
    return {member_id: own.result() for member_id, own in owned.items()}


def _unowned(spec: GroupSpec, wanted: Collection[bytes], unknown: int) -> list[tuple[bytes, int]]:
    """The partitions that nobody had, topic by topic in the order of Kafka's set of them."""
    owned = {
        (topic_id, partition)
        for member in spec.members.values()
        for topic_id, partitions in member.assigned.items()
        for partition in partitions
    }
    in_order = [topic_id for topic_id in spec.partition_counts if topic_id in wanted]
    return [
        (topic_id, partition)
        for topic_id in hash_map_order(in_order, uuid_hash, buckets_of_copy(len(in_order) + unknown))
        for partition in range(spec.partition_counts[topic_id])
        if (topic_id, partition) not in owned
    ]


def _revoke(own: PartitionMap, wanted: Collection[bytes], quota: int, free: list[tuple[bytes, int]]) -> int:
    """Take from a member what it may not keep; how many partitions it is short of its quota then."""
    for topic_id in own.topic_ids:
        if topic_id not in wanted:
            own.drop(topic_id)
            continue
        partitions = own.order(topic_id)
        for partition in partitions[quota:]:
            own.remove(topic_id, partition)
            free.append((topic_id, partition))
        quota -= min(quota, len(partitions))
    return quota
