"""Answers that hang on the order in which the JVM's maps tell their keys: all orders are Kafka's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from kwire.coordinator.groups.assignors.spec import OrderedPartitions, order_of
from kwire.coordinator.groups.consumer.embedded import assignment_of, partitions_of
from kwire.coordinator.groups.consumer.group import NO_EPOCH, ConsumerGroup
from kwire.coordinator.groups.consumer.member import Member, MemberState
from kwire.coordinator.groups.consumer.reconciliation import Situation, next_step
from tests.coordinator.groups.consumer.script import GROUP, Script
from tests.coordinator.scripting import Reply


@pytest.mark.parametrize(
    ("votes", "old", "new", "used"),
    [
        ({}, None, None, None),
        ({}, None, "range", "range"),
        ({"uniform": 1}, None, "range", "range"),
        ({"range": 1}, None, "uniform", "uniform"),
        ({"uniform": 1, "range": 1}, None, None, "uniform"),
        ({"range": 1, "uniform": 1}, None, None, "uniform"),
        ({"range": 1, "uniform": 1}, "range", "range", "range"),
        ({"range": 1, "uniform": 1}, "uniform", "uniform", "uniform"),
        ({"range": 2, "uniform": 1}, None, "uniform", "uniform"),
        ({"range": 2, "uniform": 2}, "range", "range", "uniform"),
        ({"range": 2, "uniform": 1}, "range", "uniform", "uniform"),
    ],
)
def test_a_tie_between_assignors(
    votes: dict[str, int], old: str | None, new: str | None, used: str | None
) -> None:
    group = ConsumerGroup("g")
    group.assignor_counts = votes
    stored = dict(votes)
    assert group.preferred_assignor_after(Member("m", assignor=old), Member("m", assignor=new)) == used
    assert group.assignor_counts == stored


def test_a_tie_is_described_by_the_votes_alone() -> None:
    group = ConsumerGroup("g")
    assert group.preferred_assignor() is None
    for votes in ({"uniform": 1, "range": 1}, {"range": 1, "uniform": 1}):
        group.assignor_counts = votes
        assert group.preferred_assignor() == "uniform"


@pytest.mark.parametrize("configured", [["range", "uniform"], ["uniform", "range"]])
def test_assignors_are_named_as_a_set_of_them_tells_them(configured: list[str]) -> None:
    script = Script()
    script.cluster.config.group_consumer_assignors = configured
    (answer,) = script.run("join m a assignor=other")
    assert answer.endswith("ServerAssignor other is not supported. Supported assignors: uniform, range.")


def test_a_new_assignor_wins_a_tie() -> None:
    script = Script()
    for line in ("topic a 1", "topic b 1", "join m a,b assignor=uniform", "wait 1000"):
        script.run(line)
    script.run("join n a,b assignor=range")
    assert script.run("describe") == [
        "Reconciling, epoch 3, assignment epoch 3, uniform",
        "m wants a,b: epoch 2, has a:0 b:0 of a:0 b:0",
        "n wants a,b: epoch 3, has nothing of nothing",
    ]


def test_subscribed_topics_are_told_by_their_hashes() -> None:
    script = Script()
    script.run("join m gtgrp6a,gtgrp6b")
    assert "wants gtgrp6b,gtgrp6a:" in script.run("describe")[1]


def described(script: Script) -> list[tuple[str, list[int], list[int]]]:
    """Member by member, what it has and is to have of the only topic."""
    reply = Reply()
    script.cluster.service.describe_consumer_group(GROUP, reply)
    script.cluster.host.run_pending()

    def partitions(assignment: Any) -> list[int]:
        return [number for topic in assignment.topic_partitions for number in topic.partitions]

    return [
        (member.member_id, partitions(member.assignment), partitions(member.target_assignment))
        for member in reply.value.members
    ]


def rounds(script: Script, *names: str) -> None:
    for _ in range(3):
        script.run("wait 1000")
        for name in names:
            script.run(f"beat {name} owns=all")


def told(script: Script, name: str) -> list[int]:
    return list(script.clients[name].assigned["t"])


def test_partitions_are_told_by_their_buckets() -> None:
    script = Script()
    for line in ("topic t 5", "join a t assignor=range", "wait 1000", "join b t", "join c t"):
        script.run(line)
    rounds(script, "a", "b", "c")
    assert [told(script, name) for name in "abc"] == [[0, 1], [2, 3], [4]]
    script.run("leave c")
    rounds(script, "a", "b")
    # It still had 3, in a map of four buckets. What is stored is read into one of sixteen.
    assert told(script, "b") == [4, 3]
    assert described(script) == [("b", [3, 4], [3, 4]), ("a", [0, 1, 2], [0, 1, 2])]


@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_partitions_beyond_the_buckets_come_first(assignor: str) -> None:
    script = Script()
    for line in ("topic t 40", f"join a t assignor={assignor}", "wait 1000", "join b t"):
        script.run(line)
    rounds(script, "a", "b")
    assert told(script, "b") == [*range(32, 40), *range(20, 32)]
    expected = [
        ("b", [*range(32, 40), *range(20, 32)], [*range(32, 40), *range(20, 32)]),
        ("a", [*range(20)], [*range(20)]),
    ]
    assert described(script) == expected
    script.run("restart")
    assert described(script) == expected


def test_a_topic_that_grew_is_told_by_its_buckets() -> None:
    script = Script()
    for line in ("topic t 40", "join a t assignor=uniform", "wait 1000", "join b t"):
        script.run(line)
    rounds(script, "a", "b")
    script.run("topic t 43")
    rounds(script, "a", "b")
    own = [*range(9), 40, *range(9, 20)]
    other = [*range(32, 40), 41, 42, *range(20, 32)]
    assert (told(script, "a"), told(script, "b")) == (own, other)
    assert described(script) == [("b", other, other), ("a", own, own)]


def test_members_are_told_by_a_map_that_does_not_shrink() -> None:
    script = Script()
    script.run("topic t 3")
    orders = []
    for number in range(14):
        script.run(f"join {number} t id=member-{number}")
        orders.append([int(member_id.split("-")[1]) for member_id, *_ in described(script)])
    assert orders[1:4] == [[0, 1], [0, 2, 1], [3, 0, 2, 1]]
    assert orders[8:10] == [[8, 3, 0, 5, 7, 2, 4, 6, 1], [3, 8, 0, 5, 2, 7, 4, 9, 1, 6]]
    assert orders[13] == [13, 3, 10, 8, 0, 5, 12, 2, 7, 4, 11, 9, 1, 6]
    for number in (3, 4, 5, 6, 7):
        script.run(f"leave {number}")
    assert [member_id for member_id, *_ in described(script)] == [
        f"member-{number}" for number in (13, 10, 8, 0, 12, 2, 11, 9, 1)
    ]


TOPIC = b"t" * 16
OTHER = b"u" * 16


def situation(
    member: Member, target: Mapping[bytes, frozenset[int]], subscribed: Collection[bytes], *, changed: bool
) -> Situation:
    return Situation(member, 7, target, subscribed, changed, None, lambda *_: NO_EPOCH)


def test_a_step_that_changes_nothing_may_change_the_order() -> None:
    member = Member("m", epoch=7, state=MemberState.UNRELEASED_PARTITIONS, assigned={TOPIC: {3: 7, 4: 7}})
    target = {TOPIC: OrderedPartitions([3, 4])}
    step = next_step(situation(member, target, [TOPIC], changed=False))
    assert list(step.assigned[TOPIC]) == [4, 3]
    assert step == member._replace(state=MemberState.STABLE, previous_epoch=7)


def test_partitions_to_give_up_follow_those_of_before() -> None:
    member = Member(
        "m",
        epoch=6,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={TOPIC: {2: 5, 3: 5}},
        pending_revocation={TOPIC: {5: 4}},
    )
    step = next_step(situation(member, {}, [OTHER], changed=True))
    assert (step.assigned, step.pending_revocation) == ({}, {TOPIC: {5: 4, 2: 5, 3: 5}})
    assert list(step.pending_revocation[TOPIC].items()) == [(5, 4), (2, 5), (3, 5)]


def test_an_assignment_of_the_classic_protocol() -> None:
    script = Script()
    script.run("topic t 20")
    topics = script.cluster.topics
    topic_id = topics.topics["t"].topic_id
    order = [16, 17, 18, 19, *range(10, 16)]
    data = assignment_of({topic_id: OrderedPartitions(order)}, 1, topics)
    assert data[13:53] == b"".join(number.to_bytes(4, "big") for number in order)
    data = assignment_of({topic_id: OrderedPartitions(sorted(order))}, 1, topics)
    assert order_of(partitions_of(data, topics)[topic_id]) == tuple(order)
