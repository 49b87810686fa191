"""Voters that are added, removed and updated, as the leader and as the voter itself."""

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
    begin_quorum_epoch,
    directory,
    fetch_response,
    key,
)

CODE = ErrorCode


def leader(*, dynamic: bool = True, voters: tuple[int, ...] = (1, 2, 3)) -> RaftHarness:
    """Return a leader that has committed in its epoch."""
    harness = RaftHarness(dynamic=dynamic, voters=voters)
    if len(voters) > 1:
        harness.become_leader()
    for node_id in voters[1:]:
        harness.fetch_from(node_id)
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


def api_versions_response(low: int = 0, high: int = 1) -> ApiVersionsResponse:
    feature = SupportedFeatureKey(name="kraft.version", min_version=low, max_version=high)
    return ApiVersionsResponse(api_keys=[], supported_features=[feature])


def api_versions_request(harness: RaftHarness) -> Send:
    [send] = [
        one
        for one in harness.executed
        if isinstance(one, Send) and isinstance(one.request, ApiVersionsRequest)
    ]
    return send


class TestAdding:
    def test_observer_that_caught_up_becomes_a_voter_once_committed(self) -> None:
        harness = leader()
        harness.fetch_from(4)
        assert harness.request(add()) is None
        send = api_versions_request(harness)
        assert send.to == ADDRESSES[4]
        harness.respond(send, api_versions_response())
        assert harness.log.voters.ids == [1, 2, 3, 4]
        assert harness.responses == []
        harness.fetch_from(2)
        assert harness.machine.high_watermark < harness.log.end_offset, (
            "three of four voters must have the record"
        )
        harness.fetch_from(4)
        assert harness.responses[-1] == adding.AddRaftVoterResponse(error_code=0, error_message=None)

    def test_add_without_ack_when_committed_returns_before_the_commit(self) -> None:
        harness = leader()
        harness.fetch_from(4)
        harness.request(add(ack_when_committed=False))
        harness.respond(api_versions_request(harness), api_versions_response())
        assert harness.responses[-1].error_code == CODE.NONE
        assert harness.request(remove()).error_code == CODE.REQUEST_TIMED_OUT, "it is not committed yet"
        before = len(harness.responses)
        harness.fetch_from(2)
        harness.fetch_from(4)
        assert len(harness.responses) == before, "the request gets one response"

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
    def test_request_returns_error_code(self, request_: adding.AddRaftVoterRequest, code: ErrorCode) -> None:
        assert leader().request(request_).error_code == code

    def test_add_requires_a_leader_that_has_committed_in_its_epoch(self) -> None:
        assert RaftHarness(dynamic=True).request(add()).error_code == CODE.NOT_LEADER_OR_FOLLOWER
        assert RaftHarness(dynamic=True).become_leader().request(add()).error_code == CODE.REQUEST_TIMED_OUT
        assert leader(dynamic=False).request(add()).error_code == CODE.UNSUPPORTED_VERSION

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (PeerUnreachable("down"), CODE.REQUEST_TIMED_OUT),
            (ApiVersionsResponse(error_code=42, api_keys=[]), CODE.REQUEST_TIMED_OUT),
            (ApiVersionsResponse(api_keys=[]), CODE.INVALID_REQUEST),
            (api_versions_response(0, 0), CODE.INVALID_REQUEST),
            (api_versions_response(), CODE.REQUEST_TIMED_OUT),
        ],
    )
    def test_unreachable_unsupported_or_lagging_observer_is_not_added(
        self, answer: Any, code: ErrorCode
    ) -> None:
        harness = leader()
        harness.fetch_from(4, 0)  # it has not caught up
        harness.request(add())
        harness.respond(api_versions_request(harness), answer)
        assert harness.responses[-1].error_code == code
        assert harness.log.voters.ids == [1, 2, 3]

    def test_only_one_voter_change_at_a_time_until_the_request_timeout(self) -> None:
        harness = leader()
        harness.fetch_from(4)
        harness.request(add())
        assert harness.request(add(5)).error_code == CODE.REQUEST_TIMED_OUT
        assert harness.request(remove()).error_code == CODE.REQUEST_TIMED_OUT
        harness.now_ms += harness.terms.request_timeout_ms
        given_up = harness.request(remove())
        assert isinstance(given_up, adding.AddRaftVoterResponse)
        assert given_up.error_code == CODE.REQUEST_TIMED_OUT
        assert harness.log.voters.ids == [1, 2]

    def test_pending_add_returns_not_leader_when_leadership_is_lost(self) -> None:
        harness = leader()
        harness.fetch_from(4)
        harness.request(add())
        harness.request(begin_quorum_epoch(2, 9))
        assert harness.responses[-2].error_code == CODE.NOT_LEADER_OR_FOLLOWER
        assert harness.respond(api_versions_request(harness), api_versions_response()) == []


