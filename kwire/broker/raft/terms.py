"""On what terms a node takes part in the quorum of the metadata log, and what it must know of that log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kwire.broker.raft.positions import Positions
from kwire.broker.raft.voters import ReplicaKey, VoterSet
from kwire.host.host import PeerAddress
from kwire.wire.named_tuple import NamedTuple
from kwire.wire.primitives import Uuid
from kwire.wire.records.raft import Endpoint


class Terms(NamedTuple):
    """Who takes part, and in what time; the times are Kafka's controller.quorum.*."""

    node_id: int
    directory_id: Uuid
    cluster_id: str
    servers: Sequence[PeerAddress]
    """Whom to ask who leads: controller.quorum.bootstrap.servers, or else the voters of the configuration."""
    may_vote: bool
    """Whether it can be a voter: process.roles has controller. What it appends is synced then."""
    listener: str
    """The first of controller.listener.names, on which voters are reached."""
    endpoints: Sequence[Endpoint]
    """Where its own controller listeners are reached."""
    auto_join: bool
    """Whether it makes itself a voter (controller.quorum.auto.join.enable)."""
    election_timeout_ms: int
    election_backoff_max_ms: int
    fetch_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    fetch_max_bytes: int
    snapshot_max_bytes: int

    @property
    def key(self) -> ReplicaKey:
        """What the node is to others."""
        return ReplicaKey(self.node_id, self.directory_id)


class QuorumLog(Positions, Protocol):
    """What the machine reads of the log, which is always up to date."""

    @property
    def high_watermark(self) -> int:
        """Where what is known to be committed ends."""

    @property
    def awaits_sync(self) -> bool:
        """Whether it was cut, or begun anew behind a snapshot, and may not be appended to before a sync."""

    @property
    def voters(self) -> VoterSet:
        """Who votes by the last record that says it, be it committed or not, or else by the configuration.

        Nobody for an observer that knows of none yet.
        """

    @property
    def voters_offset(self) -> int:
        """Where that record stands; the last offset of a snapshot that says it.

        `voters.OF_CONFIGURATION` for the configuration, and for the snapshot of a fresh directory (0-0).
        """

    @property
    def former_voters(self) -> VoterSet:
        """Who voted before the latest voters did: `VoterHistory.former_voters`."""

    @property
    def kraft_version(self) -> int:
        """The version of the quorum's protocol, likewise: 0 or 1."""
