"""Answers that hang on the order in which the JVM's maps tell their keys."""

from __future__ import annotations

import pytest

from coordinator.consumer.group import ConsumerGroup
from coordinator.consumer.member import Member
from tests.coordinator.consumer.script import Script


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
