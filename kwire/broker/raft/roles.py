"""The roles of a node in the quorum, and the transitions between them. KIP-595, KIP-996."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class QuorumRole(Enum):
    """The role of a node in an epoch. Observers are unattached or followers."""

    UNATTACHED = auto()
    """The node does not know the leader's address, and sends Fetch to any server. It may have voted."""
    FOLLOWER = auto()
    """The node fetches the log of a known leader."""
    PROSPECTIVE = auto()
    """The node requests pre-votes in the current epoch, before it starts a new epoch."""
    CANDIDATE = auto()
    """The node has started a new epoch, voted for itself, and requests votes."""
    LEADER = auto()
    RESIGNED = auto()
    """The node was the leader of this epoch. It appends nothing, and waits for the next leader."""
    FAILED = auto()
    """The node's state contradicts the quorum, so the node must stop."""


class Event(Enum):
    """The cause of a transition."""

    EPOCH_SEEN = auto()
    """Another node has a newer epoch, and the leader's address is not known."""
    LEADER_FOUND = auto()
    STANDS = auto()
    """The election timeout or fetch timeout has passed."""
    LOST = auto()
    """The node has lost the pre-vote, and no leader is known."""
    WOULD_WIN = auto()
    """A majority would vote for this node."""
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
    # The only voter need not wait for other nodes after a restart.
    QuorumRole.RESIGNED: {**_ELECTIONS, Event.STANDS: QuorumRole.PROSPECTIVE},
    QuorumRole.FAILED: {},
}
"""The legal transitions. Any other transition is a bug of kwire."""


class Stage(Enum):
    """The fetch state of a follower."""

    FETCHING = auto()
    LOADING = auto()
    """The node fetches a snapshot from the leader."""
    INSTALLING = auto()
    """The snapshot is complete and is being synced. The node fetches nothing meanwhile."""
