"""The start of a quorum: its first election, and requests to voters that start later."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kwire.broker.raft.calls import MAX_BACKOFF_MS
from kwire.broker.raft.machine import Machine
from kwire.broker.raft.outputs import Reached, Send
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.standing import FIRST_ELECTION_SHARE
from kwire.host.host import InternodeTime, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.vote import VoteRequest
from tests.broker.raft.raft_harness import (
    ADDRESSES,
    ELECTION_TIMEOUT_MS,
    FETCH_TIMEOUT_MS,
    RaftHarness,
    begin_quorum_epoch,
    fetch_response,
    vote_request,
    vote_response,
)

FIRST_ELECTION_MS = ELECTION_TIMEOUT_MS // FIRST_ELECTION_SHARE
REFUSED = PeerUnreachable("connection refused")


def election_delays_ms(make: Callable[[], RaftHarness]) -> list[int]:
    """Return the times after which nodes with different random numbers start their first election."""
    delays_ms = []
    harness = make()
    for seed in range(50):
        now_ms = InternodeTime(0)
        machine = Machine(
            harness.terms, harness.log, random.Random(seed), remembered=harness.remembered, now_ms=now_ms
        )
        machine.start(now_ms)
        while machine.role is not QuorumRole.PROSPECTIVE:
            assert machine.due_ms is not None
            now_ms = max(now_ms, machine.due_ms)
            for send in machine.tick(now_ms):
                if isinstance(send, Send) and isinstance(send.request, FetchRequest):
                    machine.handle_response(send.number, REFUSED, now_ms)
        delays_ms.append(int(now_ms))
    return delays_ms


@pytest.mark.parametrize("dynamic", [False, True])
def test_new_voter_starts_its_first_election_after_a_fraction_of_the_timeout(dynamic: bool) -> None:
    delays_ms = election_delays_ms(lambda: RaftHarness(dynamic=dynamic))
    assert min(delays_ms) >= 1
    assert max(delays_ms) <= FIRST_ELECTION_MS
    assert len(set(delays_ms)) > 20, "voters that start together must not start elections together"


@pytest.mark.parametrize(
    ("remembered", "log"),
    [
        (QuorumState(leader_epoch=1), {}),
        (QuorumState(leader_epoch=1, voted_id=2), {}),
        (QuorumState(leader_epoch=1, leader_id=2), {}),
        (QuorumState(), {1: 3}),
        (QuorumState(leader_epoch=1), {1: 3}),
    ],
    ids=["epoch", "vote", "leader", "log without quorum-state", "log"],
)
def test_voter_that_knows_an_epoch_waits_for_the_complete_timeout(
    remembered: QuorumState, log: dict[int, int]
) -> None:
    delays_ms = election_delays_ms(lambda: RaftHarness(remembered=remembered, log=log))
    assert min(delays_ms) >= ELECTION_TIMEOUT_MS


def test_later_elections_wait_for_the_complete_timeout() -> None:
    harness = RaftHarness()
    harness.become_candidate()
    harness.request(vote_request(3, 2))
    began_ms = harness.now_ms
    while harness.machine.role is QuorumRole.UNATTACHED:
        harness.run_due()
    assert harness.now_ms - began_ms >= ELECTION_TIMEOUT_MS


def test_observer_starts_no_election() -> None:
    harness = RaftHarness(me=4, may_vote=False)
    harness.advance(5 * FETCH_TIMEOUT_MS)
    assert harness.machine.role is QuorumRole.UNATTACHED


def test_new_voter_stores_its_first_vote_before_it_requests_votes() -> None:
    harness = RaftHarness()
    harness.become_candidate()
    names = [type(one).__name__ for one in harness.executed]
    requests = [
        index
        for index, one in enumerate(harness.executed)
        if isinstance(one, Send)
        and isinstance(one.request, VoteRequest)
        and not one.request.topics[0].partitions[0].pre_vote
    ]
    assert names.index("Remember") < min(requests)


class TestReached:
    """A voter is reachable again as soon as it sends a request."""

    @staticmethod
    def alone() -> tuple[RaftHarness, list[Send]]:
        """Return a prospective node whose requests to the other voters have failed several times."""
        harness = RaftHarness()
        sends = harness.become_prospective()
        for _ in range(6):
            for send in sends:
                harness.respond(send, REFUSED)
            sends = [send for _ in range(2) for send in harness.next_sends()]
        for send in sends:
            harness.respond(send, REFUSED)
        return harness, sends

    def vote_requests_to(self, harness: RaftHarness, node_id: int) -> list[Send]:
        return [
            one
            for one in harness.tick()
            if isinstance(one, Send) and isinstance(one.request, VoteRequest) and one.to == ADDRESSES[node_id]
        ]

    def test_fetch_of_a_voter_ends_the_backoff_of_requests_to_it(self) -> None:
        harness, _ = self.alone()
        assert self.vote_requests_to(harness, 2) == []
        assert harness.execute(harness.machine.heard_from(2)) == [Reached(ADDRESSES[2])]
        [send] = self.vote_requests_to(harness, 2)
        harness.respond(send, vote_response(0))
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.CANDIDATE, 1)

    def test_vote_request_of_a_voter_ends_the_backoff_of_requests_to_it(self) -> None:
        harness, _ = self.alone()
        harness.request(vote_request(3, 0, pre_vote=True))
        assert Reached(ADDRESSES[3]) in harness.executed
        assert len(self.vote_requests_to(harness, 3)) == 1
        assert self.vote_requests_to(harness, 2) == []

    def test_requests_of_other_nodes_have_no_effect(self) -> None:
        harness, _ = self.alone()
        for node_id in (-1, 1, 4, 99):
            assert harness.execute(harness.machine.heard_from(node_id)) == []
        assert harness.tick() == []

    def test_backoff_after_a_response_continues(self) -> None:
        harness = RaftHarness()
        [send, *_] = harness.become_prospective()
        harness.respond(send, vote_response(0, code=ErrorCode.UNKNOWN_LEADER_EPOCH))
        node_id = next(one for one, address in ADDRESSES.items() if address == send.to)
        harness.execute(harness.machine.heard_from(node_id))
        assert self.vote_requests_to(harness, node_id) == []

    def test_request_of_the_leader_ends_the_backoff_of_fetches(self) -> None:
        harness = RaftHarness(remembered=QuorumState(leader_epoch=3)).become_follower(2, 3)
        harness.respond(harness.next_sends()[0], fetch_response(2, 3))
        for _ in range(3):
            for send in harness.next_sends():
                harness.respond(send, REFUSED)
        due_ms = harness.machine.due_ms
        assert due_ms is not None
        assert due_ms > harness.now_ms
        harness.request(begin_quorum_epoch(2, 3))
        [send] = [one for one in harness.tick() if isinstance(one, Send)]
        assert isinstance(send.request, FetchRequest)

    def test_backoff_of_a_voter_that_sends_nothing_is_limited(self) -> None:
        harness, _ = self.alone()
        before_ms = harness.now_ms
        harness.next_sends()
        assert harness.now_ms - before_ms <= 1.2 * MAX_BACKOFF_MS
