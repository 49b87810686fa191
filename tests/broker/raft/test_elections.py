"""Votes, elections, leadership and resignation of one voter. The simulation covers whole quorums."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kwire.broker.raft.elections import LAST_EPOCH
from kwire.broker.raft.fetching import FETCH_WAIT_MS
from kwire.broker.raft.outputs import Advance, AppendControls, Complain, Send, Unlead
from kwire.broker.raft.quorum_state import QuorumState
from kwire.broker.raft.roles import MOVES, Event, QuorumRole
from kwire.broker.raft.standing import FIRST_BACKOFF_MS, LEAST_BACKOFF_MS
from kwire.host.host import PeerTooOld
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from kwire.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.vote import VoteRequest
from kwire.wire.records.raft import KRaftVersionRecord, LeaderChangeMessage, VotersRecord
from kwire.wire.schema import Message
from tests.broker.raft.raft_harness import (
    BACKOFF_MAX_MS,
    ELECTION_TIMEOUT_MS,
    FETCH_TIMEOUT_MS,
    RaftHarness,
    begin_quorum_epoch,
    directory,
    end_quorum_epoch,
    fetch_response,
    key,
    remembered_states,
    vote_request,
    vote_response,
)

CODE = ErrorCode


def error_code_of(answer: object) -> ErrorCode:
    """Return the error code of the partition, or of the response without topics."""
    top = ErrorCode(answer.error_code)  # type: ignore[attr-defined]
    topics = answer.topics  # type: ignore[attr-defined]
    return ErrorCode(topics[0].partitions[0].error_code) if topics else top


def is_granted(answer: object) -> bool:
    return bool(answer.topics[0].partitions[0].vote_granted)  # type: ignore[attr-defined]


def unattached() -> RaftHarness:
    return RaftHarness(remembered=QuorumState(leader_epoch=3), log={2: 5})


def follower() -> RaftHarness:
    return unattached().become_follower(leader_id=2, epoch=3)


def prospective() -> RaftHarness:
    harness = unattached()
    harness.become_prospective()
    return harness


def candidate() -> RaftHarness:
    harness = RaftHarness(remembered=QuorumState(leader_epoch=2), log={2: 5})
    harness.become_candidate()
    return harness


def leader() -> RaftHarness:
    return RaftHarness(remembered=QuorumState(leader_epoch=2), log={2: 5}).become_leader()


def resigned() -> RaftHarness:
    harness = leader()
    harness.execute(harness.machine.resign(harness.now_ms, CODE.NOT_CONTROLLER))
    return harness


ROLES = {
    QuorumRole.UNATTACHED: unattached,
    QuorumRole.FOLLOWER: follower,
    QuorumRole.PROSPECTIVE: prospective,
    QuorumRole.CANDIDATE: candidate,
    QuorumRole.LEADER: leader,
    QuorumRole.RESIGNED: resigned,
}
"""A harness of each role in epoch 3, with five records of epoch 2."""


@pytest.mark.parametrize("role", ROLES)
def test_each_fixture_is_in_its_role_in_epoch_3(role: QuorumRole) -> None:
    harness = ROLES[role]()
    assert (harness.machine.role, harness.machine.epoch) == (role, 3)


def test_every_event_occurs_in_the_table_of_role_transitions() -> None:
    assert {role for role, moves in MOVES.items() if not moves} == {QuorumRole.FAILED}
    assert {event for moves in MOVES.values() for event in moves} == set(Event)


class TestVotes:
    LAST = (2, 5)
    ENDS_LATER = (3, 500)

    @pytest.mark.parametrize(
        ("role", "pre_vote", "vote"),
        [
            (QuorumRole.UNATTACHED, True, True),
            (QuorumRole.FOLLOWER, True, False),
            (QuorumRole.PROSPECTIVE, True, True),
            (QuorumRole.CANDIDATE, True, False),
            (QuorumRole.LEADER, False, False),
            (QuorumRole.RESIGNED, True, False),
        ],
    )
    def test_pre_votes_and_votes_granted_in_the_current_epoch_by_role(
        self, role: QuorumRole, pre_vote: bool, vote: bool
    ) -> None:
        next_send = vote_request(3, 3, last=self.ENDS_LATER, pre_vote=True)
        assert is_granted(ROLES[role]().request(next_send)) == pre_vote
        assert is_granted(ROLES[role]().request(vote_request(3, 3, last=(2, 500)))) == vote

    @pytest.mark.parametrize("role", ROLES)
    def test_vote_request_of_a_later_epoch_makes_every_role_unattached_and_is_granted(
        self, role: QuorumRole
    ) -> None:
        harness = ROLES[role]()
        answer = harness.request(vote_request(3, 4, last=self.ENDS_LATER))
        assert is_granted(answer)
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.UNATTACHED, 4)
        assert remembered_states(harness.executed)[-1] == (4, -1, 3, True)

    @pytest.mark.parametrize("role", ROLES)
    def test_candidate_whose_log_is_behind_gets_no_vote_from_any_role(self, role: QuorumRole) -> None:
        for pre_vote in (False, True):
            for last in [(2, 4), (1, 100), (0, 0)]:
                assert not is_granted(ROLES[role]().request(vote_request(3, 4, last=last, pre_vote=pre_vote)))

    def test_follower_grants_a_pre_vote_only_before_its_first_successful_fetch(self) -> None:
        harness = follower()
        assert is_granted(harness.request(vote_request(3, 3, last=self.LAST, pre_vote=True)))
        [send] = harness.next_sends()
        harness.respond(send, fetch_response(2, 3))
        assert not is_granted(harness.request(vote_request(3, 3, last=self.LAST, pre_vote=True)))

    def test_node_outside_the_voters_grants_a_pre_vote_after_its_fetch_timeout(self) -> None:
        # It may be a voter according to the candidate's log, and its vote may be needed.
        harness = RaftHarness(me=4, remembered=QuorumState(leader_epoch=3), log={2: 5})
        harness.become_follower(leader_id=2, epoch=3)
        [send] = harness.next_sends()
        harness.respond(send, fetch_response(2, 3))
        request = vote_request(3, 3, last=self.LAST, pre_vote=True)
        harness.now_ms += FETCH_TIMEOUT_MS - 1
        assert not is_granted(harness.request(request))
        harness.now_ms += 1
        assert is_granted(harness.request(request))
        assert harness.machine.role is QuorumRole.FOLLOWER

    def test_one_vote_per_epoch_is_granted_and_may_be_requested_again(self) -> None:
        harness = unattached()
        assert is_granted(harness.request(vote_request(3, 3, last=self.LAST)))
        assert not is_granted(harness.request(vote_request(2, 3, last=self.LAST)))
        assert not is_granted(harness.request(vote_request(3, 3, last=self.LAST, number=2))), (
            "that is another"
        )
        assert is_granted(harness.request(vote_request(3, 3, last=self.LAST)))
        assert len([one for one in remembered_states(harness.executed) if one[3]]) == 1

    def test_epoch_and_vote_are_persisted_once_before_the_response(self) -> None:
        harness = unattached()
        outputs = harness.execute(
            harness.machine.handle_request(
                vote_request(3, 4, last=self.LAST), "requester", harness.now_ms, api_version=2
            )
        )
        assert [type(one).__name__ for one in outputs] == ["Reached", "Remember", "Respond"]
        assert remembered_states(outputs) == [(4, -1, 3, True)]

    def test_vote_survives_a_restart(self) -> None:
        state = QuorumState(leader_epoch=3, voted_id=3, voted_directory_id=directory(3), data_version=1)
        harness = RaftHarness(remembered=state)
        assert not is_granted(harness.request(vote_request(2, 3)))
        assert is_granted(harness.request(vote_request(3, 3)))
        harness = RaftHarness(
            remembered=QuorumState(leader_epoch=3, voted_id=3)
        )  # a static quorum stores no directory id
        assert is_granted(harness.request(vote_request(3, 3)))

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (vote_request(3, 4, cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (vote_request(3, 4, cluster_id=None), CODE.NONE),
            (vote_request(3, 4, topic="other"), CODE.INVALID_REQUEST),
            (vote_request(3, 2), CODE.FENCED_LEADER_EPOCH),
            (vote_request(3, 2, last=(2, 9)), CODE.INVALID_REQUEST),
            (vote_request(-1, 4), CODE.INVALID_REQUEST),
            (vote_request(3, 4, last=(4, 9)), CODE.INVALID_REQUEST),
            (vote_request(3, 4, last=(4, 9), pre_vote=True), CODE.NONE),
            (vote_request(3, 4, last=(5, 9), pre_vote=True), CODE.INVALID_REQUEST),
            (vote_request(3, 4, last=(-1, 9)), CODE.INVALID_REQUEST),
            (vote_request(3, 4, last=(1, -9)), CODE.INVALID_REQUEST),
            (vote_request(3, 4, to=key(2)), CODE.INVALID_VOTER_KEY),
            (vote_request(3, 4, to=key(1, 9)), CODE.INVALID_VOTER_KEY),
            (vote_request(3, 4, to=key(1)), CODE.NONE),
            (vote_request(3, LAST_EPOCH), CODE.INVALID_REQUEST),
            (vote_request(3, -7), CODE.INVALID_REQUEST),
        ],
    )
    def test_request_returns_error_code(self, request_: VoteRequest, code: ErrorCode) -> None:
        for role in ROLES.values():
            harness = role()
            assert error_code_of(harness.request(request_)) == code
            assert harness.machine.epoch in (3, 4)

    def test_no_vote_for_another_directory_with_the_same_node_id(self) -> None:
        harness = unattached()
        answer = harness.request(vote_request(1, 4, last=self.ENDS_LATER, number=2))
        assert (error_code_of(answer), is_granted(answer)) == (CODE.NONE, False)


class TestLeaders:
    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (begin_quorum_epoch(2, 4, cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (begin_quorum_epoch(2, 2), CODE.FENCED_LEADER_EPOCH),
            (begin_quorum_epoch(-1, 4), CODE.INVALID_REQUEST),
            (begin_quorum_epoch(1, 4), CODE.INVALID_REQUEST),
            (begin_quorum_epoch(2, LAST_EPOCH), CODE.INVALID_REQUEST),
            (begin_quorum_epoch(2, 4, to=key(2)), CODE.INVALID_VOTER_KEY),
            (begin_quorum_epoch(2, 4), CODE.NONE),
            (end_quorum_epoch(2, 2), CODE.FENCED_LEADER_EPOCH),
            (end_quorum_epoch(1, 4), CODE.INVALID_REQUEST),
            (end_quorum_epoch(2, 4), CODE.NONE),
        ],
    )
    def test_request_returns_error_code(self, request_: Message, code: ErrorCode) -> None:
        for role in ROLES.values():
            assert error_code_of(role().request(request_)) == code

    @pytest.mark.parametrize("role", ROLES)
    def test_every_role_becomes_follower_of_a_leader_with_a_later_epoch(self, role: QuorumRole) -> None:
        harness = ROLES[role]()
        answer = harness.request(begin_quorum_epoch(2, 4, to=key(1)))
        assert isinstance(answer, BeginQuorumEpochResponse)
        assert (harness.machine.role, harness.machine.epoch, harness.machine.leader_id) == (
            QuorumRole.FOLLOWER,
            4,
            2,
        )
        assert [(one.node_id, one.host) for one in answer.node_endpoints] == [(2, "n2")]

    def test_second_leader_of_the_same_epoch_is_rejected(self) -> None:
        harness = leader()
        assert error_code_of(harness.request(begin_quorum_epoch(2, 3))) == CODE.INVALID_REQUEST
        assert isinstance(harness.executed[-2], Complain)
        assert harness.machine.role is QuorumRole.LEADER

    def test_follower_fetches_from_the_endpoint_in_begin_quorum_epoch(self) -> None:
        harness = follower()
        harness.request(begin_quorum_epoch(2, 3, at="elsewhere"))
        assert harness.next_sends()[0].to.host == "elsewhere"

    def test_vote_response_has_node_endpoints_from_version_1(self) -> None:
        assert leader().request(vote_request(3, 3), api_version=0).node_endpoints == []
        [at] = leader().request(vote_request(3, 3), api_version=1).node_endpoints
        assert (at.node_id, at.host, at.port) == (1, "n1", 9093)


class TestElections:
    def test_voter_without_a_leader_requests_pre_votes_then_votes_and_becomes_leader(self) -> None:
        harness = RaftHarness(log={2: 5})
        asked = harness.become_prospective()
        assert {send.to.host for send in asked} == {"n2", "n3"}
        request = asked[0].request
        assert isinstance(request, VoteRequest)
        [data] = request.topics[0].partitions
        assert (data.replica_epoch, data.pre_vote) == (2, True)
        assert (data.last_offset_epoch, data.last_offset) == (2, 5)
        assert harness.machine.epoch == 2, "it is that of its log"
        outputs = harness.respond(asked[0], vote_response(2))
        assert remembered_states(outputs) == [(3, -1, 1, True)]
        asked = harness.next_sends()
        request = asked[0].request
        assert isinstance(request, VoteRequest)
        assert not request.topics[0].partitions[0].pre_vote
        outputs = harness.respond(asked[1], vote_response(3))
        assert remembered_states(outputs) == [(3, 1, -1, True)]
        [controls] = [one for one in outputs if isinstance(one, AppendControls)]
        [(kind, change)] = controls.controls
        assert (kind, controls.epoch) == (2, 3)
        assert isinstance(change, LeaderChangeMessage)
        assert [one.voter_id for one in change.voters] == [1, 2, 3]
        assert [one.voter_id for one in change.granting_voters] == [1, 3]

    def test_rejected_pre_votes_do_not_start_an_epoch(self) -> None:
        harness = RaftHarness(log={2: 5})
        for send in harness.become_prospective():
            harness.respond(send, vote_response(2, granted=False))
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.UNATTACHED, 2)

    def test_follower_returns_to_its_leader_after_rejected_pre_votes(self) -> None:
        harness = follower()
        [send] = harness.next_sends()
        harness.respond(send, fetch_response(2, 3))
        harness.advance(FETCH_TIMEOUT_MS)
        for send in [one for one in harness.executed if isinstance(one, Send)][-2:]:
            harness.respond(send, vote_response(3, granted=False, leader_id=2))
        assert (harness.machine.role, harness.machine.leader_id) == (QuorumRole.FOLLOWER, 2)
        # The next election comes one fetch timeout later, without a response of the leader.
        harness.advance(2 * FETCH_WAIT_MS)
        assert harness.machine.role is QuorumRole.PROSPECTIVE

    def test_voter_without_pre_vote_support_makes_it_a_candidate_at_once(self) -> None:
        harness = RaftHarness()
        send = harness.become_prospective()[0]
        harness.respond(send, PeerTooOld("Vote 1"))
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.CANDIDATE, 1)

    def test_candidate_that_loses_the_election_stays_candidate_until_the_timeout(self) -> None:
        harness = RaftHarness()
        for send in harness.become_candidate():
            harness.respond(send, vote_response(1, granted=False))
        assert harness.machine.role is QuorumRole.CANDIDATE
        harness.advance(2 * ELECTION_TIMEOUT_MS)
        assert harness.machine.epoch == 1

    def test_rejected_candidate_backs_off_although_another_voter_is_silent(self) -> None:
        harness = RaftHarness()
        asked = harness.become_candidate()
        began_ms = harness.now_ms
        harness.respond(asked[0], vote_response(1, granted=False))
        assert harness.machine.role is QuorumRole.CANDIDATE
        while harness.machine.role is QuorumRole.CANDIDATE:
            harness.run_due()
        assert harness.now_ms - began_ms <= LEAST_BACKOFF_MS + FIRST_BACKOFF_MS < ELECTION_TIMEOUT_MS

    def test_only_voter_becomes_leader_at_once_with_one_persisted_state(self) -> None:
        harness = RaftHarness(voters=(1,), remembered=QuorumState(leader_epoch=4, leader_id=1))
        assert remembered_states(harness.executed) == [(5, 1, -1, True)]
        assert harness.machine.role is QuorumRole.LEADER
        assert harness.log.high_watermark == 1
        assert harness.machine.high_watermark == 1

    def test_leader_that_restarts_is_resigned_in_its_epoch(self) -> None:
        harness = RaftHarness(remembered=QuorumState(leader_epoch=4, leader_id=1), log={4: 2})
        assert (harness.machine.role, harness.machine.leader_id) == (QuorumRole.RESIGNED, 1)
        assert {type(send.request) for send in harness.next_sends()} == {EndQuorumEpochRequest}
        assert not is_granted(harness.request(vote_request(3, 4, last=(3, 9))))
        harness.advance(2 * ELECTION_TIMEOUT_MS)
        assert harness.machine.epoch == 5
        assert harness.machine.leader_id == -1

    def test_observer_never_starts_an_election(self) -> None:
        harness = RaftHarness(7, may_vote=True)
        harness.advance(20_000)
        assert harness.machine.role is QuorumRole.UNATTACHED
        assert all(isinstance(one.request, FetchRequest) for one in harness.executed if isinstance(one, Send))

    def test_no_election_after_the_largest_epoch(self) -> None:
        harness = RaftHarness(remembered=QuorumState(leader_epoch=LAST_EPOCH - 1))
        harness.advance(20_000)
        assert harness.machine.role is QuorumRole.UNATTACHED


class TestLeading:
    def test_high_watermark_advances_once_a_majority_has_a_record_of_the_epoch(self) -> None:
        harness = leader()
        assert harness.machine.high_watermark == -1
        assert not [one for one in harness.fetch_from(2, 5) if isinstance(one, Advance)]
        assert Advance(6) in harness.fetch_from(2, 6)
        harness.append_records(2)
        assert harness.machine.high_watermark == 6
        assert Advance(8) in harness.fetch_from(3, 8)

    def test_leader_counts_only_its_synced_records_for_the_high_watermark(self) -> None:
        harness = leader()
        harness.is_slow = True
        harness.append_records(2)
        harness.fetch_from(2, 8)
        assert harness.machine.high_watermark == 6
        assert Advance(8) in harness.execute(harness.machine.synced(8, harness.now_ms))

    def test_two_followers_commit_records_that_the_leader_has_not_synced(self) -> None:
        harness = leader()
        harness.is_slow = True
        harness.append_records(2)
        harness.fetch_from(2, 8)
        assert Advance(8) in harness.fetch_from(3, 8)

    def test_leader_sends_begin_quorum_epoch_to_voters_until_they_fetch(self) -> None:
        harness = leader()
        asked = [one for one in harness.tick() if isinstance(one, Send)]
        assert {(type(one.request), one.to.host) for one in asked} == {
            (BeginQuorumEpochRequest, "n2"),
            (BeginQuorumEpochRequest, "n3"),
        }
        harness.fetch_from(2)
        harness.now_ms += FETCH_TIMEOUT_MS // 2 - 1
        harness.fetch_from(2)
        harness.now_ms += 2
        assert [one.to.host for one in harness.tick() if isinstance(one, Send)] in (["n3"], [])
        harness.advance(FETCH_TIMEOUT_MS // 4)
        assert harness.machine.role is QuorumRole.LEADER

    def test_leader_without_fetches_of_a_majority_resigns(self) -> None:
        harness = leader()
        harness.now_ms += FETCH_TIMEOUT_MS
        harness.fetch_from(2)
        harness.now_ms += round(1.5 * FETCH_TIMEOUT_MS) - 1
        harness.tick()
        assert harness.machine.role is QuorumRole.LEADER
        harness.now_ms += 1
        outputs = harness.tick()
        assert Unlead(CODE.NOT_CONTROLLER) in outputs
        assert harness.machine.role is QuorumRole.RESIGNED  # type: ignore[comparison-overlap]

    def test_fetch_snapshot_counts_as_a_fetch_for_the_majority_check(self) -> None:
        harness = leader()
        harness.now_ms += FETCH_TIMEOUT_MS
        harness.machine.loaded_by(key(3), harness.now_ms)
        harness.now_ms += FETCH_TIMEOUT_MS
        harness.tick()
        assert harness.machine.role is QuorumRole.LEADER

    def test_leader_resigns_before_the_new_epoch_is_persisted(self) -> None:
        harness = leader()
        names = [
            type(one).__name__
            for one in harness.execute(
                harness.machine.handle_request(
                    begin_quorum_epoch(2, 4), "requester", harness.now_ms, api_version=1
                )
            )
        ]
        assert names == ["Reached", "Unlead", "Remember", "Respond"]

    def test_clean_stop_sends_preferred_successors_and_waits_for_a_new_leader(self) -> None:
        harness = leader()
        harness.fetch_from(3, 6)
        harness.fetch_from(2, 4)
        harness.execute(harness.machine.stop(harness.now_ms))
        assert not harness.machine.may_end
        sends = harness.next_sends()
        request = sends[0].request
        assert isinstance(request, EndQuorumEpochRequest)
        [data] = request.topics[0].partitions
        assert data.preferred_successors == [3, 2]
        harness.advance(5 * ELECTION_TIMEOUT_MS)
        assert harness.machine.role is QuorumRole.RESIGNED
        harness.request(vote_request(3, 4, last=(3, 6)))
        assert harness.machine.role is QuorumRole.UNATTACHED  # type: ignore[comparison-overlap]
        assert not harness.machine.may_end, "its vote may be the one that is missing"
        harness.request(begin_quorum_epoch(3, 4))
        assert harness.machine.may_end
        assert harness.machine.due_ms is None

    @pytest.mark.parametrize(
        ("successors", "wait_ms"),
        [
            ((1, 3), 0),
            ((3, 1), BACKOFF_MAX_MS // 2),
            ((4, 3, 1), BACKOFF_MAX_MS // 2),
            ((3,), BACKOFF_MAX_MS),
            ((), 0),
        ],
    )
    def test_preferred_successors_start_elections_in_their_order(
        self, successors: tuple[int, ...], wait_ms: int
    ) -> None:
        harness = follower()
        [send] = harness.next_sends()
        harness.respond(send, fetch_response(2, 3))
        harness.request(end_quorum_epoch(2, 3, successors))
        began_ms = harness.now_ms
        harness.become_prospective()
        assert harness.now_ms - began_ms == wait_ms

    def test_describe_returns_voters_and_observers(self) -> None:
        harness = leader()
        harness.fetch_from(2, 6)
        harness.fetch_from(9, 3)
        harness.now_ms += 50
        description = harness.machine.describe(harness.now_ms)
        assert (description.leader_id, description.epoch, description.high_watermark) == (1, 3, 6)
        assert [(one.key.replica_id, one.end_offset, one.since_fetch_ms) for one in description.voters] == [
            (1, 6, 0),
            (2, 6, 50),
            (3, -1, None),
        ]
        assert [(one.key, one.end_offset, one.since_caught_up_ms) for one in description.observers] == [
            (key(9), 3, None)
        ]
        harness.now_ms += 300_000
        assert harness.machine.describe(harness.now_ms).observers == []


class TestDynamicQuorums:
    def test_first_leader_writes_the_voters_of_the_bootstrap_snapshot(self) -> None:
        harness = RaftHarness(dynamic=True).become_leader()
        [controls] = [one for one in harness.executed if isinstance(one, AppendControls)]
        assert [type(one) for _, one in controls.controls] == [
            LeaderChangeMessage,
            KRaftVersionRecord,
            VotersRecord,
        ]

    def test_next_leader_does_not_write_the_voters_again(self) -> None:
        harness = RaftHarness(dynamic=True).become_leader()
        harness.fetch_from(2)
        harness.request(begin_quorum_epoch(2, 4))
        harness.executed.clear()
        [send] = harness.next_sends()
        harness.respond(send, fetch_response(2, 4))
        harness.request(end_quorum_epoch(2, 4, (1,)))
        harness.become_leader()
        [controls] = [one for one in harness.executed if isinstance(one, AppendControls)]
        assert len(controls.controls) == 1

    def test_fetch_of_a_voter_with_another_directory_does_not_count(self) -> None:
        harness = RaftHarness(dynamic=True).become_leader()
        assert not [one for one in harness.fetch_from(2, number=2) if isinstance(one, Advance)]
        assert [one for one in harness.fetch_from(2) if isinstance(one, Advance)]


@pytest.mark.parametrize("make", ROLES.values())
def test_every_combination_of_numbers_in_a_request_gets_a_response(make: Callable[[], RaftHarness]) -> None:
    """No combination of numbers in a request raises an exception."""
    numbers = [-(2**31), -1, 0, 2, 3, 4, LAST_EPOCH - 1, LAST_EPOCH]
    harness = make()
    for node_id in (-1, 0, 1, 2, 9):
        for epoch in numbers:
            for last in numbers:
                assert (
                    harness.request(vote_request(node_id, epoch, last=(last, last), pre_vote=epoch > last))
                    is not None
                )
            assert harness.request(begin_quorum_epoch(node_id, epoch)) is not None
            assert harness.request(end_quorum_epoch(node_id, epoch, (1, 2))) is not None
            if epoch >= LAST_EPOCH - 1:
                harness = make()