class TestRemoving:
    def test_removed_voter_is_gone_once_committed(self) -> None:
        harness = leader()
        assert harness.request(remove()) is None
        assert harness.log.voters.ids == [1, 2]
        harness.fetch_from(2)
        assert harness.responses[-1] == RemoveRaftVoterResponse(error_code=0, error_message=None)

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (remove(cluster_id="them"), CODE.INCONSISTENT_CLUSTER_ID),
            (remove(-1), CODE.INVALID_REQUEST),
            (remove(9), CODE.VOTER_NOT_FOUND),
            (remove(3, number=2), CODE.VOTER_NOT_FOUND),
        ],
    )
    def test_request_returns_error_code(self, request_: RemoveRaftVoterRequest, code: ErrorCode) -> None:
        assert leader().request(request_).error_code == code

    def test_last_voter_cannot_be_removed(self) -> None:
        assert leader(voters=(1,)).request(remove(1)).error_code == CODE.VOTER_NOT_FOUND

    def test_removed_leader_stays_leader_until_committed_and_is_not_counted(self) -> None:
        harness = leader()
        harness.request(remove(1))
        harness.fetch_from(2)
        assert harness.machine.role is QuorumRole.LEADER
        harness.fetch_from(3)
        assert harness.responses[-1].error_code == CODE.NONE
        assert Unlead(CODE.NOT_CONTROLLER) in harness.tick()
        assert harness.machine.role is QuorumRole.RESIGNED  # type: ignore[comparison-overlap]

    def test_removed_voter_may_start_elections_until_the_removal_is_committed(self) -> None:
        harness = leader()
        harness.request(remove(1))
        harness.request(begin_quorum_epoch(2, 9))
        [send] = harness.next_sends()
        harness.respond(send, fetch_response(2, 9))
        assert len(harness.become_prospective()) == 2
        harness = leader()
        harness.request(remove(1))
        harness.fetch_from(2)
        harness.fetch_from(3)
        harness.request(begin_quorum_epoch(2, 9))
        harness.advance(5 * FETCH_TIMEOUT_MS)
        assert harness.machine.role is QuorumRole.FOLLOWER


class TestUpdating:
    def test_update_writes_the_voters_endpoint_to_the_log(self) -> None:
        harness = leader()
        answer = harness.request(update(3, harness.machine.epoch, host="moved"))
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
    def test_request_returns_error_code(
        self, request_: updating.UpdateRaftVoterRequest, code: ErrorCode
    ) -> None:
        assert leader().request(request_).error_code == code

    def test_static_quorum_becomes_dynamic_once_every_voter_has_registered(self) -> None:
        harness = leader(dynamic=False)
        with pytest.raises(ApiError, match="not every voter has registered"):
            harness.machine.raise_kraft_version(1, validate_only=False)
        for node_id in (2, 3):
            assert harness.request(update(node_id, harness.machine.epoch)).error_code == CODE.NONE
        assert harness.machine.raise_kraft_version(1, validate_only=True) == []
        [controls] = harness.machine.raise_kraft_version(1, validate_only=False)
        assert isinstance(controls, AppendControls)
        assert [type(one) for _, one in controls.controls] == [KRaftVersionRecord, VotersRecord]
        assert harness.machine.kraft_version == 1
        assert harness.machine.raise_kraft_version(1, validate_only=False) == []
        harness.execute([controls])
        assert harness.log.kraft_version == 1
        assert [voter.key for voter in harness.log.voters] == [key(1), key(2), key(3)]
        with pytest.raises(ApiError, match="cannot be downgraded"):
            harness.machine.raise_kraft_version(0, validate_only=False)
        with pytest.raises(ApiError, match="this version does not exist"):
            harness.machine.raise_kraft_version(2, validate_only=False)

    def test_only_the_leader_raises_the_kraft_version(self) -> None:
        with pytest.raises(ApiError) as caught:
            RaftHarness().machine.raise_kraft_version(1, validate_only=False)
        assert caught.value.code == CODE.NOT_CONTROLLER


