"""What a node answers as whom, how it is elected, leads and resigns. The simulation does the rest."""

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
    begun,
    directory,
    ended,
    fetched,
    key,
    remembers,
    stood,
    voted,
)

CODE = ErrorCode


def code_of(answer: object) -> ErrorCode:
    """The error of the partition, or else of the whole answer."""
    top = ErrorCode(answer.error_code)  # type: ignore[attr-defined]
    topics = answer.topics  # type: ignore[attr-defined]
    return ErrorCode(topics[0].partitions[0].error_code) if topics else top


def is_granted(answer: object) -> bool:
    return bool(answer.topics[0].partitions[0].vote_granted)  # type: ignore[attr-defined]


def unattached() -> RaftHarness:
    return RaftHarness(remembered=QuorumState(leader_epoch=3), log={2: 5})


def follower() -> RaftHarness:
    return unattached().follows(leader_id=2, epoch=3)


def prospective() -> RaftHarness:
    harness = unattached()
    harness.stands()
    return harness


def candidate() -> RaftHarness:
    harness = RaftHarness(remembered=QuorumState(leader_epoch=2), log={2: 5})
    harness.candidate()
    return harness


def leader() -> RaftHarness:
    return RaftHarness(remembered=QuorumState(leader_epoch=2), log={2: 5}).leads()


def resigned() -> RaftHarness:
    harness = leader()
    harness.do(harness.machine.resign(harness.now_ms, CODE.NOT_CONTROLLER))
    return harness


ROLES = {
    QuorumRole.UNATTACHED: unattached,
    QuorumRole.FOLLOWER: follower,
    QuorumRole.PROSPECTIVE: prospective,
    QuorumRole.CANDIDATE: candidate,
    QuorumRole.LEADER: leader,
    QuorumRole.RESIGNED: resigned,
}
"""In epoch 3 each of them, with five records of epoch 2."""


@pytest.mark.parametrize("role", ROLES)
def test_the_roles_are_what_they_are_called(role: QuorumRole) -> None:
    harness = ROLES[role]()
    assert (harness.machine.role, harness.machine.epoch) == (role, 3)


