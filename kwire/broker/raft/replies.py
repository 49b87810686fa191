"""The leader and epoch in quorum requests and responses, which have exactly one partition."""

from __future__ import annotations

from typing import Final

from kwire.broker.raft.voters import ReplicaKey
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.host.host import PeerAddress
from kwire.wire.errors import ErrorCode
from kwire.wire.messages import begin_quorum_epoch as begin
from kwire.wire.messages import end_quorum_epoch as end
from kwire.wire.messages import vote
from kwire.wire.messages.add_raft_voter import AddRaftVoterRequest
from kwire.wire.messages.fetch import FetchResponse
from kwire.wire.messages.fetch_snapshot import FetchSnapshotResponse
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.wire.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.schema import Message

Electoral = vote.VoteRequest | begin.BeginQuorumEpochRequest | end.EndQuorumEpochRequest
QuorumRequest = Electoral | AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest

FIRST_WITH_ENDPOINTS: Final = 1


class Heard(NamedTuple):
    """The leader and epoch that another node sent in a response."""

    code: int
    leader_id: int
    epoch: int
    address: PeerAddress | None
    """The leader's address, or None if the response does not have it."""
    is_granted: bool = False


def heard_in(response: object) -> Heard | None:
    """Read a response; return None if it does not have exactly one partition."""
    if isinstance(response, UpdateRaftVoterResponse):
        told = response.current_leader
        address = PeerAddress(told.host, told.port) if told.host else None
        return Heard(response.error_code, told.leader_id, told.leader_epoch, address)
    if isinstance(response, FetchResponse):
        addresses = {one.node_id: PeerAddress(one.host, one.port) for one in response.node_endpoints}
        if len(response.responses) != 1 or len(response.responses[0].partitions) != 1:
            return None
        [fetched] = response.responses[0].partitions
        leader_id = fetched.current_leader.leader_id
        leader_epoch = fetched.current_leader.leader_epoch
        return Heard(fetched.error_code, leader_id, leader_epoch, addresses.get(leader_id))
    if isinstance(response, FetchSnapshotResponse):
        addresses = {one.node_id: PeerAddress(one.host, one.port) for one in response.node_endpoints}
        if len(response.topics) != 1 or len(response.topics[0].partitions) != 1:
            return None
        [piece] = response.topics[0].partitions
        leader_id, leader_epoch = piece.current_leader.leader_id, piece.current_leader.leader_epoch
        return Heard(piece.error_code, leader_id, leader_epoch, addresses.get(leader_id))
    assert isinstance(
        response, (vote.VoteResponse, begin.BeginQuorumEpochResponse, end.EndQuorumEpochResponse)
    )
    addresses = {one.node_id: PeerAddress(one.host, one.port) for one in response.node_endpoints}
    if len(response.topics) != 1 or len(response.topics[0].partitions) != 1:
        return None
    [data] = response.topics[0].partitions
    is_granted = isinstance(data, vote.ResponsePartitionData) and data.vote_granted
    return Heard(
        data.error_code, data.leader_id, data.leader_epoch, addresses.get(data.leader_id), is_granted
    )


class Said(NamedTuple):
    """The sender and its epoch in a Vote, BeginQuorumEpoch or EndQuorumEpoch request."""

    replica_id: int
    """The id of the candidate or leader that sent the request."""
    epoch: int
    to: ReplicaKey | None
    """The intended receiver, or None if the request does not name it."""
    address: PeerAddress | None
    """The leader's address, or None if the request does not have it."""


def said_in(request: Electoral, listener: str) -> Said | None:
    """Read a request; return None if it is not for exactly one partition, the metadata log.

    `listener` is the name of the listener whose address to return.
    """
    if len(request.topics) != 1 or request.topics[0].topic_name != METADATA_TOPIC:
        return None
    if len(request.topics[0].partitions) != 1 or request.topics[0].partitions[0].partition_index != 0:
        return None
    [data] = request.topics[0].partitions
    to, address = None, None
    if not isinstance(request, end.EndQuorumEpochRequest) and request.voter_id >= 0:
        assert not isinstance(data, end.RequestPartitionData)
        to = ReplicaKey(request.voter_id, data.voter_directory_id)
    if isinstance(data, vote.RequestPartitionData):
        return Said(data.replica_id, data.replica_epoch, to, None)
    assert not isinstance(request, vote.VoteRequest)
    for one in request.leader_endpoints:
        if one.name == listener:
            address = PeerAddress(one.host, one.port)
    return Said(data.leader_id, data.leader_epoch, to, address)


class Known(NamedTuple):
    """The leader and epoch that every response contains."""

    epoch: int
    leader_id: int
    address: PeerAddress | None


def refusal(request: Electoral, code: ErrorCode) -> Message:
    """Build an error response without a partition, for an invalid request."""
    if isinstance(request, vote.VoteRequest):
        return vote.VoteResponse(error_code=code, topics=[])
    if isinstance(request, begin.BeginQuorumEpochRequest):
        return begin.BeginQuorumEpochResponse(error_code=code, topics=[])
    return end.EndQuorumEpochResponse(error_code=code, topics=[])


def reply(
    request: Electoral, code: ErrorCode, known: Known, *, api_version: int, is_granted: bool = False
) -> Message:
    """Build the response with the one partition, the metadata log."""
    epoch, leader_id, at = known
    if api_version < FIRST_WITH_ENDPOINTS or leader_id < 0:
        at = None
    if isinstance(request, vote.VoteRequest):
        voted = vote.ResponsePartitionData(
            partition_index=0,
            error_code=code,
            leader_id=leader_id,
            leader_epoch=epoch,
            vote_granted=is_granted,
        )
        return vote.VoteResponse(
            topics=[vote.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[voted])],
            node_endpoints=[vote.NodeEndpoint(node_id=leader_id, host=at.host, port=at.port)] if at else [],
        )
    if isinstance(request, begin.BeginQuorumEpochRequest):
        begun = begin.ResponsePartitionData(
            partition_index=0, error_code=code, leader_id=leader_id, leader_epoch=epoch
        )
        return begin.BeginQuorumEpochResponse(
            topics=[begin.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[begun])],
            node_endpoints=[begin.NodeEndpoint(node_id=leader_id, host=at.host, port=at.port)] if at else [],
        )
    ended = end.ResponsePartitionData(
        partition_index=0, error_code=code, leader_id=leader_id, leader_epoch=epoch
    )
    return end.EndQuorumEpochResponse(
        topics=[end.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[ended])],
        node_endpoints=[end.NodeEndpoint(node_id=leader_id, host=at.host, port=at.port)] if at else [],
    )


def update_reply(code: ErrorCode, known: Known) -> UpdateRaftVoterResponse:
    """Build the response to UpdateRaftVoter."""
    epoch, leader_id, at = known
    leader = CurrentLeader(leader_id=leader_id, leader_epoch=epoch)
    if at is not None:
        leader.host, leader.port = at
    return UpdateRaftVoterResponse(error_code=code, current_leader=leader)