class TestJoining:
    @staticmethod
    def next_send_except_fetch(harness: RaftHarness, leader_id: int = 2, epoch: int = 3) -> Any:
        """Return the first request of a follower other than Fetch, after some successful fetches."""
        harness.become_follower(leader_id, epoch)
        for _ in range(4):
            [send] = harness.next_sends()
            if not isinstance(send.request, FetchRequest):
                return send
            harness.respond(send, fetch_response(leader_id, epoch))
            harness.now_ms += FETCH_TIMEOUT_MS // 2
        return None

    def test_voter_of_a_static_quorum_sends_its_endpoint_to_each_leader(self) -> None:
        harness = RaftHarness()
        send = self.next_send_except_fetch(harness)
        assert isinstance(send.request, updating.UpdateRaftVoterRequest)
        description = updating.CurrentLeader(leader_id=2, leader_epoch=3, host="n2", port=9093)
        harness.respond(send, updating.UpdateRaftVoterResponse(error_code=0, current_leader=description))
        assert self.next_send_except_fetch(harness) is None
        send = self.next_send_except_fetch(harness, 3, 4)
        assert isinstance(send.request, updating.UpdateRaftVoterRequest)
        harness.respond(send, PeerTooOld("no such API"))
        assert self.next_send_except_fetch(harness, 3, 4) is None

    def test_voter_of_a_dynamic_quorum_sends_a_changed_endpoint(self) -> None:
        assert self.next_send_except_fetch(RaftHarness(dynamic=True)) is None
        harness = RaftHarness(dynamic=True)
        moved = harness.log.voters.of_id(1)
        assert moved is not None
        endpoint = moved.endpoints[0]._replace(host="former")
        harness.log.history.note(
            7, harness.log.voters.replaced(moved._replace(endpoints=(endpoint,))).record()
        )
        send = self.next_send_except_fetch(harness)
        assert isinstance(send.request, updating.UpdateRaftVoterRequest)
        assert send.request.listeners[0].host == "n1"

    def test_auto_join_sends_add_raft_voter(self) -> None:
        assert self.next_send_except_fetch(RaftHarness(4, dynamic=True)) is None
        harness = RaftHarness(4, dynamic=True, auto_join=True)
        send = self.next_send_except_fetch(harness)
        assert isinstance(send.request, adding.AddRaftVoterRequest)
        assert not send.request.ack_when_committed
        harness.respond(send, adding.AddRaftVoterResponse(error_code=CODE.REQUEST_TIMED_OUT))
        assert isinstance(harness.next_sends()[0].request, FetchRequest), (
            "it goes on, and next_send again in a while"
        )

    def test_auto_join_with_a_new_directory_removes_the_old_voter_first(self) -> None:
        harness = RaftHarness(3, dynamic=True, auto_join=True)
        former = harness.log.voters.of_id(3)
        assert former is not None
        harness.log.history.note(7, harness.log.voters.replaced(former._replace(key=key(3, 9))).record())
        send = self.next_send_except_fetch(harness)
        assert isinstance(send.request, RemoveRaftVoterRequest)
        assert send.request.voter_directory_id == directory(3, 9)
