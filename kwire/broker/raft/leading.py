"""The state that the leader keeps: fetch offsets of followers, high watermark, and check for a majority.

The high watermark is the offset up to which the log is durable on a majority of the latest voters. It rises
only once that part of the log has a record of the leader's own epoch (KIP-595; section 5.4.2 of the Raft
paper). It never decreases, even if the voters change.
"""

from __future__ import annotations

from typing import Final

from kwire.broker.raft.outputs import AppendControls
from kwire.broker.raft.snapshots import KRAFT_VERSION_TYPE, VOTERS_TYPE
from kwire.broker.raft.terms import QuorumLog, Terms
from kwire.broker.raft.voters import OF_CONFIGURATION, ReplicaKey, Voter, VoterSet
from kwire.host.host import InternodeTime
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.records import raft as stored
from kwire.wire.schema import Message

LEADER_CHANGE_TYPE: Final = 2
CHECK_QUORUM_FACTOR: Final = 1.5
"""A leader resigns if no majority has fetched for this many fetch timeouts. A follower waits for one."""
FORGOTTEN_AFTER_MS: Final = 300_000
"""Observers that have not fetched for this long, in ms, are dropped from DescribeQuorum."""
CAUGHT_UP_WITHIN_MS: Final = 3_600_000
"""The maximum age of an observer's last Fetch in ms, for the observer to become a voter."""
MOST: Final = 10_000
"""The maximum number of followers in memory, because any client can send a Fetch with any id."""
UNKNOWN: Final = -1


class ReplicaProgress(NamedTuple):
    """The log end of a replica and the times of its Fetches, as in DescribeQuorum."""

    key: ReplicaKey
    end_offset: int = UNKNOWN
    """The end of the replica's log; -1 if it has not fetched from this leader."""
    since_fetch_ms: int | None = None
    """The time since the replica's last Fetch in ms; None if it never fetched."""
    since_caught_up_ms: int | None = None
    """The time since the replica last had the complete log, in ms; None if it never had it."""


class Description(NamedTuple):
    """The leader, high watermark and replicas of the quorum, as in DescribeQuorum."""

    leader_id: int
    epoch: int
    high_watermark: int
    """The high watermark; -1 until it is known in this epoch."""
    voter_set: VoterSet
    """The voters with their endpoints."""
    voters: list[ReplicaProgress]
    observers: list[ReplicaProgress]


class _Progress(NamedTuple):
    """The fetch state of a follower."""

    end_offset: int
    leader_end_offset: int
    """The end offset of the leader's log at the time of the follower's last Fetch."""
    fetched_ms: InternodeTime
    caught_up_ms: InternodeTime | None


