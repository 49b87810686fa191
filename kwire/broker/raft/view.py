"""The interface through which other parts of a node learn the leader of the quorum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kwire.broker.metadata.image import NO_LEADER as NO_LEADER  # exported: partitions have the same value
from kwire.host.host import PeerAddress
from kwire.wire.schema import Message


class Requester(Protocol):
    """The sender of a request to the quorum, which waits for the response."""

    @property
    def api_version(self) -> int: ...

    def complete(self, response: Message) -> None: ...


class QuorumView(Protocol):
    """The leader of the metadata log, as far as this node knows."""

    @property
    def leader_id(self) -> int:
        """The id of the active controller; NO_LEADER if it is unknown."""

    @property
    def epoch(self) -> int:
        """The latest leader epoch that this node knows."""

    @property
    def leads(self) -> bool:
        """Whether this node is the leader."""

    @property
    def kraft_version(self) -> int:
        """The kraft.version: 1 if the log contains the voters (KIP-853), and 0 otherwise."""

    def leader_address(self) -> PeerAddress | None:
        """Return the active controller's address; None if it is unknown or is this node."""

    def subscribe_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the leader, its epoch or its address."""
