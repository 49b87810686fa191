"""Which fetcher follows which partition."""

from __future__ import annotations

from kwire.broker.replication.partition import Partition


class Fetchers:
    """The fetchers of one broker."""

    def follow(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """See `Following`."""

    def forget(self, partition: Partition) -> None:
        """See `Following`."""
