"""The KRaft state machine of one node. It does no I/O: it handles events and returns outputs.

The machine serves voters and observers of the metadata log, as Apache Kafka's KafkaRaftClient does: KIP-595,
with pre-votes (KIP-996) and dynamic voters (KIP-853).

The caller executes the outputs in order, and calls `tick` at `due_ms`. Events (requests and responses of
other nodes) are handled at once; `tick` returns the requests to other nodes. These invariants always hold: an
epoch has one leader, epochs only grow, a node votes once per epoch, and no log is truncated below its high
watermark. A node that detects a violation stops.

If the role or epoch changes, the machine ignores the responses to all requests in flight. So nothing is
appended, truncated or loaded while a vote or epoch is being written to disk, and the machine always reads a
log that is up to date.
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
from kwire.host.host import InternodeTime
from kwire.wire.errors import ApiError, ErrorCode


class Machine(Listening):
    """The state machine of one voter or observer."""

    # --- state

    @property
    def stage(self) -> Stage:
        """The fetch state of a follower: it fetches batches, fetches a snapshot, or installs a snapshot."""
        return self._fetching.stage

    @property
    def high_watermark(self) -> int:
        """The high watermark for Fetch and DescribeQuorum; -1 until a new leader has committed a record."""
        return self._log.high_watermark if self._leading is None else self._leading.high_watermark

    @property
    def kraft_version(self) -> int:
        """The finalized kraft.version, or its new value while it is being upgraded."""
        return self._log.kraft_version if self._membership is None else self._membership.kraft_version

    @property
    def may_end(self) -> bool:
        """Whether a stopping node may stop now: another node is leader, or this node's vote is not needed.

        Until then, the other voters may need this node's vote for a majority.
        """
        another_leads = self.leader_id not in (NO_LEADER, self._terms.node_id)
        return another_leads or not self.is_voter or len(self._log.voters) == 1

    def describe(self, now_ms: InternodeTime) -> Description:
        """Return the state of the quorum. This node must be the leader."""
        assert self._leading is not None
        return self._leading.describe(now_ms)

    def resign(self, now_ms: InternodeTime, reason: ErrorCode) -> list[Output]:
        """Resign as leader, so that another voter is elected."""
        return self._resign(now_ms, reason) if self.role is QuorumRole.LEADER else []

    def stop(self, now_ms: InternodeTime) -> list[Output]:
        """Resign if this node is the leader. From then on, only respond to requests until the node stops."""
        self._is_stopping = True
        self._calls.forget()
        return self.resign(now_ms, ErrorCode.NOT_CONTROLLER)

    # --- time

    @property
    def due_ms(self) -> InternodeTime | None:
        """The time of the next `tick`, possibly in the past; None if only an event can change the state."""
        dues: list[InternodeTime | None] = []
        match self.role:
            case _ if self._is_stopping and self.role is not QuorumRole.RESIGNED:
                pass
            case QuorumRole.UNATTACHED | QuorumRole.FOLLOWER:
                dues = [self._fetching.due_ms(self.leader_address), self._stand_due_ms]
            case QuorumRole.PROSPECTIVE | QuorumRole.CANDIDATE:
                assert self._tally is not None
                dues = [self._election_due_ms]
                if not self._tally.is_lost:
                    dues += self._ready_for_request(self._tally.missing)
            case QuorumRole.LEADER:
                leading, membership = self._lead_of_epoch
                dues = [InternodeTime(0) if leading.has_left else leading.due_ms, membership.due_ms]
            case QuorumRole.RESIGNED:
                dues = [*self._ready_for_request(self._unaware)]
                if not self._is_stopping:
                    dues.append(self._election_due_ms)
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    def _ready_for_request(self, voters: list[Voter]) -> list[InternodeTime]:
        return [
            self._calls.ready_ms(voter.key.replica_id)
            for voter in voters
            if voter.address(self._terms.listener) is not None
        ]

    @property
    def _stand_due_ms(self) -> InternodeTime | None:
        """The time at which this voter starts an election, or None if it must not start one now."""
        if not self._may_stand or not self._fetching.is_settled or self.epoch >= LAST_EPOCH - 1:
            return None
        return self._election_due_ms if self.role is QuorumRole.UNATTACHED else self._fetch_due_ms

    def start(self, now_ms: InternodeTime) -> list[Output]:
        """Start the machine. If this node is the only voter, it becomes leader at once."""
        outputs: list[Output] = []
        if self.role is QuorumRole.CANDIDATE:
            outputs = self._count(now_ms)
        elif self.is_voter and len(self._log.voters) == 1:
            outputs = self._stand(now_ms)
        return outputs or self._tell()

    def tick(self, now_ms: InternodeTime) -> list[Output]:
        """Do what is due: elections, timeouts and requests to other nodes."""
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
                    # This node was the leader of the epoch, so the epoch cannot have another leader to
                    # follow.
                    return self._then_tick(self._see(self.epoch + 1, now_ms), now_ms)
                return self._tell_of_end(now_ms)
            case QuorumRole.FAILED:
                return []
            case _ as never:
                assert_never(never)

    def _then_tick(self, outputs: list[Output], now_ms: InternodeTime) -> list[Output]:
        return outputs + self.tick(now_ms)

    def _follow(self, now_ms: InternodeTime) -> list[Output]:
        """Send a Fetch, or a request for a voter change if one is due."""
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
        return [self._fetching.build_request(self.epoch, self.leader_address, is_late=is_late, now_ms=now_ms)]

    def _ask_for_votes(self, now_ms: InternodeTime) -> list[Output]:
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

    def _lead(self, now_ms: InternodeTime) -> list[Output]:
        leading, membership = self._lead_of_epoch
        if leading.has_left:
            return self._then_tick(self._resign(now_ms, ErrorCode.NOT_CONTROLLER), now_ms)
        if leading.is_alone(now_ms):
            lost = (
                "Resigning as quorum leader: no Fetch from a majority of the voters for 1.5 times "
                "controller.quorum.fetch.timeout.ms. Check the other controllers and the network"
            )
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

    def _tell_of_end(self, now_ms: InternodeTime) -> list[Output]:
        outputs: list[Output] = []
        for voter in self._unaware:
            address, voter_id = voter.address(self._terms.listener), voter.key.replica_id
            if address is not None and now_ms >= self._calls.ready_ms(voter_id):
                request = end_request(self._terms, self.epoch, self._successors)
                outputs.append(self._calls.send(voter_id, address, request, now_ms))
        return outputs

    # --- the log

    def synced(self, offset: int, now_ms: InternodeTime) -> list[Output]:
        """Record that the current log is durable up to this offset."""
        self._fetching.synced(offset)
        if self.role is QuorumRole.LEADER:
            return self._commit()
        self._excuse_leader(now_ms)
        return []

    def controls_appended(self, offset: int, now_ms: InternodeTime) -> list[Output]:
        """Record the offset at which the oldest pending `AppendControls` was executed."""
        leading, membership = self._lead_of_epoch
        if leading.epoch_offset is None:
            leading.epoch_offset = offset
        membership.appended(offset)
        return self._commit()

    def refused(self, now_ms: InternodeTime) -> None:
        """Back off after records of the leader that could not be appended."""
        self._calls.rest(FETCH, now_ms)

    def installed(self, now_ms: InternodeTime) -> None:
        """Fetch again after a snapshot was installed or was found to be invalid."""
        self._fetching.installed()
        self._excuse_leader(now_ms)

    def _excuse_leader(self, now_ms: InternodeTime) -> None:
        """Restart the fetch timeout, because this node's own disk caused the delay."""
        if self._fetching.is_settled and self._fetch_due_ms is not None and not self._leader_has_ended:
            self._fetch_due_ms = now_ms + self._terms.fetch_timeout_ms

    def raise_kraft_version(self, version: int, *, validate_only: bool) -> list[Output]:
        """Make a static quorum dynamic. Raises ApiError if this is not possible, or without leadership."""
        if self._membership is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self._membership.raise_kraft_version(version, validate_only=validate_only)
