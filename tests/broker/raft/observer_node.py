"""An observer on a simulated network, with its log, image and committed batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kwire.broker.config import load
from kwire.broker.metadata.batches import MetadataBatch
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.publisher import MetadataPublisher
from kwire.broker.net.peer_links import PeerLinks
from kwire.broker.node.format import all_directories, format_directories
from kwire.broker.raft.decisions import Leadership
from kwire.broker.raft.endpoints import static_voters
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.quorum import Quorum
from kwire.broker.raft.snapshotter import Snapshotter
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.testing.disk import MemoryDisk
from kwire.testing.network import Network
from kwire.testing.virtual_host import VirtualHost
from kwire.testing.virtual_node import INDEX_BYTES
from kwire.wire.primitives import ZERO_UUID

DIRECTORY = "/data/__cluster_metadata-0"


class ObserverNode:
    """An observer that can be stopped, killed, wiped and restarted."""

    def __init__(self, network: Network, cluster_id: str, node_id: int = 7, **settings: str) -> None:
        self.network = network
        self.cluster_id = cluster_id
        self.name = f"node {node_id}"
        self.disk = MemoryDisk()
        self.settings = {
            "log.dirs": "/data",
            "node.id": str(node_id),
            "log.index.size.max.bytes": str(INDEX_BYTES),
            "process.roles": "broker",
            "listeners": "PLAINTEXT://seven:9092",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@one:9093",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.starts = 0
        self.make_peers: Callable[[VirtualHost], Any] | None = None
        """Replaces the peers on the network, if set."""
        self.leadership: Leadership | None = None
        """The leadership of a node that may become a voter, if set."""
        self.work_delays: random.Random | None = None
        """Randomizes the completion of worker tasks; without it they complete at once."""
        self.committed: dict[int, tuple[int, int]] = {}
        """Last offset and epoch of each committed batch by base offset, over all starts."""
        self.fatal: list[str] = []
        self.leaders: list[tuple[int, int]] = []

    def start(self, **settings: str) -> None:
        self.starts += 1
        config = load(
            None, {}, self.settings | {name.replace("_", "."): value for name, value in settings.items()}
        )
        self.host = VirtualHost(
            seed=self.starts, name=self.name, events=self.network.events, work_delays=self.work_delays
        )
        if self.make_peers is not None:
            self.host.peers = self.make_peers(self.host)
        else:
            dial = partial(self.network.dial, self.host)
            self.host.peers = PeerLinks(self.host, dial, client_id=self.name)
        now_ms = self.host.now_ms()
        format_directories(
            config,
            self.disk,
            random.Random(self.starts),
            now_ms,
            cluster_id=self.cluster_id,
            ignore_formatted=True,
        )
        self.logs = LogManager(
            self.disk,
            all_directories(config),
            logger=self.host.logger("kwire.storage"),
            rng=self.host.random("directories"),
        )
        self.logs.lock()
        self.logs.load_meta_properties()
        [directory] = self.logs.directories()
        self.log = MetadataLog(
            self.logs.open_metadata_log(metadata_log_config(config), now_ms),
            self.disk,
            self.host.logger("kwire.raft"),
            node_id=config.node_id,
            directory_id=directory.directory_id or ZERO_UUID,
            static_voters=static_voters(config),
        )
        self.publisher = MetadataPublisher(self.host)
        self.publisher.subscribe(self._check_offsets_increase)
        self.observer = Quorum(
            config,
            self.host,
            on_committed=lambda batches: self.publisher.handle_commit(self._check_committed(batches)),
            on_restarted=self.publisher.handle_snapshot,
            on_failed=self.fatal.append,
        )
        self.observer.subscribe_leader(
            lambda: self.leaders.append((self.observer.leader_id, self.observer.epoch))
        )
        self.observer.start(self.log, self.logs.cluster_id, self.leadership)
        self.snapshotter = Snapshotter(config, self.host, self.log)
        self.snapshotter.start(self.publisher.image)
        self.publisher.subscribe(self.snapshotter.image_changed)

    def _check_committed(self, batches: Iterable[MetadataBatch]) -> Iterable[MetadataBatch]:
        for batch in batches:
            if batch.size_bytes and batch.base_offset >= self.log.start_offset:  # not from a snapshot
                assert batch.last_offset < self.log.high_watermark
                what = (batch.last_offset, batch.epoch)
                assert self.committed.setdefault(batch.base_offset, what) == what
            yield batch

    def _check_offsets_increase(self, image: MetadataImage, delta: MetadataDelta) -> None:
        assert image.offset >= delta.image.offset
        assert image.epoch >= delta.image.epoch

    @property
    def image(self) -> MetadataImage:
        return self.publisher.image

    def stop(self) -> None:
        self.snapshotter.stop()
        self.observer.stop()
        self.logs.shutdown(self.host.now_ms())
        self._disconnect()

    def _disconnect(self) -> None:
        self.host.die()
        self.network.leave(self.host)

    def kill(self) -> None:
        self._disconnect()
        self.disk.kill()

    def lose_power(self, rng: random.Random) -> None:
        self._disconnect()
        self.disk.power_cut(rng)

    def wipe(self) -> None:
        self.kill()
        self.disk.wipe()
