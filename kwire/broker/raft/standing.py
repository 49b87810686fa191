"""The quorum state of one node, and the transitions between its roles.

`roles` lists the legal transitions; this module implements them. Each transition returns its outputs in this
order: the end of the old role (a leader stops appending), the write of quorum-state, and notifications.
"""

from __future__ import annotations

import random
from typing import Final

from kwire.broker.raft.calls import Calls
from kwire.broker.raft.elections import Tally
from kwire.broker.raft.fetching import FETCH_WAIT_MS, Fetching
from kwire.broker.raft.joining import Joining
from kwire.broker.raft.leading import Leading
from kwire.broker.raft.membership import Membership
from kwire.broker.raft.outputs import Fail, Output, Remember, Tell, Unlead
from kwire.broker.raft.quorum_state import NOBODY, QuorumState
from kwire.broker.raft.roles import MOVES, Event, QuorumRole
from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.raft.voters import ReplicaKey, Voter
from kwire.host.host import InternodeTime, PeerAddress
from kwire.wire.errors import ErrorCode
from kwire.wire.primitives import ZERO_UUID

LEAST_BACKOFF_MS: Final = 20
FIRST_BACKOFF_MS: Final = 200
"""The first election backoff in ms. It doubles up to controller.quorum.election.backoff.max.ms."""
FIRST_ELECTION_SHARE: Final = 10
"""The first election of a new quorum starts within the election timeout divided by this number."""


