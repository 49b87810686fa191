"""Voters that come, go and move, as their leader has it, and as they ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.raft.outputs import AppendControls, Send, Unlead
from kwire.broker.raft.roles import QuorumRole
from kwire.host.host import PeerTooOld, PeerUnreachable
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages import add_raft_voter as adding
from kwire.wire.messages import update_raft_voter as updating
from kwire.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.records.raft import KRaftVersionRecord, VotersRecord
from tests.broker.raft.raft_harness import (
    ADDRESSES,
    FETCH_TIMEOUT_MS,
    LISTENER,
    RaftHarness,
    begun,
    directory,
    fetched,
    key,
)

CODE = ErrorCode


def leader(*, dynamic: bool = True, voters: tuple[int, ...] = (1, 2, 3)) -> RaftHarness:
    """One that has committed in its epoch."""
    harness = RaftHarness(dynamic=dynamic, voters=voters)
    if len(voters) > 1:
        harness.leads()
    for node_id in voters[1:]:
        harness.is_fetched(node_id)
    return harness


def add(node_id: int = 4, *, number: int = 1, **fields: Any) -> adding.AddRaftVoterRequest:
    fields = {"cluster_id": "us", "timeout_ms": 1, "voter_directory_id": directory(node_id, number), **fields}
    listeners = [adding.Listener(name=fields.pop("listener", LISTENER), host=f"n{node_id}", port=9093)]
    return adding.AddRaftVoterRequest(voter_id=node_id, listeners=listeners, **fields)


def remove(node_id: int = 3, *, number: int = 1, cluster_id: str = "us") -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory(node_id, number)
    )


def update(
    node_id: int, epoch: int, *, number: int = 1, host: str = "", versions: tuple[int, int] = (0, 1)
) -> updating.UpdateRaftVoterRequest:
    return updating.UpdateRaftVoterRequest(
        cluster_id="us",
        current_leader_epoch=epoch,
        voter_id=node_id,
        voter_directory_id=directory(node_id, number),
        listeners=[updating.Listener(name=LISTENER, host=host or f"n{node_id}", port=9093)],
        k_raft_version_feature=updating.KRaftVersionFeature(
            min_supported_version=versions[0], max_supported_version=versions[1]
        ),
    )


def knows(low: int = 0, high: int = 1) -> ApiVersionsResponse:
    feature = SupportedFeatureKey(name="kraft.version", min_version=low, max_version=high)
    return ApiVersionsResponse(api_keys=[], supported_features=[feature])


def asked_versions(harness: RaftHarness) -> Send:
    [send] = [
        one for one in harness.done if isinstance(one, Send) and isinstance(one.request, ApiVersionsRequest)
    ]
    return send


class TestAdding:
    def test_an_observer_that_has_everything_becomes_a_voter_once_that_is_committed(self) -> None:
        harness = leader()
        harness.is_fetched(4)
        assert harness.asked(add()) is None
        send = asked_versions(harness)
        assert send.to == ADDRESSES[4]
        harness.hears(send, knows())
        assert harness.log.voters.ids == [1, 2, 3, 4]
        assert harness.answers == []
        harness.is_fetched(2)
        assert harness.machine.high_watermark < harness.log.end_offset, "three of four have to have it"
        harness.is_fetched(4)
        assert harness.answers[-1] == adding.AddRaftVoterResponse(error_code=0, error_message=None)

    def test_it_is_answered_before_that_where_it_is_asked_to(self) -> None:
        harness = leader()
        harness.is_fetched(4)
        harness.asked(add(ack_when_committed=False))
        harness.hears(asked_versions(harness), knows())
        assert harness.answers[-1].error_code == CODE.NONE
        assert harness.asked(remove()).error_code == CODE.REQUEST_TIMED_OUT, "it is not committed yet"
        before = len(harness.answers)
        harness.is_fetched(2)
        harness.is_fetched(4)
        assert len(harness.answers) == before, "it is answered once"

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (add(cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (add(-1), CODE.INVALID_REQUEST),
            (add(voter_directory_id=ZERO_UUID), CODE.INVALID_REQUEST),
            (add(listener="OTHER"), CODE.INVALID_REQUEST),
            (add(3), CODE.DUPLICATE_VOTER),
            (add(3, number=2), CODE.DUPLICATE_VOTER),
        ],
    )
    def test_what_is_wrong_with_a_request(
        self, request_: adding.AddRaftVoterRequest, code: ErrorCode
    ) -> None:
        assert leader().asked(request_).error_code == code

    def test_only_a_leader_that_has_committed_does_it(self) -> None:
        assert RaftHarness(dynamic=True).asked(add()).error_code == CODE.NOT_LEADER_OR_FOLLOWER
        assert RaftHarness(dynamic=True).leads().asked(add()).error_code == CODE.REQUEST_TIMED_OUT
        assert leader(dynamic=False).asked(add()).error_code == CODE.UNSUPPORTED_VERSION

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (PeerUnreachable("down"), CODE.REQUEST_TIMED_OUT),
            (ApiVersionsResponse(error_code=42, api_keys=[]), CODE.REQUEST_TIMED_OUT),
            (ApiVersionsResponse(api_keys=[]), CODE.INVALID_REQUEST),
            (knows(0, 0), CODE.INVALID_REQUEST),
            (knows(), CODE.REQUEST_TIMED_OUT),
        ],
    )
    def test_who_is_not_fit_is_not_added(self, answer: Any, code: ErrorCode) -> None:
        harness = leader()
        harness.is_fetched(4, 0)  # so it has not caught up
        harness.asked(add())
        harness.hears(asked_versions(harness), answer)
        assert harness.answers[-1].error_code == code
        assert harness.log.voters.ids == [1, 2, 3]

    def test_one_change_is_made_at_a_time_and_given_up_after_a_while(self) -> None:
        harness = leader()
        harness.is_fetched(4)
        harness.asked(add())
        assert harness.asked(add(5)).error_code == CODE.REQUEST_TIMED_OUT
        assert harness.asked(remove()).error_code == CODE.REQUEST_TIMED_OUT
        harness.now_ms += harness.terms.request_timeout_ms
        given_up = harness.asked(remove())
        assert isinstance(given_up, adding.AddRaftVoterResponse)
        assert given_up.error_code == CODE.REQUEST_TIMED_OUT
        assert harness.log.voters.ids == [1, 2]

    def test_whoever_waits_is_told_when_the_lead_is_lost(self) -> None:
        harness = leader()
        harness.is_fetched(4)
        harness.asked(add())
        harness.asked(begun(2, 9))
        assert harness.answers[-2].error_code == CODE.NOT_LEADER_OR_FOLLOWER
        assert harness.hears(asked_versions(harness), knows()) == []


class TestRemoving:
    def test_a_voter_votes_no_more_once_that_is_committed(self) -> None:
        harness = leader()
        assert harness.asked(remove()) is None
        assert harness.log.voters.ids == [1, 2]
        harness.is_fetched(2)
        assert harness.answers[-1] == RemoveRaftVoterResponse(error_code=0, error_message=None)

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (remove(cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (remove(-1), CODE.INVALID_REQUEST),
            (remove(9), CODE.VOTER_NOT_FOUND),
            (remove(3, number=2), CODE.VOTER_NOT_FOUND),
        ],
    )
    def test_what_is_wrong_with_a_request(self, request_: RemoveRaftVoterRequest, code: ErrorCode) -> None:
        assert leader().asked(request_).error_code == code

    def test_the_last_voter_stays(self) -> None:
        assert leader(voters=(1,)).asked(remove(1)).error_code == CODE.VOTER_NOT_FOUND

    def test_a_leader_that_leaves_leads_until_that_is_committed_and_does_not_count(self) -> None:
        harness = leader()
        harness.asked(remove(1))
        harness.is_fetched(2)
        assert harness.machine.role is QuorumRole.LEADER
        harness.is_fetched(3)
        assert harness.answers[-1].error_code == CODE.NONE
        assert Unlead(CODE.NOT_CONTROLLER) in harness.tick()
        assert harness.machine.role is QuorumRole.RESIGNED

    def test_who_was_taken_out_may_stand_until_that_is_known_to_be_committed(self) -> None:
        harness = leader()
        harness.asked(remove(1))
        harness.asked(begun(2, 9))
        [send] = harness.sends()
        harness.hears(send, fetched(2, 9))
        assert len(harness.stands()) == 2
        harness = leader()
        harness.asked(remove(1))
        harness.is_fetched(2)
        harness.is_fetched(3)
        harness.asked(begun(2, 9))
        harness.passes(5 * FETCH_TIMEOUT_MS)
        assert harness.machine.role is QuorumRole.FOLLOWER


class TestUpdating:
    def test_where_a_voter_is_stands_in_the_log(self) -> None:
        harness = leader()
        answer = harness.asked(update(3, harness.machine.epoch, host="moved"))
        assert (answer.error_code, answer.current_leader.leader_id) == (CODE.NONE, 1)
        assert answer.current_leader.host == "n1"
        assert harness.log.voters.address(3, LISTENER) == ("moved", 9093)

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (update(3, 0), CODE.FENCED_LEADER_EPOCH),
            (update(3, 2), CODE.UNKNOWN_LEADER_EPOCH),
            (update(-1, 1), CODE.INVALID_REQUEST),
            (update(3, 1, versions=(1, 0)), CODE.INVALID_REQUEST),
            (update(3, 1, versions=(0, 0)), CODE.INVALID_REQUEST),
            (update(9, 1), CODE.VOTER_NOT_FOUND),
            (update(3, 1, number=2), CODE.VOTER_NOT_FOUND),
        ],
    )
    def test_what_is_wrong_with_a_request(
        self, request_: updating.UpdateRaftVoterRequest, code: ErrorCode
    ) -> None:
        assert leader().asked(request_).error_code == code

    def test_a_static_quorum_becomes_dynamic_once_every_voter_has_told_where_it_is(self) -> None:
        harness = leader(dynamic=False)
        with pytest.raises(ApiError, match="not every voter has registered"):
            harness.machine.raise_kraft_version(1, validate_only=False)
        for node_id in (2, 3):
            assert harness.asked(update(node_id, harness.machine.epoch)).error_code == CODE.NONE
        assert harness.machine.raise_kraft_version(1, validate_only=True) == []
        [controls] = harness.machine.raise_kraft_version(1, validate_only=False)
        assert isinstance(controls, AppendControls)
        assert [type(one) for _, one in controls.controls] == [KRaftVersionRecord, VotersRecord]
        assert harness.machine.kraft_version == 1
        assert harness.machine.raise_kraft_version(1, validate_only=False) == []
        harness.do([controls])
        assert harness.log.kraft_version == 1
        assert [voter.key for voter in harness.log.voters] == [key(1), key(2), key(3)]
        with pytest.raises(ApiError, match="cannot be downgraded"):
            harness.machine.raise_kraft_version(0, validate_only=False)
        with pytest.raises(ApiError, match="this version does not exist"):
            harness.machine.raise_kraft_version(2, validate_only=False)

    def test_only_the_leader_makes_it_dynamic(self) -> None:
        with pytest.raises(ApiError) as caught:
            RaftHarness().machine.raise_kraft_version(1, validate_only=False)
        assert caught.value.code == CODE.NOT_CONTROLLER


class TestJoining:
    @staticmethod
    def asks_in_a_while(harness: RaftHarness, leader_id: int = 2, epoch: int = 3) -> Any:
        """What a follower asks that is no Fetch, when some of those have gone well."""
        harness.follows(leader_id, epoch)
        for _ in range(4):
            [send] = harness.sends()
            if not isinstance(send.request, FetchRequest):
                return send
            harness.hears(send, fetched(leader_id, epoch))
            harness.now_ms += FETCH_TIMEOUT_MS // 2
        return None

    def test_a_voter_of_a_static_quorum_tells_each_leader_where_it_is(self) -> None:
        harness = RaftHarness()
        send = self.asks_in_a_while(harness)
        assert isinstance(send.request, updating.UpdateRaftVoterRequest)
        told = updating.CurrentLeader(leader_id=2, leader_epoch=3, host="n2", port=9093)
        harness.hears(send, updating.UpdateRaftVoterResponse(error_code=0, current_leader=told))
        assert self.asks_in_a_while(harness) is None
        send = self.asks_in_a_while(harness, 3, 4)
        assert isinstance(send.request, updating.UpdateRaftVoterRequest)
        harness.hears(send, PeerTooOld("no such API"))
        assert self.asks_in_a_while(harness, 3, 4) is None

    def test_a_voter_of_a_dynamic_quorum_tells_what_has_changed(self) -> None:
        assert self.asks_in_a_while(RaftHarness(dynamic=True)) is None
        harness = RaftHarness(dynamic=True)
        moved = harness.log.voters.of_id(1)
        assert moved is not None
        endpoint = moved.endpoints[0]._replace(host="former")
        harness.log.history.note(
            7, harness.log.voters.replaced(moved._replace(endpoints=(endpoint,))).record()
        )
        send = self.asks_in_a_while(harness)
        assert isinstance(send.request, updating.UpdateRaftVoterRequest)
        assert send.request.listeners[0].host == "n1"

    def test_who_joins_by_itself_asks_for_it(self) -> None:
        assert self.asks_in_a_while(RaftHarness(4, dynamic=True)) is None
        harness = RaftHarness(4, dynamic=True, auto_join=True)
        send = self.asks_in_a_while(harness)
        assert isinstance(send.request, adding.AddRaftVoterRequest)
        assert not send.request.ack_when_committed
        harness.hears(send, adding.AddRaftVoterResponse(error_code=CODE.REQUEST_TIMED_OUT))
        assert isinstance(harness.sends()[0].request, FetchRequest), "it goes on, and asks again in a while"

    def test_who_has_lost_its_directory_takes_the_former_one_out_first(self) -> None:
        harness = RaftHarness(3, dynamic=True, auto_join=True)
        former = harness.log.voters.of_id(3)
        assert former is not None
        harness.log.history.note(7, harness.log.voters.replaced(former._replace(key=key(3, 9))).record())
        send = self.asks_in_a_while(harness)
        assert isinstance(send.request, RemoveRaftVoterRequest)
        assert send.request.voter_directory_id == directory(3, 9)