def test_every_move_is_known() -> None:
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
    def test_who_would_vote_and_who_votes_in_the_same_epoch(
        self, role: QuorumRole, pre_vote: bool, vote: bool
    ) -> None:
        asks = stood(3, 3, last=self.ENDS_LATER, pre_vote=True)
        assert is_granted(ROLES[role]().asked(asks)) == pre_vote
        assert is_granted(ROLES[role]().asked(stood(3, 3, last=(2, 500)))) == vote

    @pytest.mark.parametrize("role", ROLES)
    def test_a_later_epoch_ends_every_role_and_has_a_vote(self, role: QuorumRole) -> None:
        harness = ROLES[role]()
        answer = harness.asked(stood(3, 4, last=self.ENDS_LATER))
        assert is_granted(answer)
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.UNATTACHED, 4)
        assert remembers(harness.done)[-1] == (4, -1, 3, True)

    @pytest.mark.parametrize("role", ROLES)
    def test_a_log_that_is_behind_gets_no_vote_of_anybody(self, role: QuorumRole) -> None:
        for pre_vote in (False, True):
            for last in [(2, 4), (1, 100), (0, 0)]:
                assert not is_granted(ROLES[role]().asked(stood(3, 4, last=last, pre_vote=pre_vote)))

    def test_a_follower_that_has_not_fetched_would_vote_and_one_that_has_would_not(self) -> None:
        harness = follower()
        assert is_granted(harness.asked(stood(3, 3, last=self.LAST, pre_vote=True)))
        [send] = harness.sends()
        harness.hears(send, fetched(2, 3))
        assert not is_granted(harness.asked(stood(3, 3, last=self.LAST, pre_vote=True)))

    def test_there_is_one_vote_in_an_epoch_and_who_has_it_may_ask_again(self) -> None:
        harness = unattached()
        assert is_granted(harness.asked(stood(3, 3, last=self.LAST)))
        assert not is_granted(harness.asked(stood(2, 3, last=self.LAST)))
        assert not is_granted(harness.asked(stood(3, 3, last=self.LAST, number=2))), "that is another"
        assert is_granted(harness.asked(stood(3, 3, last=self.LAST)))
        assert len([one for one in remembers(harness.done) if one[3]]) == 1

    def test_the_promise_comes_before_the_answer_once_for_epoch_and_vote(self) -> None:
        harness = unattached()
        outputs = harness.do(
            harness.machine.asked(stood(3, 4, last=self.LAST), "asker", harness.now_ms, api_version=2)
        )
        assert [type(one).__name__ for one in outputs] == ["Remember", "Answer"]
        assert remembers(outputs) == [(4, -1, 3, True)]

    def test_a_vote_outlives_the_process(self) -> None:
        state = QuorumState(leader_epoch=3, voted_id=3, voted_directory_id=directory(3), data_version=1)
        harness = RaftHarness(remembered=state)
        assert not is_granted(harness.asked(stood(2, 3)))
        assert is_granted(harness.asked(stood(3, 3)))
        harness = RaftHarness(
            remembered=QuorumState(leader_epoch=3, voted_id=3)
        )  # of a quorum that is not dynamic
        assert is_granted(harness.asked(stood(3, 3)))

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (stood(3, 4, cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (stood(3, 4, cluster_id=None), CODE.NONE),
            (stood(3, 4, topic="other"), CODE.INVALID_REQUEST),
            (stood(3, 2), CODE.FENCED_LEADER_EPOCH),
            (stood(3, 2, last=(2, 9)), CODE.INVALID_REQUEST),
            (stood(-1, 4), CODE.INVALID_REQUEST),
            (stood(3, 4, last=(4, 9)), CODE.INVALID_REQUEST),
            (stood(3, 4, last=(4, 9), pre_vote=True), CODE.NONE),
            (stood(3, 4, last=(5, 9), pre_vote=True), CODE.INVALID_REQUEST),
            (stood(3, 4, last=(-1, 9)), CODE.INVALID_REQUEST),
            (stood(3, 4, last=(1, -9)), CODE.INVALID_REQUEST),
            (stood(3, 4, to=key(2)), CODE.INVALID_VOTER_KEY),
            (stood(3, 4, to=key(1, 9)), CODE.INVALID_VOTER_KEY),
            (stood(3, 4, to=key(1)), CODE.NONE),
            (stood(3, LAST_EPOCH), CODE.INVALID_REQUEST),
            (stood(3, -7), CODE.INVALID_REQUEST),
        ],
    )
    def test_what_is_wrong_with_a_request(self, request_: VoteRequest, code: ErrorCode) -> None:
        for role in ROLES.values():
            harness = role()
            assert code_of(harness.asked(request_)) == code
            assert harness.machine.epoch in (3, 4)

    def test_nobody_votes_for_another_that_has_its_own_id(self) -> None:
        harness = unattached()
        answer = harness.asked(stood(1, 4, last=self.ENDS_LATER, number=2))
        assert (code_of(answer), is_granted(answer)) == (CODE.NONE, False)


class TestLeaders:
    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (begun(2, 4, cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (begun(2, 2), CODE.FENCED_LEADER_EPOCH),
            (begun(-1, 4), CODE.INVALID_REQUEST),
            (begun(1, 4), CODE.INVALID_REQUEST),
            (begun(2, LAST_EPOCH), CODE.INVALID_REQUEST),
            (begun(2, 4, to=key(2)), CODE.INVALID_VOTER_KEY),
            (begun(2, 4), CODE.NONE),
            (ended(2, 2), CODE.FENCED_LEADER_EPOCH),
            (ended(1, 4), CODE.INVALID_REQUEST),
            (ended(2, 4), CODE.NONE),
        ],
    )
    def test_what_is_wrong_with_a_request(self, request_: Message, code: ErrorCode) -> None:
        for role in ROLES.values():
            assert code_of(role().asked(request_)) == code

    @pytest.mark.parametrize("role", ROLES)
    def test_a_leader_of_a_later_epoch_is_followed_by_all(self, role: QuorumRole) -> None:
        harness = ROLES[role]()
        answer = harness.asked(begun(2, 4, to=key(1)))
        assert isinstance(answer, BeginQuorumEpochResponse)
        assert (harness.machine.role, harness.machine.epoch, harness.machine.leader_id) == (
            QuorumRole.FOLLOWER,
            4,
            2,
        )
        assert [(one.node_id, one.host) for one in answer.node_endpoints] == [(2, "n2")]

    def test_a_second_leader_of_an_epoch_is_not_believed(self) -> None:
        harness = leader()
        assert code_of(harness.asked(begun(2, 3))) == CODE.INVALID_REQUEST
        assert isinstance(harness.done[-2], Complain)
        assert harness.machine.role is QuorumRole.LEADER

    def test_where_a_leader_is_goes_with_its_word(self) -> None:
        harness = follower()
        harness.asked(begun(2, 3, at="elsewhere"))
        assert harness.sends()[0].to.host == "elsewhere"

    def test_addresses_are_told_from_version_1_on(self) -> None:
        assert leader().asked(stood(3, 3), api_version=0).node_endpoints == []
        [at] = leader().asked(stood(3, 3), api_version=1).node_endpoints
        assert (at.node_id, at.host, at.port) == (1, "n1", 9093)


