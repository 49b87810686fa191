"""What a node can be to the quorum, and what makes it something else. KIP-595, KIP-996."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class QuorumRole(Enum):
    """What a node is in an epoch. An observer, which does not vote, is unattached or a follower."""

    UNATTACHED = auto()
    """It does not know where the leader is, and asks any server; perhaps it has voted."""
    FOLLOWER = auto()
    """The leader is known, and its log is fetched."""
    PROSPECTIVE = auto()
    """It asks the others whether they would vote for it, in an epoch that it has not begun."""
    CANDIDATE = auto()
    """It has begun an epoch, has voted for itself, and asks for votes."""
    LEADER = auto()
    RESIGNED = auto()
    """It has led the epoch, and leads no more: it appends nothing, and has others stand."""
    FAILED = auto()
    """What it knows contradicts the quorum: the node has to end."""


class Event(Enum):
    """What makes it something else."""

    EPOCH_SEEN = auto()
    """There is a newer epoch, and it is not known where its leader is."""
    LEADER_FOUND = auto()
    STANDS = auto()
    """It has not heard of a leader for too long, or was not elected in time."""
    LOST = auto()
    """Too few would vote for it, and it knows of no leader that it could follow."""
    WOULD_WIN = auto()
    """A majority would vote for it."""
    ELECTED = auto()
    RESIGNS = auto()
    CONTRADICTED = auto()


_ELECTIONS: Final = {
    Event.EPOCH_SEEN: QuorumRole.UNATTACHED,
    Event.LEADER_FOUND: QuorumRole.FOLLOWER,
    Event.CONTRADICTED: QuorumRole.FAILED,
}

MOVES: Final[dict[QuorumRole, dict[Event, QuorumRole]]] = {
    QuorumRole.UNATTACHED: {**_ELECTIONS, Event.STANDS: QuorumRole.PROSPECTIVE},
    QuorumRole.FOLLOWER: {**_ELECTIONS, Event.STANDS: QuorumRole.PROSPECTIVE},
    QuorumRole.PROSPECTIVE: {
        **_ELECTIONS,
        Event.WOULD_WIN: QuorumRole.CANDIDATE,
        Event.LOST: QuorumRole.UNATTACHED,
    },
    QuorumRole.CANDIDATE: {
        **_ELECTIONS,
        Event.STANDS: QuorumRole.PROSPECTIVE,
        Event.ELECTED: QuorumRole.LEADER,
    },
    QuorumRole.LEADER: {**_ELECTIONS, Event.RESIGNS: QuorumRole.RESIGNED},
    # A sole voter that has led before need not wait for others.
    QuorumRole.RESIGNED: {**_ELECTIONS, Event.STANDS: QuorumRole.PROSPECTIVE},
    QuorumRole.FAILED: {},
}
"""The moves that there are: anything else is a fault of ours."""


class Stage(Enum):
    """How far a follower has come with its leader's log."""

    FETCHING = auto()
    LOADING = auto()
    """A snapshot of the leader's is fetched."""
    INSTALLING = auto()
    """It is complete, and becomes durable; nothing is asked meanwhile."""
