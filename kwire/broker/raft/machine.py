"""A node's part in the quorum of the metadata log, as a machine: events in, what is to be done out.

It is one machine for all who keep the log, voters and observers, in the way of Apache Kafka's KRaft: KIP-595,
with pre-votes (KIP-996), and voters that come and go (KIP-853).

The machine touches nothing. Its caller does what it says, in that order, and then, when `due_ms` is reached,
asks on (`tick`): what comes in is answered and decided at once, and what others are to be asked comes out of
`tick`. Who leads an epoch never changes, epochs only grow, nobody votes twice in one, and nothing is cut
below what was committed: a node that is told otherwise ends.

Whatever was asked in another role or epoch is forgotten, and so is its answer. So nothing is appended, cut
or loaded while a promise is on its way to the disk, and the log that the machine looks at is the real one.
"""

from __future__ import annotations

from typing import assert_never

from kwire.broker.raft.calls import FETCH
from kwire.broker.raft.elections import LAST_EPOCH, begin_request, end_request, vote_request
from kwire.broker.raft.leading import Description
from kwire.broker.raft.listening import Listening
from kwire.broker.raft.outputs import Complain, Output
from kwire.broker.raft.roles import QuorumRole, Stage
from kwire.broker.raft.view import NO_LEADER
from kwire.broker.raft.voters import Voter
from kwire.wire.errors import ApiError, ErrorCode


