"""The quorum as the other parts of a node see it, whatever this node is to it: its leader, or an observer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.broker.metadata.image import NO_LEADER as NO_LEADER  # handed on: it is also that of partitions
from kwire.host.host import PeerAddress


class QuorumView(Protocol):
    """Who leads the metadata log, as far as this node knows."""

    @property
    def leader_id(self) -> int:
        """The active controller; NO_LEADER while nobody is known."""

    @property
    def epoch(self) -> int:
        """The latest epoch that this node has heard of."""

    @property
    def leads(self) -> bool:
        """Whether this node is the leader."""

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol: 1 where its voters stand in the log (KIP-853)."""

    def leader_address(self) -> PeerAddress | None:
        """Where the active controller is reached; None while that is not known, or it is this node."""

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the leader, its epoch or its address has changed."""
