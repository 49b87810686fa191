"""Protocols between the replica fetchers of a broker and its other components."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.config import BrokerConfig
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replication_quota import ReplicationQuota
from kwire.host.host import Host, PeerAddress


class FetcherManager(Protocol):
    """The component that fetches from the leaders of the partitions that this broker follows."""

    def add_fetcher(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """Fetch a partition from this leader in this leader epoch.

        `leader_id` is -1 if the leader is unknown or the partition has none. This method is called for every
        metadata change of the partition, even if its leader stays the same.
        """

    def remove_fetcher(self, partition: Partition) -> None:
        """Stop fetching: this replica became leader, went offline or was removed.

        Also called during a controlled shutdown for each partition whose ISR no longer has this broker
        (KIP-841).
        """


class StagedAppends(Protocol):
    """A component that stages appends and writes them at the end of the turn of the event loop."""

    def commit(self) -> None:
        """Write the staged appends and acknowledge them. Never raises."""


class FetcherPorts(Protocol):
    """The components of the broker that a replica fetcher uses."""

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
    def is_being_added(self, partition: Partition) -> bool:
        """Return whether a reassignment adds this broker's replica of the partition."""

    def address_of(self, broker_id: int) -> PeerAddress | None:
        """Return the address of a broker's inter-broker listener, or None if it is unknown."""

    def missing_address(self, broker_id: int) -> str:
        """Return why `address_of` returns None for a broker."""

    def stage(self, appended: StagedAppends) -> None:
        """Call `appended.commit` at the end of this turn of the event loop."""
