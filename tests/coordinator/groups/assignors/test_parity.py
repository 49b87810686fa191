"""The assignments that Apache Kafka 4.3.1 makes: the same ranges; as balanced, and as much of what was there.

`golden.py` wrote the groups and Kafka's answers, and `interop/test_java_parity.py` asks a JVM whether they
still hold. Who of several members gets a partition that any of them might is up to the order of Kafka's hash
maps, and not compared.
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


def spec_of(question: dict[str, Any]) -> GroupSpec:
    """The group that a line of the file describes."""
    topics = {name: (topic_id_of(text), count) for name, text, count in question["topics"]}
    return GroupSpec(
        members={
            member_id: MemberSpec(
                subscribed=[topics[name][0] for name in names if name in topics],
                instance_id=instance_id,
                rack_id=None,
                assigned=partitions_of(owned),
            )
            for member_id, instance_id, names, owned in question["members"]
        },
        homogeneous=question["homogeneous"],
        partition_counts=dict(topics.values()),
    )


def sizes(assignment: Assignment) -> list[int]:
    """How many partitions the members get, least first."""
    return sorted(sum(map(len, own.values())) for own in assignment.values())


def kept(group: GroupSpec, assignment: Assignment) -> int:
    """How many partitions stay where they were."""
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
def test_kafkas_assignment_is_no_better(step: int) -> None:
    lines = DATA.read_text(encoding="ascii").splitlines()[step * CHAINS : (step + 1) * CHAINS]
    assert len(lines) == CHAINS
    compared = 0
    for line in lines:
        question, answer = map(json.loads, line.split("\t"))
        group = spec_of(question)
        ours = ASSIGNORS[question["assignor"]](group)
        theirs = {member_id: partitions_of(owned) for member_id, owned in answer.items()}
        if question["assignor"] == "range":
            assert ours == theirs, line
        elif group.homogeneous and len({frozenset(one.subscribed) for one in group.members.values()}) > 1:
            # Kafka goes by the member that its hash map has first.
            continue
        else:
            assert owners(ours).keys() == owners(theirs).keys(), line
            assert sizes(ours) == sizes(theirs), line
            assert kept(group, ours) == kept(group, theirs), line
        compared += 1
    assert compared >= CHAINS * 3 // 4
