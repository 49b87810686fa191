"""What followers and the rest of their broker ask of each other."""

from __future__ import annotations

from typing import Protocol

from kwire.broker.config import BrokerConfig
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replication_quota import ReplicationQuota
from kwire.host.host import Host, PeerAddress


class FetcherManager(Protocol):
    """Whoever fetches from leaders what this broker's followers have not got yet."""

    def add_fetcher(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """The partition is led by this broker, in this epoch; -1 where nobody leads it, or it is not known.

        Told of every change of the partition that the metadata has, be it one of the leader or not.
        """

    def remove_fetcher(self, partition: Partition) -> None:
        """It is a follower no more: it leads, its log has failed, or it is none of this broker's.

        A broker that is about to end (KIP-841) forgets what it is not in sync with any more, too.
        """


class StagedAppends(Protocol):
    """Something that has staged appends, and writes them when the turn ends."""

    def commit(self) -> None:
        """Write them, and tell who waits for that. Never raises."""


class FetcherPorts(Protocol):
    """What a fetcher is told by the rest of its broker."""

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
        """Where other brokers reach this one; None while it is not registered."""

    def stage(self, appended: StagedAppends) -> None:
        """Have it committed when the turn ends."""
