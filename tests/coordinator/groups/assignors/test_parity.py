"""Assignments compared with those of Apache Kafka 4.3.1.

The range assignor must give the same ranges, the uniform assignor the same balance and as few moved
partitions. `golden.py` wrote the groups and Kafka's assignments; `interop/test_java_parity.py` checks them
with a JVM. The order of Kafka's hash maps decides between equal members, so individual owners are not
compared.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest

from kwire.coordinator.groups.assignors import ASSIGNORS
from kwire.coordinator.groups.assignors.spec import Assignment, GroupSpec, MemberSpec
from tests.coordinator.groups.assignors.golden import CHAINS, DATA, STEPS


def topic_id_of(text: str) -> bytes:
    return urlsafe_b64decode(text + "==")


def partitions_of(owned: list[Any]) -> dict[bytes, frozenset[int]]:
    return {topic_id_of(text): frozenset(partitions) for text, partitions in owned}


def spec_of(group_json: dict[str, Any]) -> GroupSpec:
    """Return the group that a line of the file describes."""
    topics = {name: (topic_id_of(text), count) for name, text, count in group_json["topics"]}
    return GroupSpec(
        members={
            member_id: MemberSpec(
                subscribed=[topics[name][0] for name in names if name in topics],
                instance_id=instance_id,
                rack_id=None,
                assigned=partitions_of(owned),
            )
            for member_id, instance_id, names, owned in group_json["members"]
        },
        homogeneous=group_json["homogeneous"],
        partition_counts=dict(topics.values()),
    )


def sizes(assignment: Assignment) -> list[int]:
    """Return the number of partitions of each member, sorted."""
    return sorted(sum(map(len, own.values())) for own in assignment.values())


def unmoved_count(group: GroupSpec, assignment: Assignment) -> int:
    """Return the number of partitions that keep their owner."""
    return sum(
        len(partitions & group.members[member_id].assigned.get(topic_id, frozenset()))
        for member_id, own in assignment.items()
        for topic_id, partitions in own.items()
    )


def owners(assignment: Assignment) -> dict[tuple[bytes, int], str]:
    found = [
        ((topic_id, partition), member_id)
        for member_id, own in assignment.items()
        for topic_id, partitions in own.items()
        for partition in partitions
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("step", range(STEPS))
def test_assignment_is_as_good_as_kafkas(step: int) -> None:
    lines = DATA.read_text(encoding="ascii").splitlines()[step * CHAINS : (step + 1) * CHAINS]
    assert len(lines) == CHAINS
    compared = 0
    for line in lines:
        group_json, expected = map(json.loads, line.split("\t"))
        group = spec_of(group_json)
        ours = ASSIGNORS[group_json["assignor"]](group)
        theirs = {member_id: partitions_of(owned) for member_id, owned in expected.items()}
        if group_json["assignor"] == "range":
            assert ours == theirs, line
        elif group.homogeneous and len({frozenset(one.subscribed) for one in group.members.values()}) > 1:
            # Kafka uses the subscription of the first member in its hash map.
            continue
        else:
            assert owners(ours).keys() == owners(theirs).keys(), line
            assert sizes(ours) == sizes(theirs), line
            assert unmoved_count(group, ours) == unmoved_count(group, theirs), line
        compared += 1
    assert compared >= CHAINS * 3 // 4
