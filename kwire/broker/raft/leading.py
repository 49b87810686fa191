"""What a leader knows of those who follow it: how far they are, what is committed, who still hears it.

Everything before the high watermark is durable on a majority of the voters that the log says, and a record of
the leader's own epoch is among it: only then it cannot be lost any more (KIP-595; section 5.4.2 of the Raft
paper). It never goes back, whoever becomes a voter.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.raft.outputs import AppendControls
from kwire.broker.raft.snapshots import KRAFT_VERSION_TYPE, VOTERS_TYPE
from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.voters import OF_CONFIGURATION, ReplicaKey, Voter, VoterSet
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.records import raft as stored
from kwire.wire.schema import Message

LEADER_CHANGE_TYPE: Final = 2
CHECK_QUORUM_FACTOR: Final = 1.5
"""How many fetch timeouts a leader may go without hearing a majority: a little more than the voters wait."""
FORGOTTEN_AFTER_MS: Final = 300_000
"""Who does not vote, and was not heard for so long, is not told of any more."""
CAUGHT_UP_WITHIN_MS: Final = 3_600_000
"""How lately who is to become a voter must have fetched."""
MOST: Final = 10_000
"""How many followers are remembered: an id is only what somebody says."""
UNKNOWN: Final = -1


class ReplicaProgress(NamedTuple):
    """How far a replica has come, as the leader knows it."""

    key: ReplicaKey
    end_offset: int = UNKNOWN
    """-1 if it has not fetched from this leader."""
    since_fetch_ms: int | None = None
    """How long ago it last fetched; None if it never has."""
    since_caught_up_ms: int | None = None
    """How long ago it last had everything; None if it never had."""


class Description(NamedTuple):
    """How the quorum is doing, as its leader knows it."""

    leader_id: int
    epoch: int
    high_watermark: int
    """-1 before it is known in this epoch."""
    voter_set: VoterSet
    """With their endpoints."""
    voters: list[ReplicaProgress]
    observers: list[ReplicaProgress]


class _Progress(NamedTuple):
    """How far a follower has come."""

    end_offset: int
    leader_end_offset: int
    """Where the leader's log ended when it last fetched."""
    fetched_ms: int
    caught_up_ms: int | None


