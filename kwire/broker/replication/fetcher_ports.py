"""Protocols between the fetchers of a broker and its other parts."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.config import BrokerConfig
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replication_quota import ReplicationQuota
from kwire.host.host import Host, PeerAddress


class FetcherManager(Protocol):
    """The component that fetches from leaders for the followers of this broker."""

    def add_fetcher(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """Fetch for a partition from this leader in this epoch; -1 if the leader is unknown or there is none.

        Called for every change of the partition in the metadata, also if its leader stays the same.
        """

    def remove_fetcher(self, partition: Partition) -> None:
        """Stop fetching: the partition became leader, is offline or was removed.

        Also called during a controlled shutdown for partitions that have left the ISR (KIP-841).
        """


class StagedAppends(Protocol):
    """A component with staged appends, which it writes when the turn ends."""

    def commit(self) -> None:
        """Write the staged appends and acknowledge them. Never raises."""


class FetcherPorts(Protocol):
    """The parts of the broker that a fetcher uses."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def host(self) -> Host: ...
    @property
    def broker_epoch(self) -> int: ...
    @property
    def fetch_version(self) -> int:
        """The highest version of Fetch that the cluster's metadata.version allows."""

    @property
    def list_offsets_version(self) -> int: ...
    @property
    def quota(self) -> ReplicationQuota: ...
    def address_of(self, broker_id: int) -> PeerAddress | None:
        """Return the address of a broker, or None if the broker is not registered."""

    def stage(self, appended: StagedAppends) -> None:
        """Have `appended.commit` called when the turn ends."""
