"""Reconciliation steps that the scripts do not reach, and the preferred assignor."""

from __future__ import annotations

import pytest

from kwire.coordinator.groups.consumer.group import NO_EPOCH, ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember, MemberState
from kwire.coordinator.groups.consumer.reconciliation import ReconciliationInput, next_step
from kwire.host.loggers import NodeLogger

TOPIC = b"t" * 16
OTHER = b"u" * 16


def test_partitions_to_revoke_are_added_to_earlier_ones() -> None:
    member = ConsumerGroupMember(
        "m",
        epoch=6,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={TOPIC: {2: 5, 3: 5}},
        pending_revocation={TOPIC: {5: 4}},
    )
    step = next_step(ReconciliationInput(member, 7, {}, [OTHER], True, None, lambda *_: NO_EPOCH))
    assert (step.assigned, step.pending_revocation) == ({}, {TOPIC: {5: 4, 2: 5, 3: 5}})


@pytest.mark.parametrize(
    ("votes", "old", "new", "used"),
    [
        ({}, None, None, None),
        ({}, None, "range", "range"),
        ({"range": 1, "uniform": 1}, None, None, "uniform"),
        ({"uniform": 1, "range": 1}, None, None, "uniform"),
        ({"range": 2, "uniform": 1}, None, "uniform", "uniform"),
        ({"range": 1, "uniform": 1}, "uniform", "range", "range"),
    ],
)
def test_preferred_assignor_is_the_one_that_most_members_name(
    votes: dict[str, int], old: str | None, new: str | None, used: str | None
) -> None:
    group = ConsumerGroup("g", NodeLogger("kwire.groups", ""))
    group.assignor_counts = votes
    stored = dict(votes)
    assert (
        group.preferred_assignor_after(
            ConsumerGroupMember("m", assignor=old), ConsumerGroupMember("m", assignor=new)
        )
        == used
    )
    assert group.assignor_counts == stored
