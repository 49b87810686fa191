"""How a quorum elects: who may have a vote, how votes are counted, what is asked. KIP-595, KIP-853, KIP-996.

Whoever wants to lead asks first whether it would be elected (a pre-vote), in the epoch that there is: so one
that was cut off does not disturb a quorum that has a leader. Only then it begins an epoch.
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
"""No epoch can follow it, so that nobody may have a quorum begin it."""


class Tally:
    """The votes of one election, or what they would be."""

    def __init__(self, voters: VoterSet, own: ReplicaKey) -> None:
        self._voters = voters
        self._votes = {} if voters.find(own) is None else {own.replica_id: True}

    def count(self, voter_id: int, *, is_granted: bool) -> None:
        """A voter has answered. The first answer counts."""
        if self._voters.of_id(voter_id) is not None:
            self._votes.setdefault(voter_id, is_granted)

    @property
    def granted(self) -> list[int]:
        """Who votes for this node, itself included if it is a voter."""
        return sorted(voter_id for voter_id, is_granted in self._votes.items() if is_granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority votes for it."""
        return len(self.granted) >= self._voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether no majority can come any more."""
        return len(self.granted) + len(self.missing) < self._voters.majority

    @property
    def missing(self) -> list[Voter]:
        """Who has not answered yet."""
        return [voter for voter in self._voters if voter.key.replica_id not in self._votes]


def may_have_vote(
    role: QuorumRole,
    candidate: ReplicaKey,
    *,
    is_up_to_date: bool,
    is_pre_vote: bool,
    voted: ReplicaKey | None,
    leader_id: int,
    has_fetched: bool,
) -> bool:
    """Whether a candidate gets the vote, or would, in the epoch that it and this node are in.

    `is_up_to_date` says that its log goes at least as far, `voted` who has the vote in this epoch, and
    `has_fetched` whether the leader, if one is followed, has answered a Fetch.
    """
    if is_pre_vote:
        if role is QuorumRole.LEADER or (role is QuorumRole.FOLLOWER and has_fetched):
            return False
        return is_up_to_date
    if role not in (QuorumRole.UNATTACHED, QuorumRole.PROSPECTIVE):
        return False  # there is a leader, or this node has voted for itself
    if voted is not None:
        same_directory = voted.directory_id in (ZERO_UUID, candidate.directory_id)
        return voted.replica_id == candidate.replica_id and same_directory
    return leader_id == NO_LEADER and is_up_to_date


def vote_request(
    terms: Terms, log: QuorumLog, epoch: int, voter: ReplicaKey, *, is_pre_vote: bool
) -> vote.VoteRequest:
    """Ask for a vote, or whether there would be one."""
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
    """Say that this node leads, and where it is."""
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
    """Say that this node leads no more, and who should stand first."""
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
    """How long to wait before standing when a leader resigns: the first of its successors stands at once.

    The others wait the longer the later they come in its list, so that whose log goes furthest is elected.
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
