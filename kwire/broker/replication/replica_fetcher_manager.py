"""A broker's replica fetchers: up to `num.replica.fetchers` per leader share the leader's partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.replication.fetcher_ports import StagedAppends
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replication_quota import FOLLOWER_SIDE, ReplicationQuota
from kwire.host.host import Host, PeerAddress

if TYPE_CHECKING:
    from kwire.broker.replication.follower import Follower
    from kwire.broker.replication.replica_fetcher import ReplicaFetcher

FETCH_VERSIONS: Final = ((27, 18), (21, 17), (19, 16), (10, 15), (9, 14), (0, 13))
LIST_OFFSETS_VERSIONS: Final = ((29, 11), (25, 10), (21, 9), (9, 8), (0, 7))
"""Pairs of a metadata.version level and the API version that brokers use from that level on, as in Kafka."""


class ReplicaFetcherManager:
    """The fetchers of one broker. Implements `FetcherManager` and `FetcherPorts`."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        *,
        image: Callable[[], MetadataImage],
        broker_epoch: Callable[[], int],
        stage: Callable[[StagedAppends], None],
        on_truncated: Callable[[Partition], None] = lambda partition: None,
    ) -> None:
        """`image` returns the current metadata; `stage` makes the caller commit a fetcher at the turn's end.

        `on_truncated` is called after a follower's log was truncated or restarted.
        """
        self.config = config
        self.host = host
        self.stage = stage
        self.quota = ReplicationQuota(FOLLOWER_SIDE, config, host, image)
        self._image = image
        self._broker_epoch = broker_epoch
        self._on_truncated = on_truncated
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        """The fetchers by leader id and fetcher number."""
        self._followers: dict[Partition, tuple[ReplicaFetcher, Follower]] = {}
        self._size = config.num_replica_fetchers
        self._is_stopped = False

    # --- followers

    def add_fetcher(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """Fetch a partition from this leader in this leader epoch, and no longer from an earlier leader."""
        known = self._followers.get(partition)
        if known is not None:
            fetcher, follower = known
            if (fetcher.leader_id, follower.leader_epoch) == (leader_id, leader_epoch):
                return
            self.remove_fetcher(partition)
        if leader_id >= 0 and not self._is_stopped:
            self._add(partition, leader_id, leader_epoch)

    def _add(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        # A late import: a single broker has no followers, and so starts faster.
        from kwire.broker.replication.follower import Follower
        from kwire.broker.replication.replica_fetcher import ReplicaFetcher

        number = (sum(partition.topic.encode()) + partition.index) % self._size
        fetcher = self._fetchers.get((leader_id, number))
        if fetcher is None:
            fetcher = self._fetchers[leader_id, number] = ReplicaFetcher(leader_id, number, self)
        follower = Follower(partition, leader_epoch, self.host, self._on_truncated)
        self._followers[partition] = fetcher, follower
        fetcher.add(follower)

    def remove_fetcher(self, partition: Partition) -> None:
        """Stop fetching a partition, if it is fetched."""
        known = self._followers.pop(partition, None)
        if known is not None:
            fetcher, follower = known
            fetcher.remove(follower)

    def config_changed(self) -> None:
        """Redistribute the followers if num.replica.fetchers has changed."""
        if self.config.num_replica_fetchers == self._size:
            return
        self._size = self.config.num_replica_fetchers
        for partition, (fetcher, follower) in list(self._followers.items()):
            self.remove_fetcher(partition)
            self._add(partition, fetcher.leader_id, follower.leader_epoch)

    def stop(self) -> None:
        """Stop all fetchers because the broker is shutting down."""
        self._is_stopped = True
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def followers(self) -> list[tuple[ReplicaFetcher, Follower]]:
        """Return all followers, each with its fetcher."""
        return list(self._followers.values())

    # --- for the fetchers

    @property
    def broker_epoch(self) -> int:
        return self._broker_epoch()

    @property
    def fetch_version(self) -> int:
        return self._version(FETCH_VERSIONS)

    @property
    def list_offsets_version(self) -> int:
        return self._version(LIST_OFFSETS_VERSIONS)

    def _version(self, versions: tuple[tuple[int, int], ...]) -> int:
        level = self._image().metadata_version
        return next(version for since, version in versions if level >= since)

    def is_being_added(self, partition: Partition) -> bool:
        """Return whether a reassignment adds this broker's replica of the partition."""
        image = self._image().partition(partition.topic, partition.index)
        return image is not None and self.config.node_id in image.adding_replicas

    def address_of(self, broker_id: int) -> PeerAddress | None:
        """Return the address of a broker's inter-broker listener, or None if it is unknown."""
        broker = self._image().brokers.get(broker_id)
        endpoint = broker and broker.endpoints.get(self.config.inter_broker_listener_name)
        return None if endpoint is None else PeerAddress(endpoint.host, endpoint.port)

    def missing_address(self, broker_id: int) -> str:
        """Return why `address_of` returns None for a broker."""
        broker = self._image().brokers.get(broker_id)
        if broker is None:
            return f"broker {broker_id} is not registered"
        return (
            f"broker {broker_id} has no listener {self.config.inter_broker_listener_name}, but "
            f"{', '.join(sorted(broker.endpoints))}. Add this listener to all brokers before "
            f"inter.broker.listener.name selects it"
        )