class Standing:
    """The state of a voter or observer, and its transitions."""

    def __init__(
        self,
        terms: Terms,
        log: QuorumLog,
        rng: random.Random,
        *,
        remembered: QuorumState,
        now_ms: InternodeTime,
    ) -> None:
        """Start with the state that the quorum-state file has. The log must be durable."""
        self.role = QuorumRole.UNATTACHED
        self.epoch = max(remembered.leader_epoch, log.last_epoch)
        self.leader_id = NO_LEADER
        """The leader of the epoch. A leader that has resigned still reports itself."""
        self.leader_address: PeerAddress | None = None
        """The leader's address; None if the leader is this node or unknown."""
        self._terms = terms
        self._log = log
        self._rng = rng
        self._joining = Joining(terms, log)
        self._calls = Calls(terms, rng)
        self._fetching = Fetching(terms, log, self._calls, rng)
        self._voted: ReplicaKey | None = None
        """The candidate for which this node has voted in this epoch, or None."""
        self._tally: Tally | None = None
        self._refusals = 0
        """The number of rejections by other nodes since this node last had a leader or was the leader."""
        self._leading: Leading | None = None
        self._membership: Membership | None = None
        self._successors: list[ReplicaKey] = []
        self._unaware: list[Voter] = []
        """The voters that do not know yet that this node resigned."""
        self._election_due_ms = now_ms + self._random_timeout_ms()
        """The time at which the current election times out, or the next election starts."""
        self._fetch_due_ms: InternodeTime | None = None
        """The end of the fetch timeout; None before the first Fetch."""
        self._leader_has_ended = False
        """Whether the leader sent EndQuorumEpoch."""
        self._is_stopping = False
        self._denial_logged_ms: InternodeTime | None = None
        """The time of the last log line that a controller denied a request of this node."""
        self._told: object = None
        if remembered.leader_epoch == self.epoch:  # otherwise the file is missing, or older than the log
            self._recall(remembered, now_ms)
        if self._has_never_had_a_leader:
            self._election_due_ms = now_ms + 1 + self._rng.randrange(self._first_election_ms)

    def _recall(self, remembered: QuorumState, now_ms: InternodeTime) -> None:
        """Restore the role that this node had in the epoch of quorum-state."""
        terms, voters = self._terms, self._log.voters
        if remembered.voted_id != NOBODY:
            self._voted = ReplicaKey(remembered.voted_id, remembered.voted_directory_id)
        self.leader_id = remembered.leader_id
        if self.leader_id == terms.node_id:
            # A restarted leader may have lost records of its epoch, so it appends nothing more in that epoch.
            self.role = QuorumRole.RESIGNED
            self._unaware = self._others()
        elif self.leader_id != NO_LEADER:
            address = voters.address(self.leader_id, terms.listener)
            if address is not None:
                self.role, self.leader_address = QuorumRole.FOLLOWER, address
                self._fetch_due_ms = now_ms + terms.fetch_timeout_ms
                self._joining.follow(now_ms)
        elif self._may_stand and self._voted is not None and self._is_me(self._voted):
            self.role = QuorumRole.CANDIDATE
            self._tally = Tally(voters, terms.key)

    @property
    def _has_never_had_a_leader(self) -> bool:
        """Whether this node knows of no election: it has no epoch, no vote and no record.

        Such a node does not wait for an election timeout, because there is no leader whose Fetch responses
        could be late. If the quorum does have a leader, the voters reject the pre-vote, and their responses
        name the leader.
        """
        return self.epoch == 0 and self._voted is None and self._log.end_offset == 0

    @property
    def _first_election_ms(self) -> int:
        return max(1, self._terms.election_timeout_ms // FIRST_ELECTION_SHARE)

    @property
    def voted_id(self) -> int:
        """The id of the candidate for which this node has voted in this epoch; NOBODY for none."""
        return NOBODY if self._voted is None else self._voted.replica_id

    @property
    def is_voter(self) -> bool:
        """Whether this node is one of the latest voters."""
        return self._log.voters.find(self._terms.key) is not None

    @property
    def _may_stand(self) -> bool:
        """Whether this node may become a candidate: it is a voter, or its removal is not committed yet.

        A node that could not write the first records of a new cluster waits until it has fetched them.

        If this node has the only complete log, the remaining voters can elect no other node. It is then
        leader until its removal is committed. (Section 4.2.2 of Ongaro's thesis. A Kafka quorum gets stuck
        here.)
        """
        log = self._log
        if not log.may_lead:
            return False
        is_open = log.voters_offset >= log.high_watermark
        return self.is_voter or (is_open and log.former_voters.find(self._terms.key) is not None)

    def _is_me(self, key: ReplicaKey) -> bool:
        """Return whether the key is this node's key. The key may lack the directory id."""
        mine = self._terms.key
        return key.replica_id == mine.replica_id and key.directory_id in (ZERO_UUID, mine.directory_id)

    @property
    def _lead_of_epoch(self) -> tuple[Leading, Membership]:
        """The state that a node has only as leader."""
        assert self._leading is not None
        assert self._membership is not None
        return self._leading, self._membership

    def _others(self) -> list[Voter]:
        return [voter for voter in self._log.voters if voter.key.replica_id != self._terms.node_id]

    def _random_timeout_ms(self) -> int:
        return self._terms.election_timeout_ms + self._rng.randrange(max(1, self._terms.election_timeout_ms))

    def _stand_again_soon(self, now_ms: InternodeTime) -> None:
        """Schedule the next election soon after a rejection; the delay grows with each rejection."""
        backoff_ms = min(self._terms.election_backoff_max_ms, FIRST_BACKOFF_MS << min(self._refusals, 16))
        self._refusals += 1
        due_ms = now_ms + LEAST_BACKOFF_MS + self._rng.randrange(1 + backoff_ms)
        self._election_due_ms = min(self._election_due_ms, due_ms)

    # --- transitions

    def _leave(self, event: Event, reason: ErrorCode = ErrorCode.NOT_CONTROLLER) -> list[Output]:
        """End the current role, and enter the role that follows the event."""
        following = MOVES[self.role].get(event)
        assert following is not None, f"{event.name} is illegal for {self.role.name}"
        outputs: list[Output] = []
        if self._membership is not None:
            outputs = [Unlead(reason), *self._membership.abandon()]
        outputs += self._fetching.restart()
        self.role = following
        self._tally = self._leading = self._membership = None
        self._unaware = []
        self._leader_has_ended = False
        self._calls.forget()
        return outputs

    def _remember(self, *, is_promise: bool) -> list[Output]:
        """Write epoch, vote and leader to quorum-state, and notify subscribers if the leader has changed."""
        voted = self._voted or ReplicaKey(NOBODY, ZERO_UUID)
        state = QuorumState(
            leader_id=self.leader_id,
            leader_epoch=self.epoch,
            voted_id=voted.replica_id,
            voter_ids=tuple(self._log.voters.ids),
            data_version=self._log.kraft_version,
            voted_directory_id=voted.directory_id,
        )
        return [Remember(state, is_promise), *self._tell()]

    def _tell(self) -> list[Output]:
        known = (self.epoch, self.leader_id, self.leader_address, self.role is QuorumRole.LEADER)
        if known == self._told:
            return []
        self._told = known
        return [Tell()]

    def _see(
        self,
        epoch: int,
        now_ms: InternodeTime,
        *,
        leader_id: int = NO_LEADER,
        address: PeerAddress | None = None,
    ) -> list[Output]:
        """Enter an epoch, or learn its leader. Responses to requests in flight are then ignored."""
        if leader_id != NO_LEADER and address is not None:
            return self._follow_leader(epoch, leader_id, address, now_ms)
        keeps_time = self.role in (QuorumRole.UNATTACHED, QuorumRole.CANDIDATE, QuorumRole.RESIGNED)
        if self.role is QuorumRole.PROSPECTIVE:
            assert self._tally is not None
            keeps_time = not self._tally.is_lost
        if not keeps_time:
            self._election_due_ms = now_ms + self._random_timeout_ms()
        outputs = self._leave(Event.EPOCH_SEEN)
        if epoch > self.epoch:
            self._voted = None
        self.epoch, self.leader_id, self.leader_address = epoch, leader_id, None
        self._fetch_due_ms = None
        return outputs + self._remember(is_promise=False)

    def _follow_leader(
        self, epoch: int, leader_id: int, address: PeerAddress, now_ms: InternodeTime
    ) -> list[Output]:
        outputs = self._leave(Event.LEADER_FOUND)
        if epoch > self.epoch:
            self._voted = None
        self.epoch, self.leader_id, self.leader_address = epoch, leader_id, address
        self._fetch_due_ms = now_ms + self._terms.fetch_timeout_ms
        self._joining.follow(now_ms)
        return outputs + self._remember(is_promise=False)

    def _stand(self, now_ms: InternodeTime) -> list[Output]:
        """Become prospective and request pre-votes. The only voter becomes a candidate at once."""
        outputs = self._leave(Event.STANDS)
        self._tally = Tally(self._log.voters, self._terms.key)
        self._election_due_ms = now_ms + self._random_timeout_ms()
        return outputs + self._count(now_ms)

    def _count(self, now_ms: InternodeTime) -> list[Output]:
        """Change the role if the counted votes decide the election."""
        tally = self._tally
        assert tally is not None
        if tally.is_won:
            return (
                self._become_candidate(now_ms) if self.role is QuorumRole.PROSPECTIVE else self._win(now_ms)
            )
        return self._lose(now_ms) if tally.is_lost and self.role is QuorumRole.PROSPECTIVE else []

    def _become_candidate(self, now_ms: InternodeTime) -> list[Output]:
        """Start a new epoch and vote for this node."""
        outputs = self._leave(Event.WOULD_WIN)
        self.epoch, self.leader_id, self.leader_address = self.epoch + 1, NO_LEADER, None
        self._voted = self._terms.key
        self._tally = Tally(self._log.voters, self._terms.key)
        self._election_due_ms = now_ms + self._random_timeout_ms()
        if self._tally.is_won:  # for the only voter, one write of quorum-state is enough
            return outputs + self._win(now_ms)
        return outputs + self._remember(is_promise=True)

    def _win(self, now_ms: InternodeTime) -> list[Output]:
        """Become leader. No record is appended before quorum-state is durable: no epoch may begin twice."""
        assert self._tally is not None
        granted = self._tally.granted
        self._refusals = 0
        outputs = self._leave(Event.ELECTED)
        self.leader_id, self._voted = self._terms.node_id, None
        me = self._joining.me
        self._leading = Leading(self._terms, self._log, me, self.epoch, now_ms)
        self._membership = Membership(self._terms, self._log, self._calls, self._leading, me)
        controls = self._leading.first_controls(granted)
        return [*outputs, *self._remember(is_promise=True), controls]

    def _lose(self, now_ms: InternodeTime) -> list[Output]:
        """End a lost election. A candidate becomes prospective again; other roles wait for a leader."""
        if self.role is QuorumRole.CANDIDATE:
            return self._stand(now_ms)
        assert self._tally is not None
        if self._tally.is_lost:
            self._election_due_ms = now_ms + self._random_timeout_ms()
        if self.leader_id != NO_LEADER and self.leader_address is not None:
            outputs = self._follow_leader(self.epoch, self.leader_id, self.leader_address, now_ms)
            # A healthy leader responds to a Fetch within this time. If the leader is gone, the voters that
            # rejected this node will notice it later, or will start an election themselves.
            wait_ms = FETCH_WAIT_MS + self._rng.randrange(FETCH_WAIT_MS)
            self._fetch_due_ms = now_ms + min(wait_ms, self._terms.fetch_timeout_ms)
            return outputs
        outputs = self._leave(Event.LOST)
        self._fetch_due_ms = None
        return outputs + self._remember(is_promise=False)

    def _resign(self, now_ms: InternodeTime, reason: ErrorCode) -> list[Output]:
        """Resign, and send EndQuorumEpoch, which lists the voters by the ends of their logs."""
        assert self._leading is not None
        self._successors = self._leading.successors()
        outputs = self._leave(Event.RESIGNS, reason)
        self._unaware = self._others()
        self._election_due_ms = now_ms + self._random_timeout_ms()
        return outputs + self._tell()

    def _contradicted(self, reason: str) -> list[Output]:
        return [*self._leave(Event.CONTRADICTED), *self._tell(), Fail(reason)]
