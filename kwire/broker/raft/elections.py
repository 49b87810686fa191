"""Leader elections of the quorum: votes, vote counts, and requests. KIP-595, KIP-853, KIP-996.

A prospective node first sends pre-votes in the current epoch. It becomes a candidate in a new epoch only if a
majority would vote for it. So a node that was partitioned away does not disturb a healthy leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.raft.roles import QuorumRole
from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.wire.messages import begin_quorum_epoch as begin
from kwire.wire.messages import end_quorum_epoch as end
from kwire.wire.messages import vote
from kwire.wire.primitives import ZERO_UUID

LAST_EPOCH = 0x7FFF_FFFF
"""The largest epoch. No request may make a node enter it, because no later election would be possible."""


class Tally:
    """The counted votes, or pre-votes, of one election."""

    def __init__(self, voters: VoterSet, own: ReplicaKey) -> None:
        self._voters = voters
        self._votes = {} if voters.find(own) is None else {own.replica_id: True}

    def count(self, voter_id: int, *, is_granted: bool) -> None:
        """Count a voter's response. Only the first response of each voter counts."""
        if self._voters.of_id(voter_id) is not None:
            self._votes.setdefault(voter_id, is_granted)

    @property
    def granted(self) -> list[int]:
        """The ids of the voters that granted their vote, including this node if it is a voter."""
        return sorted(voter_id for voter_id, is_granted in self._votes.items() if is_granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority has granted its vote."""
        return len(self.granted) >= self._voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether a majority is no longer possible."""
        return len(self.granted) + len(self.missing) < self._voters.majority

    @property
    def missing(self) -> list[Voter]:
        """The voters that have not responded yet."""
        return [voter for voter in self._voters if voter.key.replica_id not in self._votes]


def may_have_vote(
    role: QuorumRole,
    candidate: ReplicaKey,
    *,
    is_up_to_date: bool,
    is_pre_vote: bool,
    voted: ReplicaKey | None,
    leader_id: int,
    has_live_leader: bool,
) -> bool:
    """Return whether to grant a vote or pre-vote in the current epoch.

    `is_up_to_date`: the candidate's log is at least as long as the log of this node. `voted`: the candidate
    for which this node has voted in this epoch. `has_live_leader`: the current leader has responded to a
    Fetch within the fetch timeout.
    """
    if is_pre_vote:
        if role is QuorumRole.LEADER or (role is QuorumRole.FOLLOWER and has_live_leader):
            return False
        return is_up_to_date
    if role not in (QuorumRole.UNATTACHED, QuorumRole.PROSPECTIVE):
        return False  # there is a leader, or this node voted for itself
    if voted is not None:
        same_directory = voted.directory_id in (ZERO_UUID, candidate.directory_id)
        return voted.replica_id == candidate.replica_id and same_directory
    return leader_id == NO_LEADER and is_up_to_date


def vote_request(
    terms: Terms, log: QuorumLog, epoch: int, voter: ReplicaKey, *, is_pre_vote: bool
) -> vote.VoteRequest:
    """Build the request for a vote or a pre-vote."""
    data = vote.RequestPartitionData(
        partition_index=0,
        replica_epoch=epoch,
        replica_id=terms.node_id,
        replica_directory_id=terms.directory_id,
        voter_directory_id=voter.directory_id,
        last_offset_epoch=log.last_epoch,
        last_offset=log.end_offset,
        pre_vote=is_pre_vote,
    )
    return vote.VoteRequest(
        cluster_id=terms.cluster_id,
        voter_id=voter.replica_id,
        topics=[vote.RequestTopicData(topic_name=METADATA_TOPIC, partitions=[data])],
    )


def begin_request(
    terms: Terms, epoch: int, voter: ReplicaKey, endpoints: Sequence[VoterEndpoint]
) -> begin.BeginQuorumEpochRequest:
    """Build the BeginQuorumEpoch request, in which a new leader announces its endpoints."""
    data = begin.RequestPartitionData(
        partition_index=0, voter_directory_id=voter.directory_id, leader_id=terms.node_id, leader_epoch=epoch
    )
    return begin.BeginQuorumEpochRequest(
        cluster_id=terms.cluster_id,
        voter_id=voter.replica_id,
        topics=[begin.RequestTopicData(topic_name=METADATA_TOPIC, partitions=[data])],
        leader_endpoints=[
            begin.LeaderEndpoint(name=one.name, host=one.host, port=one.port) for one in endpoints
        ],
    )


def end_request(terms: Terms, epoch: int, successors: Sequence[ReplicaKey]) -> end.EndQuorumEpochRequest:
    """Build the EndQuorumEpoch request of a leader that resigns, with the preferred successors in order."""
    data = end.RequestPartitionData(
        partition_index=0,
        leader_id=terms.node_id,
        leader_epoch=epoch,
        preferred_successors=[key.replica_id for key in successors],
        preferred_candidates=[
            end.ReplicaInfo(candidate_id=key.replica_id, candidate_directory_id=key.directory_id)
            for key in successors
        ],
    )
    return end.EndQuorumEpochRequest(
        cluster_id=terms.cluster_id,
        topics=[end.RequestTopicData(topic_name=METADATA_TOPIC, partitions=[data])],
    )


def wait_before_standing_ms(request: end.EndQuorumEpochRequest, own: ReplicaKey, max_ms: int) -> int:
    """Return how many ms this node waits before it starts an election, after the leader has resigned.

    The first preferred successor does not wait. Later successors wait longer, so that the node with the
    longest log wins.
    """
    data = request.topics[0].partitions[0]
    successors = [
        ReplicaKey(one.candidate_id, one.candidate_directory_id) for one in data.preferred_candidates
    ]
    if not successors:
        successors = [ReplicaKey(node_id, ZERO_UUID) for node_id in data.preferred_successors]
    place = len(successors)
    for index, one in enumerate(successors):
        if one.replica_id == own.replica_id and one.directory_id in (ZERO_UUID, own.directory_id):
            place = index
            break
    if place == 0:
        return 0
    if place == len(successors):
        return max_ms
    return min(max_ms, max_ms >> (len(successors) - 1) << (place - 1))
