"""The assignments that Apache Kafka 4.3.1 makes, member by member and partition by partition.

`golden.py` wrote the groups and Kafka's answers, and `interop/test_java_parity.py` asks a JVM whether they
still hold.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest

from kwire.coordinator.groups.assignors import ASSIGNORS
from kwire.coordinator.groups.assignors.spec import (
    Assignment,
    GroupSpec,
    MemberSpec,
    OrderedPartitions,
    order_of,
)
from kwire.wire.java import hash_map_order, hash_set_order, string_hash, timeline_map_order
from tests.coordinator.groups.assignors.golden import CHAINS, DATA, STEPS


def topic_id_of(text: str) -> bytes:
    return urlsafe_b64decode(text + "==")


def partitions_of(owned: list[Any]) -> dict[bytes, frozenset[int]]:
    return {topic_id_of(text): OrderedPartitions(partitions) for text, partitions in owned}


def spec_of(question: dict[str, Any]) -> GroupSpec:
    """The group that a line of the file describes, in the order of Kafka's maps."""
    topics = {name: (topic_id_of(text), count) for name, text, count in question["topics"]}
    members = {
        member_id: MemberSpec(
            subscribed=dict.fromkeys(
                topics[name][0] for name in hash_set_order(names, string_hash) if name in topics
            ),
            instance_id=instance_id,
            rack_id=None,
            assigned=partitions_of(owned),
            unknown_topics=len(set(names) - topics.keys()),
        )
        for member_id, instance_id, names, owned in question["members"]
    }
    joined = timeline_map_order(members, string_hash)
    # Kafka takes the names in the order of the first member in its map.
    first = hash_map_order(joined, string_hash)[0]
    names = next(names for member_id, _, names, _ in question["members"] if member_id == first)
    in_order = [*hash_set_order(names, string_hash), *topics]
    return GroupSpec(
        members={member_id: members[member_id] for member_id in joined},
        homogeneous=question["homogeneous"],
        partition_counts={topics[name][0]: topics[name][1] for name in in_order if name in topics},
    )


def in_order(assignment: Assignment) -> dict[str, list[tuple[bytes, list[int]]]]:
    return {
        member_id: [(topic_id, list(order_of(partitions))) for topic_id, partitions in topics.items()]
        for member_id, topics in assignment.items()
    }


@pytest.mark.parametrize("step", range(STEPS))
def test_kafka_makes_the_same_assignment(step: int) -> None:
    lines = DATA.read_text(encoding="ascii").splitlines()[step * CHAINS : (step + 1) * CHAINS]
    assert len(lines) == CHAINS
    for line in lines:
        question, answer = map(json.loads, line.split("\t"))
        ours = ASSIGNORS[question["assignor"]](spec_of(question))
        theirs = {member_id: partitions_of(owned) for member_id, owned in answer.items()}
        assert ours == theirs, line
        assert in_order(ours) == in_order(theirs), line
