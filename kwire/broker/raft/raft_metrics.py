"""Rates and durations of the metadata quorum on one node, as in Kafka's KafkaRaftMetrics.

Kafka's metrics cover two windows of 30 seconds, of which the older one is complete. All times are monotonic
times in ms.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol

from kwire.broker.raft.quorum_state import NOBODY
from kwire.broker.raft.roles import QuorumRole
from kwire.wire.named_tuple import NamedTuple

WINDOW_MS: Final = 30_000
WINDOWS: Final = 2
_IN_ELECTION: Final = (QuorumRole.PROSPECTIVE, QuorumRole.CANDIDATE)


class Member(Protocol):
    """The state of this node in the quorum."""

    @property
    def role(self) -> QuorumRole: ...
    @property
    def epoch(self) -> int: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def voted_id(self) -> int: ...
    @property
    def is_voter(self) -> bool: ...


class _Window(NamedTuple):
    """The values of one window."""

    start_ms: int
    values: int
    total: float
    largest: float


class Windows:
    """Values of the last 30 to 60 seconds: their rate per second, average and maximum."""

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        last = self._windows[-1] if self._windows else None
        if last is None or now_ms - last.start_ms >= WINDOW_MS:
            self._windows.append(_Window(now_ms, 1, value, value))
        else:
            largest = max(last.largest, value)
            self._windows[-1] = _Window(last.start_ms, last.values + 1, last.total + value, largest)

    def per_second(self, now_ms: int) -> float:
        """Return the sum of the values per second."""
        windows = self._recent(now_ms)
        if not windows:
            return 0.0
        elapsed_ms = now_ms - windows[0].start_ms
        # As in Kafka, a first window that is not complete counts as if one without values came before it.
        elapsed_ms += WINDOW_MS if elapsed_ms < WINDOW_MS else 0
        return sum(window.total for window in windows) * 1000 / elapsed_ms

    def average(self, now_ms: int) -> float:
        """Return the average of the values; NaN without values."""
        windows = self._recent(now_ms)
        count = sum(window.values for window in windows)
        return sum(window.total for window in windows) / count if count else math.nan

    def maximum(self, now_ms: int) -> float:
        """Return the largest value; NaN without values."""
        return max((window.largest for window in self._recent(now_ms)), default=math.nan)

    def _recent(self, now_ms: int) -> list[_Window]:
        return [window for window in self._windows if now_ms - window.start_ms < WINDOWS * WINDOW_MS]


class KafkaRaftMetrics:
    """The rates and durations of one node's quorum, since the node started."""

    def __init__(self) -> None:
        self.appended_records = Windows()
        """Records that this node appended as the leader."""
        self.fetched_records = Windows()
        """Records that this node fetched from the leader."""
        self.commit_latency_ms = Windows()
        """The time until a batch of this leader was committed, divided by the number of its records."""
        self.election_latency_ms = Windows()
        """The time from the start of an election of this node until a leader was known."""
        self.requests = self.responses = 0
        """Requests to other nodes of the quorum, and the responses to them."""
        self.new_leaders = 0
        """The number of times that this node learned of a new leader or of a new epoch of the same leader."""
        self.state = "unattached"
        """The role of this node, by its name in Kafka's documentation."""
        self.voted_id = NOBODY
        """The node for which this node has voted in this epoch; -1 for none."""
        self._election_began_ms: int | None = None
        self._leader: tuple[int, int] | None = None

    def observe(self, member: Member, node_id: int, now_ms: int) -> None:
        """Record the state of this node (`node_id`) after an event."""
        role = member.role
        if role in _IN_ELECTION and self._election_began_ms is None:
            self._election_began_ms = now_ms
        voted_id = node_id if role in (QuorumRole.LEADER, QuorumRole.CANDIDATE) else member.voted_id
        self.voted_id, self.state = voted_id, _state_of(member)
        if role in (QuorumRole.LEADER, QuorumRole.FOLLOWER):
            if self._election_began_ms is not None:
                self.election_latency_ms.record(now_ms - self._election_began_ms, now_ms)
                self._election_began_ms = None
            if self._leader != (member.leader_id, member.epoch):
                self._leader = member.leader_id, member.epoch
                self.new_leaders += 1


def _state_of(member: Member) -> str:
    match member.role:
        case QuorumRole.FOLLOWER:
            return "follower" if member.is_voter else "observer"
        case QuorumRole.UNATTACHED if member.voted_id != NOBODY:
            return "voted"
        case role:
            return role.name.lower()