class Leading:
    """One epoch of a leader."""

    def __init__(self, terms: Terms, log: QuorumLog, me: Voter, epoch: int, now_ms: int) -> None:
        self.epoch = epoch
        self.high_watermark = UNKNOWN
        """Where what is known to be committed ends; known once a record of this epoch is."""
        self.epoch_offset: int | None = None
        """Where the first record of this epoch stands, once it does."""
        self._terms = terms
        self._log = log
        self._me = me
        self._begins_ms = now_ms
        self._heard: set[int] = set()
        self._check_quorum_ms = round(terms.fetch_timeout_ms * CHECK_QUORUM_FACTOR)
        self._heard_by_ms = now_ms + self._check_quorum_ms
        self._followers: dict[ReplicaKey, _Progress] = {}
        self._latest: dict[int, ReplicaKey] = {}
        """By its id, the directory with which a node has fetched last."""

    def first_controls(self, granted: list[int]) -> AppendControls:
        """What begins the epoch. `granted` are the ids of those who have voted for this node."""
        log = self._log

        def listed(ids: list[int]) -> list[stored.Voter]:
            return [stored.Voter(voter_id=voter_id, voter_directory_id=ZERO_UUID) for voter_id in ids]

        # In version 0, which Kafka writes whoever votes, and which is all that its tools read.
        change = stored.LeaderChangeMessage(
            version=0,
            leader_id=self._terms.node_id,
            voters=listed(list(log.voters.ids)),
            granting_voters=listed(granted),
        )
        controls: list[tuple[int, Message]] = [(LEADER_CHANGE_TYPE, change)]
        # What a fresh directory says is in nobody's log yet; and where this node is now, all are to know.
        mine = log.voters.find(self._me.key)
        is_news = mine is not None and (log.voters_offset == OF_CONFIGURATION or mine != self._me)
        if log.kraft_version > 0 and is_news:
            version = stored.KRaftVersionRecord(version=0, k_raft_version=log.kraft_version)
            controls.append((KRAFT_VERSION_TYPE, version))
            controls.append((VOTERS_TYPE, log.voters.replaced(self._me).record()))
        return AppendControls(self.epoch, controls)

    # --- what is committed

    def commit(self, synced_offset: int) -> bool:
        """Look how far a majority has come, this node to `synced_offset`; whether that is further."""
        offsets = sorted(
            (
                synced_offset if self._is_me(voter) else self._end_of(voter)
                for voter in self._log.voters
            ),
            reverse=True,
        )  # fmt: skip
        offset = min(offsets[len(offsets) // 2], self._log.end_offset)
        if self.epoch_offset is None or offset <= max(self.epoch_offset, self.high_watermark):
            return False
        self.high_watermark = offset
        return True

    def _is_me(self, voter: Voter) -> bool:
        return voter.is_named(self._me.key)

    def _progress_of(self, voter: Voter) -> tuple[ReplicaKey, _Progress | None]:
        key = voter.key
        if key.directory_id == ZERO_UUID:
            key = self._latest.get(key.replica_id, key)
        return key, self._followers.get(key)

    def _end_of(self, voter: Voter) -> int:
        progress = self._progress_of(voter)[1]
        return UNKNOWN if progress is None else progress.end_offset

    # --- who follows

    def fetched_by(self, key: ReplicaKey, offset: int, now_ms: int) -> None:
        """Somebody has everything before `offset`."""
        known = self._followers.pop(key, None)
        end_offset = self._log.end_offset
        caught_up_ms = None if known is None else known.caught_up_ms
        if offset >= end_offset:
            caught_up_ms = now_ms
        elif known is not None and 0 < known.leader_end_offset <= offset:
            # It has come to where the log ended when it fetched before.
            caught_up_ms = max(caught_up_ms or known.fetched_ms, known.fetched_ms)
        # Who has fetched last stands last.
        self._followers[key] = _Progress(offset, end_offset, now_ms, caught_up_ms)
        self._latest[key.replica_id] = key
        if len(self._followers) > MOST:
            self._forget(next(one for one in self._followers if self._log.voters.find(one) is None))
        self.heard(key, now_ms)

    def _forget(self, key: ReplicaKey) -> None:
        del self._followers[key]
        if self._latest.get(key.replica_id) == key:
            del self._latest[key.replica_id]

    def heard(self, key: ReplicaKey, now_ms: int) -> None:
        """Somebody follows this leader. Once a majority does, all of it has to be heard again in time."""
        if self._log.voters.find(key) is not None:
            self._heard.add(key.replica_id)
        if len(self._heard.intersection(self._log.voters.ids)) >= self._needed:
            self._heard.clear()
            self._heard_by_ms = now_ms + self._check_quorum_ms

    @property
    def _needed(self) -> int:
        """How many others make a majority."""
        voters = self._log.voters
        return voters.majority - (voters.find(self._me.key) is not None)

    def is_alone(self, now_ms: int) -> bool:
        """Whether no majority was heard for so long that the others may have another leader."""
        if self._needed <= 0:
            self._heard_by_ms = now_ms + self._check_quorum_ms
        return now_ms >= self._heard_by_ms

    @property
    def has_left(self) -> bool:
        """Whether it is committed that this node votes no more: until then it leads on."""
        log = self._log
        return log.voters.find(self._me.key) is None and self.high_watermark > log.voters_offset

    @property
    def due_ms(self) -> int | None:
        """When there is something to do: who has not fetched is told again, or the majority is lost.

        None where nobody else votes.
        """
        if all(map(self._is_me, self._log.voters)):
            return None
        return min(self._heard_by_ms, self._begins_ms) if self._needed > 0 else self._begins_ms

    def to_be_told(self, now_ms: int) -> list[Voter]:
        """The voters that have not fetched for a while, and perhaps do not know who leads."""
        if now_ms < self._begins_ms:
            return []
        period_ms = self._terms.fetch_timeout_ms // 2
        self._begins_ms = now_ms + max(1, period_ms)
        quiet = []
        for voter in self._log.voters:
            progress = self._progress_of(voter)[1]
            if not self._is_me(voter) and (progress is None or now_ms - progress.fetched_ms >= period_ms):
                quiet.append(voter)
        return quiet

    def successors(self) -> list[ReplicaKey]:
        """The other voters, whose log goes furthest first."""
        others = [voter for voter in self._log.voters if not self._is_me(voter)]
        return [voter.key for voter in sorted(others, key=lambda voter: (-self._end_of(voter), voter.key))]

    def has_caught_up(self, key: ReplicaKey, now_ms: int) -> bool:
        """Whether somebody has had everything, and was heard lately: so that it can become a voter."""
        progress = self._followers.get(key)
        return (
            progress is not None
            and progress.caught_up_ms is not None
            and now_ms - progress.fetched_ms < CAUGHT_UP_WITHIN_MS
        )

    # --- for who asks

    def describe(self, now_ms: int) -> Description:
        """How everybody is doing."""
        log = self._log

        def told(key: ReplicaKey, progress: _Progress | None) -> ReplicaProgress:
            if progress is None:
                return ReplicaProgress(key)
            caught_up_ms = progress.caught_up_ms
            return ReplicaProgress(
                key,
                progress.end_offset,
                now_ms - progress.fetched_ms,
                None if caught_up_ms is None else now_ms - caught_up_ms,
            )

        mine = ReplicaProgress(self._me.key, log.end_offset, 0, 0)
        voters, voting = [], {self._me.key}
        for voter in log.voters:
            key, progress = self._progress_of(voter)
            is_me = self._is_me(voter)
            voting.add(key)
            voters.append((mine if is_me else told(key, progress))._replace(key=voter.key))
        for key, progress in list(self._followers.items()):
            if now_ms - progress.fetched_ms >= FORGOTTEN_AFTER_MS and key not in voting:
                self._forget(key)
        observers = [told(key, one) for key, one in self._followers.items() if key not in voting]
        if log.voters.find(self._me.key) is None:
            observers.append(mine)
        return Description(
            self._terms.node_id,
            self.epoch,
            self.high_watermark,
            log.voters,
            voters,
            sorted(observers, key=lambda one: one.key),
        )