class Machine(Listening):
    """The machine of one node, be it a voter or an observer."""

    # --- what others may know

    @property
    def stage(self) -> Stage:
        """How far a follower has come with its leader's log."""
        return self._fetching.stage

    @property
    def high_watermark(self) -> int:
        """What Fetch and DescribeQuorum tell: -1 of a leader that has not committed in its epoch yet."""
        return self._log.high_watermark if self._leading is None else self._leading.high_watermark

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol, with a rise of it that is not in the log yet."""
        return self._log.kraft_version if self._membership is None else self._membership.kraft_version

    @property
    def may_end(self) -> bool:
        """Whether a node that was told to stop need not wait for anything: another leads, or nobody can.

        Until then its vote may be the one that is missing.
        """
        another_leads = self.leader_id not in (NO_LEADER, self._terms.node_id)
        return another_leads or not self.is_voter or len(self._log.voters) == 1

    def describe(self, now_ms: int) -> Description:
        """Of the leader: how everybody is doing."""
        assert self._leading is not None
        return self._leading.describe(now_ms)

    def resign(self, now_ms: int, reason: ErrorCode) -> list[Output]:
        """The leader cannot lead, or should not: others are to stand."""
        return self._resign(now_ms, reason) if self.role is QuorumRole.LEADER else []

    def stop(self, now_ms: int) -> list[Output]:
        """The node ends: a leader resigns. Afterwards it only answers, and has the others elect."""
        self._is_stopping = True
        self._calls.forget()
        return self.resign(now_ms, ErrorCode.NOT_CONTROLLER)

    # --- time

    @property
    def due_ms(self) -> int | None:
        """When `tick` has something to do, which may be at once; None while an event is awaited."""
        dues: list[int | None] = []
        match self.role:
            case _ if self._is_stopping and self.role is not QuorumRole.RESIGNED:
                pass
            case QuorumRole.UNATTACHED | QuorumRole.FOLLOWER:
                dues = [self._fetching.due_ms(self.leader_address), self._stand_due_ms]
            case QuorumRole.PROSPECTIVE | QuorumRole.CANDIDATE:
                assert self._tally is not None
                dues = [self._election_due_ms]
                if not self._tally.is_lost:
                    dues += self._ready_to_be_asked(self._tally.missing)
            case QuorumRole.LEADER:
                leading, membership = self._lead_of_epoch
                dues = [0 if leading.has_left else leading.due_ms, membership.due_ms]
            case QuorumRole.RESIGNED:
                dues = [*self._ready_to_be_asked(self._unaware)]
                if not self._is_stopping:
                    dues.append(self._election_due_ms)
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def _ready_to_be_asked(self, voters: list[Voter]) -> list[int]:
        return [
            self._calls.ready_ms(voter.key.replica_id)
            for voter in voters
            if voter.address(self._terms.listener) is not None
        ]

    @property
    def _stand_due_ms(self) -> int | None:
        """When a voter stands, that has no leader; None while it waits for its own disk."""
        if not self._may_stand or not self._fetching.is_settled or self.epoch >= LAST_EPOCH - 1:
            return None
        return self._election_due_ms if self.role is QuorumRole.UNATTACHED else self._fetch_due_ms

    def start(self, now_ms: int) -> list[Output]:
        """What follows at once from what is remembered: a sole voter elects itself here."""
        outputs: list[Output] = []
        if self.role is QuorumRole.CANDIDATE:
            outputs = self._count(now_ms)
        elif self.is_voter and len(self._log.voters) == 1:
            outputs = self._stand(now_ms)
        return outputs or self._tell()

    def tick(self, now_ms: int) -> list[Output]:
        """Time has passed, or what came out before is done: perhaps somebody is to be asked."""
        match self.role:
            case _ if self._is_stopping and self.role is not QuorumRole.RESIGNED:
                return []
            case QuorumRole.UNATTACHED | QuorumRole.FOLLOWER:
                stand_due_ms = self._stand_due_ms
                if stand_due_ms is not None and now_ms >= stand_due_ms:
                    return self._then_tick(self._stand(now_ms), now_ms)
                return self._follow(now_ms)
            case QuorumRole.PROSPECTIVE | QuorumRole.CANDIDATE:
                if now_ms >= self._election_due_ms:
                    return self._then_tick(self._lose(now_ms), now_ms)
                return self._ask_for_votes(now_ms)
            case QuorumRole.LEADER:
                return self._lead(now_ms)
            case QuorumRole.RESIGNED:
                if now_ms >= self._election_due_ms and not self._is_stopping:
                    # In the epoch that it led it could not follow anybody.
                    return self._then_tick(self._see(self.epoch + 1, now_ms), now_ms)
                return self._tell_of_end(now_ms)
            case QuorumRole.FAILED:
                return []
            case _ as never:
                assert_never(never)

    def _then_tick(self, outputs: list[Output], now_ms: int) -> list[Output]:
        return outputs + self.tick(now_ms)

    def _follow(self, now_ms: int) -> list[Output]:
        """Fetch, or ask the leader for something that comes before."""
        due_ms = self._fetching.due_ms(self.leader_address)
        if due_ms is None or now_ms < due_ms:
            return []
        if self._fetch_due_ms is None:
            self._fetch_due_ms = now_ms + self._terms.fetch_timeout_ms
        is_late = now_ms >= self._fetch_due_ms
        if self.leader_address is not None and self._fetching.has_fetched and not is_late:
            request = self._joining.request(self.epoch, now_ms)
            if request is not None:
                return [self._calls.send(FETCH, self.leader_address, request, now_ms)]
        return [self._fetching.ask(self.epoch, self.leader_address, is_late=is_late, now_ms=now_ms)]

    def _ask_for_votes(self, now_ms: int) -> list[Output]:
        tally, terms = self._tally, self._terms
        assert tally is not None
        outputs: list[Output] = []
        for voter in [] if tally.is_lost else tally.missing:
            address, voter_id = voter.address(terms.listener), voter.key.replica_id
            if address is not None and now_ms >= self._calls.ready_ms(voter_id):
                is_pre_vote = self.role is QuorumRole.PROSPECTIVE
                request = vote_request(terms, self._log, self.epoch, voter.key, is_pre_vote=is_pre_vote)
                outputs.append(self._calls.send(voter_id, address, request, now_ms))
        return outputs

    def _lead(self, now_ms: int) -> list[Output]:
        leading, membership = self._lead_of_epoch
        if leading.has_left:
            return self._then_tick(self._resign(now_ms, ErrorCode.NOT_CONTROLLER), now_ms)
        if leading.is_alone(now_ms):
            lost = "no majority of the voters has fetched in time: this node leads no more"
            return self._then_tick(
                [Complain(lost, is_fault=False), *self._resign(now_ms, ErrorCode.NOT_CONTROLLER)], now_ms
            )
        outputs = membership.expire(now_ms)
        for voter in leading.to_be_told(now_ms):
            address, voter_id = voter.address(self._terms.listener), voter.key.replica_id
            if address is not None and now_ms >= self._calls.ready_ms(voter_id):
                request = begin_request(self._terms, self.epoch, voter.key, self._joining.me.endpoints)
                outputs.append(self._calls.send(voter_id, address, request, now_ms))
        return outputs

    def _tell_of_end(self, now_ms: int) -> list[Output]:
        outputs: list[Output] = []
        for voter in self._unaware:
            address, voter_id = voter.address(self._terms.listener), voter.key.replica_id
            if address is not None and now_ms >= self._calls.ready_ms(voter_id):
                request = end_request(self._terms, self.epoch, self._successors)
                outputs.append(self._calls.send(voter_id, address, request, now_ms))
        return outputs

    # --- what has become of the log

    def synced(self, offset: int, now_ms: int) -> list[Output]:
        """The log, as it is now, is durable up to there."""
        self._fetching.synced(offset)
        if self.role is QuorumRole.LEADER:
            return self._commit()
        self._excuse_leader(now_ms)
        return []

    def controls_appended(self, offset: int, now_ms: int) -> list[Output]:
        """What the oldest AppendControls asked for stands from `offset` on."""
        leading, membership = self._lead_of_epoch
        if leading.epoch_offset is None:
            leading.epoch_offset = offset
        membership.appended(offset)
        return self._commit()

    def refused(self, now_ms: int) -> None:
        """What the leader has sent could not be appended: it is asked for again in a while."""
        self._calls.rest(FETCH, now_ms)

    def installed(self, now_ms: int) -> None:
        """The snapshot is installed, or could not be: the log tells which."""
        self._fetching.installed()
        self._excuse_leader(now_ms)

    def _excuse_leader(self, now_ms: int) -> None:
        """It was this node's own disk that took its time."""
        if self._fetching.is_settled and self._fetch_due_ms is not None and not self._leader_has_ended:
            self._fetch_due_ms = now_ms + self._terms.fetch_timeout_ms

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> list[Output]:
        """The leader makes a static quorum dynamic. ApiError where that is impossible."""
        if self._membership is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self._membership.raise_kraft_version(version, validate_only=validate_only)
