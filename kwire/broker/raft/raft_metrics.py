"""Rates and durations of the metadata quorum on one node, as in Kafka's KafkaRaftMetrics.

All times are monotonic times in ms.
"""

from __future__ import annotations

from typing import Final, Protocol

from kwire.broker.raft.quorum_state import NOBODY
from kwire.broker.raft.roles import QuorumRole
from kwire.host.host import InternodeTime
from kwire.host.windows import Windows

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
        self._election_began_ms: InternodeTime | None = None
        self._leader: tuple[int, int] | None = None

    def observe(self, member: Member, node_id: int, now_ms: InternodeTime) -> None:
        """Record the state of this node (`node_id`) after an event."""
        role = member.role
        if role in _IN_ELECTION and self._election_began_ms is None:
            self._election_began_ms = now_ms
        voted_id = node_id if role in (QuorumRole.LEADER, QuorumRole.CANDIDATE) else member.voted_id
        self.voted_id, self.state = voted_id, _state_of(member)
        if role in (QuorumRole.LEADER, QuorumRole.FOLLOWER):
            if self._election_began_ms is not None:
                self.election_latency_ms.record(now_ms - self._election_began_ms, int(now_ms))
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
