"""The state, elections and leaders of a node in KafkaRaftMetrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kwire.broker.raft.raft_metrics import KafkaRaftMetrics
from kwire.broker.raft.roles import QuorumRole
from kwire.host.host import InternodeTime

ME = 3


def member(role: QuorumRole, *, epoch: int = 1, leader_id: int = -1, **changed: Any) -> Any:
    fields = {"role": role, "epoch": epoch, "leader_id": leader_id, "voted_id": -1, "is_voter": True}
    return SimpleNamespace(**{**fields, **changed})


@pytest.mark.parametrize(
    ("state", "expected", "voted_id"),
    [
        (member(QuorumRole.UNATTACHED), "unattached", -1),
        (member(QuorumRole.UNATTACHED, voted_id=2), "voted", 2),
        (member(QuorumRole.FOLLOWER, leader_id=1), "follower", -1),
        (member(QuorumRole.FOLLOWER, leader_id=1, is_voter=False), "observer", -1),
        (member(QuorumRole.PROSPECTIVE), "prospective", -1),
        (member(QuorumRole.CANDIDATE), "candidate", ME),
        (member(QuorumRole.LEADER, leader_id=ME), "leader", ME),
    ],
)
def test_state_and_vote_have_the_values_of_kafka(state: Any, expected: str, voted_id: int) -> None:
    metrics = KafkaRaftMetrics()
    metrics.observe(state, ME, InternodeTime(0))
    assert (metrics.state, metrics.voted_id) == (expected, voted_id)


def test_election_latency_lasts_from_the_first_vote_request_to_the_leader() -> None:
    metrics = KafkaRaftMetrics()
    metrics.observe(member(QuorumRole.FOLLOWER, leader_id=1), ME, InternodeTime(0))
    for now_ms, role in ((1_000, QuorumRole.PROSPECTIVE), (1_300, QuorumRole.CANDIDATE)):
        metrics.observe(member(role, epoch=2), ME, InternodeTime(now_ms))
    metrics.observe(member(QuorumRole.LEADER, epoch=2, leader_id=ME), ME, InternodeTime(1_500))
    assert metrics.election_latency_ms.maximum(1_500) == 500
    assert metrics.new_leaders == 2


def test_the_same_leader_in_a_later_epoch_counts_as_a_new_leader() -> None:
    metrics = KafkaRaftMetrics()
    for epoch in (1, 1, 2):
        metrics.observe(member(QuorumRole.FOLLOWER, epoch=epoch, leader_id=1), ME, InternodeTime(0))
    assert metrics.new_leaders == 2
