"""What a follower has its leader change about the voters: where it is, or that it becomes one. KIP-853.

A voter tells where it is reached, in which directory it is, and what it knows: in a dynamic quorum when the
log says something else, in one that is not to each new leader. Who may vote and does not makes itself a voter
where the configuration says so (controller.quorum.auto.join.enable); the voter that it was with another
directory it takes out first.
"""

from __future__ import annotations

from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.voters import KRAFT_VERSIONS, Voter, endpoints_of
from kwire.wire.messages import add_raft_voter as adding
from kwire.wire.messages import update_raft_voter as updating
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.wire.schema import Message


class Joining:
    """What one node wants to be to the quorum, and when it asks for it."""

    def __init__(self, terms: Terms, log: QuorumLog) -> None:
        self.me = Voter(terms.key, endpoints_of(terms.endpoints), *KRAFT_VERSIONS)
        """This node, as the log should say it."""
        self._terms = terms
        self._log = log
        self._due_ms = 0
        self._has_told = False
        """Whether this leader has heard where this voter is."""

    def follow(self, now_ms: int) -> None:
        """There is a new leader: it is asked when a few Fetches have gone well."""
        self._has_told = False
        self.wait(now_ms)

    def wait(self, now_ms: int) -> None:
        """Ask again only in a while."""
        self._due_ms = now_ms + self._terms.fetch_timeout_ms

    def told(self) -> None:
        """The leader knows where this voter is; or can not be told."""
        self._has_told = True

    def request(self, epoch: int, now_ms: int) -> Message | None:
        """What is to be asked now, instead of a Fetch."""
        if now_ms < self._due_ms:
            return None
        self.wait(now_ms)
        terms, log = self._terms, self._log
        voters, is_dynamic = log.voters, log.kraft_version > 0
        if (mine := voters.find(terms.key)) is not None:
            return self._update(epoch) if (mine != self.me if is_dynamic else not self._has_told) else None
        if not (is_dynamic and terms.may_vote and terms.auto_join):
            return None
        former = voters.of_id(terms.node_id)
        return self._add() if former is None else self._remove(former)

    def _update(self, epoch: int) -> Message:
        me = self.me
        return updating.UpdateRaftVoterRequest(
            cluster_id=self._terms.cluster_id,
            current_leader_epoch=epoch,
            voter_id=me.key.replica_id,
            voter_directory_id=me.key.directory_id,
            listeners=[updating.Listener(name=at.name, host=at.host, port=at.port) for at in me.endpoints],
            k_raft_version_feature=updating.KRaftVersionFeature(
                min_supported_version=me.min_version, max_supported_version=me.max_version
            ),
        )

    def _add(self) -> Message:
        me = self.me
        return adding.AddRaftVoterRequest(
            cluster_id=self._terms.cluster_id,
            timeout_ms=self._terms.request_timeout_ms,
            voter_id=me.key.replica_id,
            voter_directory_id=me.key.directory_id,
            listeners=[adding.Listener(name=at.name, host=at.host, port=at.port) for at in me.endpoints],
            ack_when_committed=False,  # to fetch on, so that it can be committed
        )

    def _remove(self, former: Voter) -> Message:
        return RemoveRaftVoterRequest(
            cluster_id=self._terms.cluster_id,
            voter_id=former.key.replica_id,
            voter_directory_id=former.key.directory_id,
        )
