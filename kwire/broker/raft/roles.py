"""The roles of a node in the quorum, and the transitions between them. KIP-595, KIP-996."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class QuorumRole(Enum):
    """The role of a node in an epoch. Observers are unattached or followers."""

    UNATTACHED = auto()
    """It does not know the leader's address, and asks any server. It may have voted."""
    FOLLOWER = auto()
    """It fetches the log of a known leader."""
    PROSPECTIVE = auto()
    """It requests pre-votes, in an epoch that it has not started."""
    CANDIDATE = auto()
    """It has started an epoch, voted for itself, and requests votes."""
    LEADER = auto()
    RESIGNED = auto()
    """It was the leader of the epoch: it appends nothing, and has another voter elected."""
    FAILED = auto()
    """Its state contradicts the quorum: the node must stop."""


class Event(Enum):
    """The cause of a transition."""

    EPOCH_SEEN = auto()
    """There is a newer epoch, without a known leader address."""
    LEADER_FOUND = auto()
    STANDS = auto()
    """The election timeout or fetch timeout has passed."""
    LOST = auto()
    """The pre-votes are lost, and no leader is known."""
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
    # A sole voter need not wait for other nodes after a restart.
    QuorumRole.RESIGNED: {**_ELECTIONS, Event.STANDS: QuorumRole.PROSPECTIVE},
    QuorumRole.FAILED: {},
}
"""The legal transitions. Any other one is a bug."""


class Stage(Enum):
    """The fetch state of a follower."""

    FETCHING = auto()
    LOADING = auto()
    """It fetches a snapshot of the leader."""
    INSTALLING = auto()
    """The snapshot is complete and is being synced. Nothing is fetched meanwhile."""