class Leading:
    """The state of this node as the leader of one epoch."""

    def __init__(self, terms: Terms, log: QuorumLog, me: Voter, epoch: int, now_ms: InternodeTime) -> None:
        self.epoch = epoch
        self.high_watermark = UNKNOWN
        """The high watermark; -1 until a record of this epoch is committed."""
        self.epoch_offset: int | None = None
        """The offset of the first record of this epoch; None until the record is appended."""
        self._terms = terms
        self._log = log
        self._me = me
        self._begins_ms = now_ms
        self._heard: set[int] = set()
        self._check_quorum_ms = round(terms.fetch_timeout_ms * CHECK_QUORUM_FACTOR)
        self._heard_by_ms = now_ms + self._check_quorum_ms
        self._followers: dict[ReplicaKey, _Progress] = {}
        self._latest: dict[int, ReplicaKey] = {}
        """The replica key (with directory id) in the latest Fetch of each node, by node id."""

    def first_controls(self, granted: list[int]) -> AppendControls:
        """Return the control records that begin the epoch.

        `granted` are the ids of the nodes that voted for this node.
        """
        log = self._log

        def listed(ids: list[int]) -> list[stored.Voter]:
            return [stored.Voter(voter_id=voter_id, voter_directory_id=ZERO_UUID) for voter_id in ids]

        # Kafka also writes version 0, and its tools read no other version.
        change = stored.LeaderChangeMessage(
            version=0,
            leader_id=self._terms.node_id,
            voters=listed(list(log.voters.ids)),
            granting_voters=listed(granted),
        )
        controls: list[tuple[int, Message]] = [(LEADER_CHANGE_TYPE, change)]
        # No log has the voters of a fresh directory yet, and a moved leader must publish its endpoints.
        mine = log.voters.find(self._me.key)
        is_news = mine is not None and (log.voters_offset == OF_CONFIGURATION or mine != self._me)
        if log.kraft_version > 0 and is_news:
            version = stored.KRaftVersionRecord(version=0, k_raft_version=log.kraft_version)
            controls.append((KRAFT_VERSION_TYPE, version))
            controls.append((VOTERS_TYPE, log.voters.replaced(self._me).record()))
        return AppendControls(self.epoch, controls)

    # --- high watermark

    def commit(self, synced_offset: int) -> bool:
        """Raise the high watermark if a majority has more records; return whether it was raised.

        `synced_offset` is the end of the durable part of this node's log.
        """
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

    # --- followers

    def fetched_by(self, key: ReplicaKey, offset: int, now_ms: InternodeTime) -> None:
        """Record that a replica has every record before `offset`."""
        known = self._followers.pop(key, None)
        end_offset = self._log.end_offset
        caught_up_ms = None if known is None else known.caught_up_ms
        if offset >= end_offset:
            caught_up_ms = now_ms
        elif known is not None and 0 < known.leader_end_offset <= offset:
            # The replica has reached the end offset that the leader's log had at the replica's previous
            # Fetch.
            caught_up_ms = max(caught_up_ms or known.fetched_ms, known.fetched_ms)
        # Insertion order: the latest Fetch is last.
        self._followers[key] = _Progress(offset, end_offset, now_ms, caught_up_ms)
        self._latest[key.replica_id] = key
        if len(self._followers) > MOST:
            self._forget(next(one for one in self._followers if self._log.voters.find(one) is None))
        self.heard(key, now_ms)

    def _forget(self, key: ReplicaKey) -> None:
        del self._followers[key]
        if self._latest.get(key.replica_id) == key:
            del self._latest[key.replica_id]

    def heard(self, key: ReplicaKey, now_ms: InternodeTime) -> None:
        """Record that a replica follows this leader. Once a majority does, the majority check restarts."""
        if self._log.voters.find(key) is not None:
            self._heard.add(key.replica_id)
        if len(self._heard.intersection(self._log.voters.ids)) >= self._needed:
            self._heard.clear()
            self._heard_by_ms = now_ms + self._check_quorum_ms

    @property
    def _needed(self) -> int:
        """The number of other voters that form a majority together with this node."""
        voters = self._log.voters
        return voters.majority - (voters.find(self._me.key) is not None)

    def is_alone(self, now_ms: InternodeTime) -> bool:
        """Return whether no majority has fetched for so long that another node may have become leader."""
        if self._needed <= 0:
            self._heard_by_ms = now_ms + self._check_quorum_ms
        return now_ms >= self._heard_by_ms

    @property
    def has_left(self) -> bool:
        """Whether the removal of this node from the voters is committed.

        Until then, the node stays leader.
        """
        log = self._log
        return log.voters.find(self._me.key) is None and self.high_watermark > log.voters_offset

    @property
    def due_ms(self) -> InternodeTime | None:
        """The time of the next BeginQuorumEpoch, or of the resignation without a majority.

        None if there is no other voter.
        """
        if all(map(self._is_me, self._log.voters)):
            return None
        return min(self._heard_by_ms, self._begins_ms) if self._needed > 0 else self._begins_ms

    def to_be_told(self, now_ms: InternodeTime) -> list[Voter]:
        """Return the voters that have not fetched for a while and so may not know this leader."""
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
        """Return the other voters, sorted by their log ends; the voter with the longest log is first."""
        others = [voter for voter in self._log.voters if not self._is_me(voter)]
        return [voter.key for voter in sorted(others, key=lambda voter: (-self._end_of(voter), voter.key))]

    def has_caught_up(self, key: ReplicaKey, now_ms: InternodeTime) -> bool:
        """Return whether an observer may become a voter: it has caught up and has fetched recently."""
        progress = self._followers.get(key)
        return (
            progress is not None
            and progress.caught_up_ms is not None
            and now_ms - progress.fetched_ms < CAUGHT_UP_WITHIN_MS
        )

    # --- DescribeQuorum

    def describe(self, now_ms: InternodeTime) -> Description:
        """Return the state of all voters and observers."""
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
