"""The leader of the quorum, for the other parts of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.broker.metadata.image import NO_LEADER as NO_LEADER  # exported: partitions have the same value
from kwire.host.host import PeerAddress


class QuorumView(Protocol):
    """The leader of the metadata log, as far as this node knows."""

    @property
    def leader_id(self) -> int:
        """The active controller; NO_LEADER if it is unknown."""

    @property
    def epoch(self) -> int:
        """The latest leader epoch that this node knows."""

    @property
    def leads(self) -> bool:
        """Whether this node is the leader."""

    @property
    def kraft_version(self) -> int:
        """The kraft.version: 1 if the log has the voters (KIP-853)."""

    def leader_address(self) -> PeerAddress | None:
        """Return the address of the active controller; None if it is unknown, or this node."""

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the leader, its epoch or its address."""