class TestElections:
    def test_who_hears_of_no_leader_asks_first_then_begins_an_epoch_and_leads(self) -> None:
        harness = RaftHarness(log={2: 5})
        asked = harness.stands()
        assert {send.to.host for send in asked} == {"n2", "n3"}
        request = asked[0].request
        assert isinstance(request, VoteRequest)
        [data] = request.topics[0].partitions
        assert (data.replica_epoch, data.pre_vote) == (2, True)
        assert (data.last_offset_epoch, data.last_offset) == (2, 5)
        assert harness.machine.epoch == 2, "it is that of its log"
        outputs = harness.hears(asked[0], voted(2))
        assert remembers(outputs) == [(3, -1, 1, True)]
        asked = harness.sends()
        request = asked[0].request
        assert isinstance(request, VoteRequest)
        assert not request.topics[0].partitions[0].pre_vote
        outputs = harness.hears(asked[1], voted(3))
        assert remembers(outputs) == [(3, 1, -1, True)]
        [controls] = [one for one in outputs if isinstance(one, AppendControls)]
        [(kind, change)] = controls.controls
        assert (kind, controls.epoch) == (2, 3)
        assert isinstance(change, LeaderChangeMessage)
        assert [one.voter_id for one in change.voters] == [1, 2, 3]
        assert [one.voter_id for one in change.granting_voters] == [1, 3]

    def test_who_would_not_be_elected_begins_no_epoch(self) -> None:
        harness = RaftHarness(log={2: 5})
        for send in harness.stands():
            harness.hears(send, voted(2, granted=False))
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.UNATTACHED, 2)

    def test_a_follower_goes_back_to_its_leader_then(self) -> None:
        harness = follower()
        [send] = harness.sends()
        harness.hears(send, fetched(2, 3))
        harness.passes(FETCH_TIMEOUT_MS)
        for send in [one for one in harness.done if isinstance(one, Send)][-2:]:
            harness.hears(send, voted(3, granted=False, leader_id=2))
        assert (harness.machine.role, harness.machine.leader_id) == (QuorumRole.FOLLOWER, 2)
        # But not for another whole timeout where the leader says nothing.
        harness.passes(2 * FETCH_WAIT_MS)
        assert harness.machine.role is QuorumRole.PROSPECTIVE

    def test_a_voter_that_knows_no_pre_votes_has_it_begin_an_epoch_at_once(self) -> None:
        harness = RaftHarness()
        send = harness.stands()[0]
        harness.hears(send, PeerTooOld("Vote 1"))
        assert (harness.machine.role, harness.machine.epoch) == (QuorumRole.CANDIDATE, 1)

    def test_a_candidate_that_is_not_elected_asks_again_later(self) -> None:
        harness = RaftHarness()
        for send in harness.candidate():
            harness.hears(send, voted(1, granted=False))
        assert harness.machine.role is QuorumRole.CANDIDATE
        harness.passes(2 * ELECTION_TIMEOUT_MS)
        assert harness.machine.epoch == 1

    def test_a_candidate_that_is_refused_asks_again_soon_whoever_else_is_silent(self) -> None:
        harness = RaftHarness()
        asked = harness.candidate()
        began_ms = harness.now_ms
        harness.hears(asked[0], voted(1, granted=False))
        assert harness.machine.role is QuorumRole.CANDIDATE
        while harness.machine.role is QuorumRole.CANDIDATE:
            harness.due()
        assert harness.now_ms - began_ms <= LEAST_BACKOFF_MS + FIRST_BACKOFF_MS < ELECTION_TIMEOUT_MS

    def test_a_sole_voter_leads_at_once_with_one_promise(self) -> None:
        harness = RaftHarness(voters=(1,), remembered=QuorumState(leader_epoch=4, leader_id=1))
        assert remembers(harness.done) == [(5, 1, -1, True)]
        assert harness.machine.role is QuorumRole.LEADER
        assert harness.log.high_watermark == 1
        assert harness.machine.high_watermark == 1

    def test_who_led_when_it_died_leads_no_more_in_that_epoch(self) -> None:
        harness = RaftHarness(remembered=QuorumState(leader_epoch=4, leader_id=1), log={4: 2})
        assert (harness.machine.role, harness.machine.leader_id) == (QuorumRole.RESIGNED, 1)
        assert {type(send.request) for send in harness.sends()} == {EndQuorumEpochRequest}
        assert not is_granted(harness.asked(stood(3, 4, last=(3, 9))))
        harness.passes(2 * ELECTION_TIMEOUT_MS)
        assert harness.machine.epoch == 5
        assert harness.machine.leader_id == -1

    def test_an_observer_never_stands(self) -> None:
        harness = RaftHarness(7, may_vote=True)
        harness.passes(20_000)
        assert harness.machine.role is QuorumRole.UNATTACHED
        assert all(isinstance(one.request, FetchRequest) for one in harness.done if isinstance(one, Send))

    def test_at_the_end_of_the_epochs_nobody_stands(self) -> None:
        harness = RaftHarness(remembered=QuorumState(leader_epoch=LAST_EPOCH - 1))
        harness.passes(20_000)
        assert harness.machine.role is QuorumRole.UNATTACHED


