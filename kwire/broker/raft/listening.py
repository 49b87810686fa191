"""Requests and responses of other nodes, and their effects on the state of this node.

Any client can send a request, so a request that contradicts this node's state is only rejected. A response
comes from a node that this node contacted. If responses name two leaders of the same epoch, the quorum is
broken, and this node stops.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.raft.calls import FETCH, Call
from kwire.broker.raft.elections import LAST_EPOCH, Tally, may_have_vote, wait_before_standing_ms
from kwire.broker.raft.fetching import Contradiction
from kwire.broker.raft.outputs import Advance, Complain, Output, Reached, Remember, Respond
from kwire.broker.raft.replies import (
    Electoral,
    Heard,
    Known,
    QuorumRequest,
    Said,
    heard_in,
    refusal,
    reply,
    said_in,
    update_reply,
)
from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.standing import Standing
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.raft.voters import ReplicaKey
from kwire.host.host import InternodeTime, PeerAddress, PeerTooOld, PeerUnreachable
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.begin_quorum_epoch import BeginQuorumEpochResponse
from kwire.wire.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from kwire.wire.messages.fetch import FetchResponse
from kwire.wire.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kwire.wire.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from kwire.wire.messages.vote import VoteRequest, VoteResponse
from kwire.wire.schema import Message

DENIAL_LOG_INTERVAL_MS: Final = 60_000
"""The shortest interval between two log lines about denied requests."""
_EXPECTED = {
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
}
"""Errors that are normal during elections and shutdowns, and are not logged."""
_DONE = {
    AddRaftVoterResponse: (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.DUPLICATE_VOTER),
    RemoveRaftVoterResponse: (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.VOTER_NOT_FOUND),
}
"""Results of voter changes that are not logged: the change was made, or will be requested again later."""
_GONE = (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)


class Listening(Standing):
    """The state of this node, and the changes that requests and responses of other nodes make to it."""

    # --- requests

    def handle_request(
        self, request: Message, requester: object, now_ms: InternodeTime, *, api_version: int
    ) -> list[Output]:
        """Handle Vote, BeginQuorumEpoch, EndQuorumEpoch, AddRaftVoter, RemoveRaftVoter or UpdateRaftVoter.

        Each request gets exactly one `Respond`, with its `requester`, possibly later.
        """
        assert isinstance(request, QuorumRequest)
        if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest):
            return self._handle_voter_change(request, requester, now_ms)
        if request.cluster_id not in (None, self._terms.cluster_id):
            return [Respond(requester, refusal(request, ErrorCode.INCONSISTENT_CLUSTER_ID))]
        said = said_in(request, self._terms.listener)
        if said is None:
            return [Respond(requester, refusal(request, ErrorCode.INVALID_REQUEST))]
        reached = self.heard_from(said.replica_id)
        outputs: list[Output] = []
        code, is_granted = self._why_not(request, said), False
        if code != ErrorCode.NONE:
            pass
        elif isinstance(request, VoteRequest):
            outputs, code, is_granted = self._handle_vote(request, said, now_ms)
        else:
            outputs, code = self._handle_leader(said, now_ms)
            if code == ErrorCode.NONE and isinstance(request, EndQuorumEpochRequest):
                self._leader_ends(request, said, now_ms)
        response = reply(request, code, self._known, api_version=api_version, is_granted=is_granted)
        return [*reached, *outputs, Respond(requester, response)]

    def heard_from(self, replica_id: int) -> list[Output]:
        """Handle that a node has sent a request: requests to this voter need not wait any longer."""
        address = self._log.voters.address(replica_id, self._terms.listener)
        if address is None or replica_id == self._terms.node_id:
            return []
        self._calls.reached(replica_id)
        if replica_id == self.leader_id:
            self._calls.reached(FETCH)
        return [Reached(address)]

    @property
    def _known(self) -> Known:
        address = self.leader_address
        if self.leader_id == self._terms.node_id:
            address = self._joining.me.address(self._terms.listener)
        return Known(self.epoch, self.leader_id, address)

    def _why_not(self, request: Electoral, said: Said) -> ErrorCode:
        """Return the error for a request that is invalid on this node, or NONE."""
        if self.role is QuorumRole.FAILED:
            return ErrorCode.BROKER_NOT_AVAILABLE
        if isinstance(request, VoteRequest) and _is_impossible(request):
            return ErrorCode.INVALID_REQUEST
        if said.epoch >= LAST_EPOCH:
            # Kafka accepts this request, and can then never elect a leader again.
            return ErrorCode.INVALID_REQUEST
        if said.epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.INVALID_REQUEST if said.replica_id < 0 else ErrorCode.NONE

    def _handle_vote(
        self, request: VoteRequest, said: Said, now_ms: InternodeTime
    ) -> tuple[list[Output], ErrorCode, bool]:
        data = request.topics[0].partitions[0]
        outputs = self._see(said.epoch, now_ms) if said.epoch > self.epoch else []
        if said.to is not None and not self._is_me(said.to):
            return outputs, ErrorCode.INVALID_VOTER_KEY, False
        candidate = ReplicaKey(said.replica_id, data.replica_directory_id)
        log = self._log
        is_granted = candidate.replica_id != self._terms.node_id and may_have_vote(
            self.role,
            candidate,
            is_up_to_date=(data.last_offset_epoch, data.last_offset) >= (log.last_epoch, log.end_offset),
            is_pre_vote=data.pre_vote,
            voted=self._voted,
            leader_id=self.leader_id,
            has_live_leader=self._fetching.has_fetched and not self._is_leader_late(now_ms),
        )
        if is_granted and not data.pre_vote and self._voted is None:
            # One write of quorum-state contains both the epoch and the vote.
            outputs = [one for one in outputs if not isinstance(one, Remember)]
            outputs += self._vote_for(candidate, now_ms)
        return outputs, ErrorCode.NONE, is_granted

    def _is_leader_late(self, now_ms: InternodeTime) -> bool:
        """Return whether the fetch timeout has passed.

        A voter then starts an election. A node may be a voter without knowing, because its log does not have
        the record yet that adds it. It stays a follower, but must not reject the pre-votes of other voters.
        """
        return self._fetch_due_ms is not None and now_ms >= self._fetch_due_ms

    def _vote_for(self, candidate: ReplicaKey, now_ms: InternodeTime) -> list[Output]:
        """Vote for the candidate, and delay this node's own election, so that the candidate can win."""
        self._voted = candidate
        self._election_due_ms = now_ms + self._random_timeout_ms()
        if self.role is QuorumRole.PROSPECTIVE:
            self._tally = Tally(self._log.voters, self._terms.key)
        self._calls.forget()
        return self._remember(is_promise=True)

    def _handle_leader(self, said: Said, now_ms: InternodeTime) -> tuple[list[Output], ErrorCode]:
        outputs = self._learn(said.epoch, said.replica_id, said.address, now_ms)
        if outputs is None:
            complaint = (
                f"Rejecting node {said.replica_id} as the quorum leader of leader epoch {said.epoch}: this "
                f"node knows another leader of that epoch, or has the same node.id. Check that every "
                f"controller has a different node.id"
            )
            return [Complain(complaint)], ErrorCode.INVALID_REQUEST
        is_for_me = said.to is None or self._is_me(said.to)
        return outputs, ErrorCode.NONE if is_for_me else ErrorCode.INVALID_VOTER_KEY

    def _leader_ends(self, request: EndQuorumEpochRequest, said: Said, now_ms: InternodeTime) -> None:
        if self.role is QuorumRole.FOLLOWER and self.leader_id == said.replica_id:
            self._leader_has_ended = True
            self._fetch_due_ms = now_ms + wait_before_standing_ms(
                request, self._terms.key, self._terms.election_backoff_max_ms
            )

    def _handle_voter_change(
        self,
        request: AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest,
        requester: object,
        now_ms: InternodeTime,
    ) -> list[Output]:
        code = ErrorCode.NONE
        if request.cluster_id not in (None, self._terms.cluster_id):
            code = ErrorCode.INCONSISTENT_CLUSTER_ID
        elif isinstance(request, UpdateRaftVoterRequest) and request.current_leader_epoch != self.epoch:
            is_behind = request.current_leader_epoch < self.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
        elif self._membership is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        outputs: list[Output] = []
        if self._membership is not None and code == ErrorCode.NONE:
            outputs = self._membership.expire(now_ms)
            if isinstance(request, AddRaftVoterRequest):
                return outputs + self._membership.add(request, requester, now_ms)
            if isinstance(request, RemoveRaftVoterRequest):
                return outputs + self._membership.remove(request, requester, now_ms)
            appended, code = self._membership.update(request, now_ms)
            outputs += appended
        if isinstance(request, AddRaftVoterRequest):
            return [Respond(requester, AddRaftVoterResponse(error_code=code))]
        if isinstance(request, RemoveRaftVoterRequest):
            return [Respond(requester, RemoveRaftVoterResponse(error_code=code))]
        return [*outputs, Respond(requester, update_reply(code, self._known))]

    # --- responses

    def handle_response(
        self, number: int, response: Message | PeerUnreachable, now_ms: InternodeTime
    ) -> list[Output]:
        """Handle the response to the request with `number` (see `Send`), or the failure of that request."""
        call = self._calls.close(number)
        if call is None or self.role is QuorumRole.FAILED:
            return []
        if isinstance(call.request, ApiVersionsRequest):
            assert self._membership is not None
            return self._membership.handle_api_versions(call.key, response, now_ms)
        if isinstance(response, PeerUnreachable):
            return self._unreachable(call, response, now_ms)
        if isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse):
            return self._changed(response, now_ms)
        code = 0 if isinstance(response, UpdateRaftVoterResponse) else _error_of(response)
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID and call.key == FETCH:
            return self._contradicted(
                f"the quorum belongs to another cluster: its cluster id is not {self._terms.cluster_id}, "
                f"which this node's log directories have. Correct controller.quorum.voters or "
                f"controller.quorum.bootstrap.servers"
            )
        if code == ErrorCode.UNSUPPORTED_VERSION and isinstance(response, VoteResponse):
            return self._unreachable(call, PeerTooOld(), now_ms)
        heard = heard_in(response) if code == ErrorCode.NONE else None
        if heard is None:
            self._failed(call, now_ms)
            return self._denied(now_ms) if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED else []
        return self._heard_from(call, response, heard, now_ms)

    def _denied(self, now_ms: InternodeTime) -> list[Output]:
        """Log that a controller denied a request. Each of many retries is denied, also by other nodes."""
        if self._denial_logged_ms is not None and now_ms - self._denial_logged_ms < DENIAL_LOG_INTERVAL_MS:
            return []
        self._denial_logged_ms = now_ms
        return [
            Complain(
                f"A controller denies the requests of this node, will retry: {self._terms.missing_rights}. "
                f"This line is not repeated for a minute"
            )
        ]

    def _unreachable(self, call: Call, why: PeerUnreachable, now_ms: InternodeTime) -> list[Output]:
        if isinstance(why, PeerTooOld):
            if isinstance(call.request, VoteRequest) and self.role is QuorumRole.PROSPECTIVE:
                return self._become_candidate(now_ms)  # the voter does not support pre-votes
            if isinstance(call.request, UpdateRaftVoterRequest):
                self._joining.told()
        self._failed(call, now_ms, is_unreachable=not isinstance(why, PeerTooOld))
        return []

    def _failed(self, call: Call, now_ms: InternodeTime, *, is_unreachable: bool = False) -> None:
        """Back off after a request without a valid response."""
        if call.key == FETCH:
            self._fetching.failed(was_leader=call.to == self.leader_address)
        self._calls.rest(call.key, now_ms, is_unreachable=is_unreachable)

    def _does_not_help(self, call: Call, now_ms: InternodeTime) -> None:
        """Back off after a valid response that is not useful."""
        if call.key == FETCH:
            self._fetching.failed(was_leader=False)
        self._calls.rest(call.key, now_ms)

    def _changed(
        self, response: AddRaftVoterResponse | RemoveRaftVoterResponse, now_ms: InternodeTime
    ) -> list[Output]:
        """Handle the leader's response to a voter change of this node."""
        self._joining.wait(now_ms)
        if response.error_code in _DONE[type(response)]:
            return []
        self._calls.rest(FETCH, now_ms)
        code = ErrorCode(response.error_code)
        if code in _EXPECTED:
            return []
        request = type(response).__name__.removesuffix("Response")
        return [Complain(f"The quorum leader rejected {request} of this node, will retry: {code.name}")]

    def _heard_from(self, call: Call, response: Message, heard: Heard, now_ms: InternodeTime) -> list[Output]:
        code = ErrorCode.NONE if heard.code in _GONE else heard.code
        if heard.epoch < self.epoch or code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._does_not_help(call, now_ms)  # the other node has an older epoch
            return []
        was = (self.epoch, self.role)
        leader_id = heard.leader_id
        if leader_id == self._terms.node_id and (heard.epoch > self.epoch or leader_id != self.leader_id):
            leader_id = NO_LEADER  # the other node does not know yet that this leader has resigned
        outputs = self._learn(heard.epoch, leader_id, heard.address, now_ms)
        if outputs is None:
            return self._contradicted(
                f"leader epoch {heard.epoch} has two leaders, node {self.leader_id} and node {leader_id}"
            )
        is_news = was != (self.epoch, self.role)
        if code not in _EXPECTED and isinstance(response, FetchResponse | FetchSnapshotResponse):
            outputs.append(
                Complain(
                    f"The quorum leader rejected a Fetch of this node, will retry: {ErrorCode(code).name}"
                )
            )
        if self.epoch == was[0] and (code == ErrorCode.NONE or isinstance(response, UpdateRaftVoterResponse)):
            followed = self._take(call, response, heard, now_ms, is_news=is_news)
            if followed is not None:
                return outputs + followed
        if not is_news:
            self._does_not_help(call, now_ms)
        return outputs

    def _take(
        self, call: Call, response: Message, heard: Heard, now_ms: InternodeTime, *, is_news: bool
    ) -> list[Output] | None:
        """Apply a response that fits the current epoch and role; return None if it does not fit."""
        match response:
            case FetchResponse() | FetchSnapshotResponse() if self.role is QuorumRole.FOLLOWER:
                return self._followed(response, now_ms)
            case UpdateRaftVoterResponse() if self.role is QuorumRole.FOLLOWER and not is_news:
                if heard.code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
                    return None
                self._joining.told()
                self._fetch_due_ms = now_ms + self._terms.fetch_timeout_ms
                return []
            case VoteResponse() if self._tally is not None and not is_news:
                self._tally.count(call.key, is_granted=heard.is_granted)
                if not heard.is_granted:
                    self._stand_again_soon(now_ms)
                return self._count(now_ms)
            case BeginQuorumEpochResponse() if self.role is QuorumRole.LEADER:
                self._calls.succeeded(call.key)
                return []
            case EndQuorumEpochResponse() if self.role is QuorumRole.RESIGNED:
                self._unaware = [voter for voter in self._unaware if voter.key.replica_id != call.key]
                return []
        return None

    def _followed(
        self, response: FetchResponse | FetchSnapshotResponse, now_ms: InternodeTime
    ) -> list[Output]:
        try:
            if isinstance(response, FetchResponse):
                outputs = self._fetching.fetched(response, self.epoch)
            else:
                outputs = self._fetching.loaded(response, now_ms)
        except Contradiction as error:
            return self._contradicted(str(error))
        self._leader_has_ended = False
        self._refusals = 0
        self._fetch_due_ms = now_ms + self._terms.fetch_timeout_ms
        return outputs

    def _learn(
        self, epoch: int, leader_id: int, address: PeerAddress | None, now_ms: InternodeTime
    ) -> list[Output] | None:
        """Apply what another node knows about the leader; return None if it contradicts this node's state."""
        terms = self._terms
        if leader_id == terms.node_id:
            return [] if (epoch, leader_id) == (self.epoch, self.leader_id) else None
        if (
            epoch == self.epoch
            and leader_id not in (NO_LEADER, self.leader_id)
            and self.leader_id != NO_LEADER
        ):
            return None
        if leader_id != NO_LEADER and address is None:
            address = self._log.voters.address(leader_id, terms.listener)
        if epoch > self.epoch:
            return self._see(epoch, now_ms, leader_id=leader_id, address=address)
        if leader_id == NO_LEADER:
            return []
        if self.leader_id == NO_LEADER or (self.leader_address is None and address is not None):
            return self._see(epoch, now_ms, leader_id=leader_id, address=address)
        if address is not None and address != self.leader_address:
            self.leader_address = address
            return self._tell()
        return []

    # --- followers

    def fetched_by(self, key: ReplicaKey, offset: int, now_ms: InternodeTime) -> list[Output]:
        """Record, as the leader, that a replica in the same epoch has every record before `offset`."""
        if self._leading is None or key.replica_id < 0 or key.replica_id == self._terms.node_id:
            return []
        self._leading.fetched_by(key, offset, now_ms)
        return self._commit()

    def loaded_by(self, key: ReplicaKey, now_ms: InternodeTime) -> None:
        """Record, as the leader, that a replica fetches a snapshot."""
        if self._leading is not None and key.replica_id != self._terms.node_id:
            self._leading.heard(key, now_ms)

    def _commit(self) -> list[Output]:
        """Raise the high watermark if more records are committed."""
        leading, membership = self._lead_of_epoch
        if not leading.commit(self._fetching.synced_offset):
            return []
        return [Advance(leading.high_watermark), *membership.committed()]


def _is_impossible(request: VoteRequest) -> bool:
    """Return whether the candidate's epoch and offset are an impossible combination."""
    data = request.topics[0].partitions[0]
    # A candidate's epoch is newer than its last record. A prospective node's epoch may be that of its last
    # record.
    least_epoch = data.last_offset_epoch + (not data.pre_vote)
    return data.last_offset < 0 or data.last_offset_epoch < 0 or data.replica_epoch < least_epoch


def _error_of(response: Message) -> int:
    assert isinstance(
        response,
        (
            VoteResponse,
            BeginQuorumEpochResponse,
            EndQuorumEpochResponse,
            FetchResponse,
            FetchSnapshotResponse,
        ),
    )
    return response.error_code
