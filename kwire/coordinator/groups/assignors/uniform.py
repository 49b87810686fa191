"""The `uniform` assignor: members get equally many partitions and keep as many as possible. KIP-848.

Balance has priority over stickiness. This module serves groups whose members all subscribe to the same
topics; `heterogeneous.py` serves all other groups.

A member's quota is the number of partitions divided by the number of members, rounded down. If r partitions
remain, r members get one partition more. A member gives up partitions of topics that it does not subscribe
to, and partitions beyond its quota. Free partitions go to members below their quotas.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from kwire.coordinator.groups.assignors.heterogeneous import assign_heterogeneous
from kwire.coordinator.groups.assignors.spec import (
    Assignment,
    GroupSpec,
    Partitions,
    assignment_failed,
)
from kwire.wire.primitives import Uuid, uuid_to_text


def assign(spec: GroupSpec) -> Assignment:
    """Return the partitions by member and topic id.

    Raises ApiError UNKNOWN_SERVER_ERROR if a topic does not exist.
    """
    subscriptions = [member.subscribed for member in spec.members.values()]
    if spec.homogeneous:
        # `homogeneous` may be outdated. As in Kafka, the first member's subscription is used then.
        subscriptions = subscriptions[:1]
    topic_ids = dict.fromkeys(topic_id for subscribed in subscriptions for topic_id in subscribed)
    for topic_id in sorted(topic_ids):
        if topic_id not in spec.partition_counts:
            raise assignment_failed(
                f"Members are subscribed to topic {uuid_to_text(Uuid(topic_id))} "
                "which doesn't exist in the topic metadata."
            )
    if not topic_ids:
        return {}
    if spec.homogeneous:
        return _assign_homogeneous(spec, topic_ids)
    return assign_heterogeneous(spec, topic_ids)


def _assign_homogeneous(spec: GroupSpec, topic_ids: Collection[bytes]) -> Assignment:
    free = _unowned(spec, topic_ids)
    total = sum(spec.partition_counts[topic_id] for topic_id in topic_ids)
    fewest, spare = divmod(total, len(spec.members))
    owned: dict[str, dict[bytes, list[int]]] = {}
    missing: dict[str, int] = {}
    for index, (member_id, member) in enumerate(spec.members.items()):
        has_spare = spare > 0
        owned[member_id], quota = _kept(member.assigned, topic_ids, fewest + has_spare, free)
        if quota > 0 and has_spare and len(spec.members) - index > spare:
            # A later member may already have one partition more, and can keep it.
            quota -= 1
            has_spare = False
        missing[member_id] = quota
        spare -= has_spare
    next_free = iter(free)
    for member_id, quota in missing.items():
        for topic_id, partition in islice(next_free, quota):
            owned[member_id].setdefault(topic_id, []).append(partition)
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in own.items()}
        for member_id, own in owned.items()
    }


def _unowned(spec: GroupSpec, topic_ids: Collection[bytes]) -> list[tuple[bytes, int]]:
    """Return the partitions without an owner, topic by topic."""
    owned = {
        (topic_id, partition)
        for member in spec.members.values()
        for topic_id, partitions in member.assigned.items()
        for partition in partitions
    }
    return [
        (topic_id, partition)
        for topic_id in topic_ids
        for partition in range(spec.partition_counts[topic_id])
        if (topic_id, partition) not in owned
    ]


def _kept(
    assigned: Partitions, topic_ids: Collection[bytes], quota: int, free: list[tuple[bytes, int]]
) -> tuple[dict[bytes, list[int]], int]:
    """Return the partitions that a member keeps, and how many more partitions its quota allows.

    The member's other partitions of `topic_ids` are appended to `free`.
    """
    kept: dict[bytes, list[int]] = {}
    for topic_id, partitions in assigned.items():
        if topic_id not in topic_ids:
            continue
        in_order = sorted(partitions)
        if quota:
            kept[topic_id] = in_order[:quota]
        free += [(topic_id, partition) for partition in in_order[quota:]]
        quota -= min(quota, len(in_order))
    return kept, quota