class TestLeading:
    def test_what_a_majority_has_is_committed_once_the_epoch_is_among_it(self) -> None:
        harness = leader()
        assert harness.machine.high_watermark == -1
        assert not [one for one in harness.is_fetched(2, 5) if isinstance(one, Advance)]
        assert Advance(6) in harness.is_fetched(2, 6)
        harness.appends(2)
        assert harness.machine.high_watermark == 6
        assert Advance(8) in harness.is_fetched(3, 8)

    def test_a_leader_counts_what_it_has_synced(self) -> None:
        harness = leader()
        harness.is_slow = True
        harness.appends(2)
        harness.is_fetched(2, 8)
        assert harness.machine.high_watermark == 6
        assert Advance(8) in harness.do(harness.machine.synced(8, harness.now_ms))

    def test_two_others_commit_what_the_leader_has_not_synced(self) -> None:
        harness = leader()
        harness.is_slow = True
        harness.appends(2)
        harness.is_fetched(2, 8)
        assert Advance(8) in harness.is_fetched(3, 8)

    def test_the_voters_are_told_until_they_fetch(self) -> None:
        harness = leader()
        asked = [one for one in harness.tick() if isinstance(one, Send)]
        assert {(type(one.request), one.to.host) for one in asked} == {
            (BeginQuorumEpochRequest, "n2"),
            (BeginQuorumEpochRequest, "n3"),
        }
        harness.is_fetched(2)
        harness.now_ms += FETCH_TIMEOUT_MS // 2 - 1
        harness.is_fetched(2)
        harness.now_ms += 2
        assert [one.to.host for one in harness.tick() if isinstance(one, Send)] in (["n3"], [])
        harness.passes(FETCH_TIMEOUT_MS // 4)
        assert harness.machine.role is QuorumRole.LEADER

    def test_a_leader_that_hears_no_majority_resigns(self) -> None:
        harness = leader()
        harness.now_ms += FETCH_TIMEOUT_MS
        harness.is_fetched(2)
        harness.now_ms += round(1.5 * FETCH_TIMEOUT_MS) - 1
        harness.tick()
        assert harness.machine.role is QuorumRole.LEADER
        harness.now_ms += 1
        outputs = harness.tick()
        assert Unlead(CODE.NOT_CONTROLLER) in outputs
        assert harness.machine.role is QuorumRole.RESIGNED

    def test_who_loads_a_snapshot_is_heard_too(self) -> None:
        harness = leader()
        harness.now_ms += FETCH_TIMEOUT_MS
        harness.machine.loaded_by(key(3), harness.now_ms)
        harness.now_ms += FETCH_TIMEOUT_MS
        harness.tick()
        assert harness.machine.role is QuorumRole.LEADER

    def test_it_ends_before_the_new_epoch_is_remembered(self) -> None:
        harness = leader()
        names = [
            type(one).__name__
            for one in harness.do(harness.machine.asked(begun(2, 4), "asker", harness.now_ms, api_version=1))
        ]
        assert names == ["Unlead", "Remember", "Answer"]

    def test_a_clean_stop_names_successors_and_resigns_until_somebody_leads(self) -> None:
        harness = leader()
        harness.is_fetched(3, 6)
        harness.is_fetched(2, 4)
        harness.do(harness.machine.stop(harness.now_ms))
        assert not harness.machine.may_end
        sends = harness.sends()
        request = sends[0].request
        assert isinstance(request, EndQuorumEpochRequest)
        [data] = request.topics[0].partitions
        assert data.preferred_successors == [3, 2]
        harness.passes(5 * ELECTION_TIMEOUT_MS)
        assert harness.machine.role is QuorumRole.RESIGNED
        harness.asked(stood(3, 4, last=(3, 6)))
        assert harness.machine.role is QuorumRole.UNATTACHED
        assert not harness.machine.may_end, "its vote may be the one that is missing"
        harness.asked(begun(3, 4))
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
    def test_successors_stand_in_their_order(self, successors: tuple[int, ...], wait_ms: int) -> None:
        harness = follower()
        [send] = harness.sends()
        harness.hears(send, fetched(2, 3))
        harness.asked(ended(2, 3, successors))
        began_ms = harness.now_ms
        harness.stands()
        assert harness.now_ms - began_ms == wait_ms

    def test_it_tells_how_everybody_is_doing(self) -> None:
        harness = leader()
        harness.is_fetched(2, 6)
        harness.is_fetched(9, 3)
        harness.now_ms += 50
        told = harness.machine.describe(harness.now_ms)
        assert (told.leader_id, told.epoch, told.high_watermark) == (1, 3, 6)
        assert [(one.key.replica_id, one.end_offset, one.since_fetch_ms) for one in told.voters] == [
            (1, 6, 0),
            (2, 6, 50),
            (3, -1, None),
        ]
        assert [(one.key, one.end_offset, one.since_caught_up_ms) for one in told.observers] == [
            (key(9), 3, None)
        ]
        harness.now_ms += 300_000
        assert harness.machine.describe(harness.now_ms).observers == []


class TestDynamicQuorums:
    def test_what_a_fresh_directory_says_the_first_leader_writes(self) -> None:
        harness = RaftHarness(dynamic=True).leads()
        [controls] = [one for one in harness.done if isinstance(one, AppendControls)]
        assert [type(one) for _, one in controls.controls] == [
            LeaderChangeMessage,
            KRaftVersionRecord,
            VotersRecord,
        ]

    def test_the_next_one_writes_it_no_more(self) -> None:
        harness = RaftHarness(dynamic=True).leads()
        harness.is_fetched(2)
        harness.asked(begun(2, 4))
        harness.done.clear()
        [send] = harness.sends()
        harness.hears(send, fetched(2, 4))
        harness.asked(ended(2, 4, (1,)))
        harness.leads()
        [controls] = [one for one in harness.done if isinstance(one, AppendControls)]
        assert len(controls.controls) == 1

    def test_a_voter_with_another_directory_is_none(self) -> None:
        harness = RaftHarness(dynamic=True).leads()
        assert not [one for one in harness.is_fetched(2, number=2) if isinstance(one, Advance)]
        assert [one for one in harness.is_fetched(2) if isinstance(one, Advance)]


@pytest.mark.parametrize("make", ROLES.values())
def test_whatever_is_asked_there_is_an_answer(make: Callable[[], RaftHarness]) -> None:
    """Strangers' numbers, in every combination, harm nobody."""
    numbers = [-(2**31), -1, 0, 2, 3, 4, LAST_EPOCH - 1, LAST_EPOCH]
    harness = make()
    for node_id in (-1, 0, 1, 2, 9):
        for epoch in numbers:
            for last in numbers:
                assert (
                    harness.asked(stood(node_id, epoch, last=(last, last), pre_vote=epoch > last)) is not None
                )
            assert harness.asked(begun(node_id, epoch)) is not None
            assert harness.asked(ended(node_id, epoch, (1, 2))) is not None
            if epoch >= LAST_EPOCH - 1:
                harness = make()
