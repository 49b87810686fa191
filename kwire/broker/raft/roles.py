"""What a node can be to the quorum, and what makes it something else. KIP-595, KIP-996."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Role(Enum):
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
    Event.EPOCH_SEEN: Role.UNATTACHED,
    Event.LEADER_FOUND: Role.FOLLOWER,
    Event.CONTRADICTED: Role.FAILED,
}

MOVES: Final[dict[Role, dict[Event, Role]]] = {
    Role.UNATTACHED: {**_ELECTIONS, Event.STANDS: Role.PROSPECTIVE},
    Role.FOLLOWER: {**_ELECTIONS, Event.STANDS: Role.PROSPECTIVE},
    Role.PROSPECTIVE: {**_ELECTIONS, Event.WOULD_WIN: Role.CANDIDATE, Event.LOST: Role.UNATTACHED},
    Role.CANDIDATE: {**_ELECTIONS, Event.STANDS: Role.PROSPECTIVE, Event.ELECTED: Role.LEADER},
    Role.LEADER: {**_ELECTIONS, Event.RESIGNS: Role.RESIGNED},
    # A sole voter that has led before need not wait for others.
    Role.RESIGNED: {**_ELECTIONS, Event.STANDS: Role.PROSPECTIVE},
    Role.FAILED: {},
}
"""The moves that there are: anything else is a fault of ours."""


class Stage(Enum):
    """How far a follower has come with its leader's log."""

    FETCHING = auto()
    LOADING = auto()
    """A snapshot of the leader's is fetched."""
    INSTALLING = auto()
    """It is complete, and becomes durable; nothing is asked meanwhile."""
