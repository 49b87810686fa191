"""Requests of a follower that change the voters: its own endpoints, or its own membership. KIP-853.

A voter sends UpdateRaftVoter with its endpoints, directory id and kraft.version range: in a dynamic quorum if
the log has other values, in a static quorum to each new leader. A controller that is not a voter adds itself
if controller.quorum.auto.join.enable is set. If a voter has the same node id and another directory id, the
controller first removes that voter.
"""

from __future__ import annotations

from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.voters import KRAFT_VERSIONS, Voter, endpoints_of
from kwire.host.host import InternodeTime
from kwire.wire.messages import add_raft_voter as adding
from kwire.wire.messages import update_raft_voter as updating
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.wire.schema import Message


class Joining:
    """The voter changes that one node requests, and the times of these requests."""

    def __init__(self, terms: Terms, log: QuorumLog) -> None:
        self.me = Voter(terms.key, endpoints_of(terms.endpoints), *KRAFT_VERSIONS)
        """This node as the log should have it."""
        self._terms = terms
        self._log = log
        self._due_ms = InternodeTime(0)
        self._has_told = False
        """Whether the current leader knows the endpoints of this voter."""

    def follow(self, now_ms: InternodeTime) -> None:
        """Postpone the first request to a new leader by a fetch timeout, so that Fetches come first."""
        self._has_told = False
        self.wait(now_ms)

    def wait(self, now_ms: InternodeTime) -> None:
        """Postpone the next request by a fetch timeout."""
        self._due_ms = now_ms + self._terms.fetch_timeout_ms

    def told(self) -> None:
        """Record that the leader knows this voter's endpoints, or does not support UpdateRaftVoter."""
        self._has_told = True

    def request(self, epoch: int, now_ms: InternodeTime) -> Message | None:
        """Return the request that is due now, before the next Fetch, or None."""
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
            ack_when_committed=False,  # this node must fetch again before the change can be committed
        )

    def _remove(self, former: Voter) -> Message:
        return RemoveRaftVoterRequest(
            cluster_id=self._terms.cluster_id,
            voter_id=former.key.replica_id,
            voter_directory_id=former.key.directory_id,
        )
