"""The `range` assignor: each subscriber of a topic gets a contiguous range of partitions. KIP-848.

The order of subscribers is the same for all topics, so that topics with the same subscribers and the same
number of partitions are divided alike. Static members come first, by instance id, and then dynamic members by
member id. So a static member that returns with a new member id gets its ranges again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from kwire.coordinator.groups.assignors.spec import (
    Assignment,
    GroupSpec,
    MemberSpec,
    assignment_failed,
)
from kwire.wire.java_strings import string_sort_key


def assign(spec: GroupSpec) -> Assignment:
    """Return the partitions by member and topic id.

    Raises ApiError UNKNOWN_SERVER_ERROR if a topic does not exist.
    """
    members = sorted(spec.members.items(), key=_rank)
    if spec.homogeneous:
        # `homogeneous` may be outdated. As in Kafka, the first member's subscription is used then.
        specs = [member for _, member in members[:1]] * len(members)
    else:
        specs = [member for _, member in members]
    ranges: dict[bytes, list[tuple[int, int]]] = {}
    for topic_id, subscribers in _subscriber_counts(specs).items():
        if topic_id not in spec.partition_counts:
            raise assignment_failed("Member is subscribed to a non-existent topic")
        ranges[topic_id] = _split(spec.partition_counts[topic_id], subscribers)
        ranges[topic_id].reverse()
    assignment: Assignment = {}
    for (member_id, _), member in zip(members, specs, strict=True):
        own: dict[bytes, frozenset[int]] = {}
        for topic_id in member.subscribed:
            start, end = ranges[topic_id].pop()
            if start < end:
                own[topic_id] = frozenset(range(start, end))
        assignment[member_id] = own
    return assignment


def _rank(entry: tuple[str, MemberSpec]) -> tuple[bool, bytes]:
    member_id, member = entry
    if member.instance_id is None:
        return True, string_sort_key(member_id)
    return False, string_sort_key(member.instance_id)


def _subscriber_counts(members: Iterable[MemberSpec]) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for member in members:
        for topic_id in member.subscribed:
            counts[topic_id] = counts.get(topic_id, 0) + 1
    return counts


def _split(partitions: int, subscribers: int) -> list[tuple[int, int]]:
    """Return the start and the exclusive end of each subscriber's range.

    If there is a remainder, the first subscribers get one partition more.
    """
    fewest, larger = divmod(partitions, subscribers)
    ends = [at * fewest + min(at, larger) for at in range(subscribers + 1)]
    return list(pairwise(ends))
