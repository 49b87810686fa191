"""The nodes of a simulated cluster: their settings, formatting and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from kwire.broker.config import BrokerConfig, load
from kwire.broker.metadata.batches import decode_batches
from kwire.broker.metadata.features import unserved_feature_levels
from kwire.broker.metadata.records import StoredRecord
from kwire.broker.node.format import (
    InitialMetadata,
    all_directories,
    format_directories,
    metadata_directory,
)
from kwire.broker.raft.snapshots import SnapshotWriter
from kwire.broker.storage.dirs.meta_properties import BOOTSTRAP_CHECKPOINT, FIRST_SNAPSHOT, METADATA_LOG
from kwire.broker.storage.disk import Disk, join
from kwire.host.host import PeerAddress
from kwire.testing.disk import MemoryDisk
from kwire.testing.network import Network
from kwire.testing.simulated.node_sasl import initial_credentials
from kwire.testing.virtual_node import NOW_MS, VirtualNode
from kwire.wire.records.raft import VotersRecord

CLUSTER_ID: Final = "c2ltdWxhdGVkIGNsdXN0ZQ"
CONTROLLER_PORT: Final = 9093
PORT: Final = 9092
LOG_DIRS: Final = ("/data", "/more")
"""The log directories of a node. The first one contains the metadata log."""
RACKS: Final = ("here", "there")
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
FOREVER_MS: Final = (1 << 63) - 1
"""A timestamp limit that accepts clocks of nodes and clients hours ahead. Kafka's default is one hour."""

INITIAL_METADATA: Final = InitialMetadata(features=unserved_feature_levels())
"""Metadata that disables the features that kwire does not serve yet, since brokers cannot join with them."""

SCALED_TIMEOUTS: Final = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1500",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "300",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.request.timeout.ms": "1500",
    "metadata.max.idle.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "200",
    "leader.imbalance.check.interval.seconds": "3",
}
"""Timeouts and intervals, scaled down to simulations of half a minute."""


class ClockDrift(NamedTuple):
    """The speed of a node's clocks, and the lead of its wall clock.

    The error of the speed accumulates from the start of a process, and is 0 at the start.

    The timeouts allow speeds of 50 % to 200 %: even when one node is four times as fast as another,
    heartbeats of the slow node must arrive within the session timeout of the fast node.
    """

    speed_percent: int = 100
    ahead_ms: int = 0


NO_DRIFT: Final = ClockDrift()


def node_settings(
    node_id: int,
    roles: str,
    controllers: list[int],
    *,
    replicas: int,
    min_insync_replicas: int,
    fetch_bytes: int,
    has_racks: bool,
    directories: Sequence[str],
) -> dict[str, str]:
    """Return the configs of a node. `fetch_bytes` is the size of a follower's fetch per partition."""
    racks = {"broker.rack": RACKS[node_id % len(RACKS)], "replica.selector.class": RACK_AWARE}
    host = f"n{node_id}"
    listeners = {
        "broker": f"PLAINTEXT://{host}:{PORT}",
        "controller": f"CONTROLLER://{host}:{CONTROLLER_PORT}",
    }
    voters = ",".join(f"{each}@n{each}:{CONTROLLER_PORT}" for each in controllers)
    return {
        "node.id": str(node_id),
        "process.roles": roles,
        "log.dirs": ",".join(directories),
        "listeners": ",".join(listeners[role] for role in roles.split(",")),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "min.insync.replicas": str(min_insync_replicas),
        "default.replication.factor": str(replicas),
        "replica.fetch.max.bytes": str(fetch_bytes),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": str(replicas),
        "log.message.timestamp.after.max.ms": str(FOREVER_MS),
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min_insync_replicas),
        **(racks if has_racks else {}),
        **SCALED_TIMEOUTS,
    }


def address_of(node_id: int) -> PeerAddress:
    """Return the address at which clients connect to a broker."""
    return PeerAddress(f"n{node_id}", PORT)


def move_bootstrap_to_snapshot(disk: Disk, config: BrokerConfig) -> None:
    """Give formatted log directories the layout of Apache Kafka 4.4 (KIP-1170).

    The features and credentials are in the first snapshot of a controller's metadata log, behind the voters.
    """
    home = metadata_directory(config)
    path = join(join(home, METADATA_LOG), FIRST_SNAPSHOT)
    existing = disk.read(path) if disk.exists(path) else b""
    voters = [
        control
        for batch in decode_batches(existing)
        for control in batch.controls
        if isinstance(control, VotersRecord)
    ]
    bootstrap = decode_batches(disk.read(join(home, BOOTSTRAP_CHECKPOINT)))
    records = [StoredRecord(record) for batch in bootstrap for record in batch.records]
    if config.is_controller:
        writer = SnapshotWriter(
            0, now_ms=NOW_MS, last_timestamp_ms=NOW_MS, voters=voters[0] if voters else None
        )
        disk.make_directory(join(home, METADATA_LOG))
        disk.replace(path, writer.header() + writer.batch(records) + writer.footer(), sync=True)
        disk.sync_directory(home)
    for directory in all_directories(config):
        disk.remove(join(directory, BOOTSTRAP_CHECKPOINT))


class ClusterNode(VirtualNode):
    """A formatted node, which records when it has to be checked again."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        rng: random.Random,
        network: Network,
        note: Callable[[str], None],
        drift: ClockDrift,
        max_work_ms: int,
        has_bootstrap_snapshot: bool = False,
    ) -> None:
        self.node_id = int(settings["node.id"])
        self.name = f"node {self.node_id}"
        self.is_controller = "controller" in settings["process.roles"]
        self.is_broker = "broker" in settings["process.roles"]
        self.needs_check = True
        self.start_count = 0
        """The number of starts of the process."""
        self._max_work_ms = max_work_ms
        self._has_bootstrap_snapshot = has_bootstrap_snapshot
        self._note = note
        disk = MemoryDisk(
            random.Random(rng.getrandbits(64)), lambda text: note(f"the disk of {self.name} {text}")
        )
        self._format_rng = random.Random(rng.getrandbits(64))
        self._format(disk, settings)
        super().__init__(
            settings,
            disk=disk,
            seed=rng.getrandbits(32),
            network=network,
            work_delays=random.Random(rng.getrandbits(64)),
            speed_percent=drift.speed_percent,
            skew_ms=drift.ahead_ms,
        )

    def _format(self, disk: MemoryDisk, settings: Mapping[str, str]) -> None:
        config = load(None, {}, settings)
        beginning = INITIAL_METADATA
        if config.inter_broker_listener_name != "PLAINTEXT":
            # From a random stream of its own, so that simulations without SASL do not change.
            beginning = beginning._replace(credentials=initial_credentials(random.Random(self.node_id)))
        format_directories(
            config, disk, self._format_rng, NOW_MS, cluster_id=CLUSTER_ID, initial_metadata=beginning
        )
        if self._has_bootstrap_snapshot:
            move_bootstrap_to_snapshot(disk, config)
        disk.sync_directory("/")

    def reformat(self) -> None:
        """Format an empty disk, as an operator does after replacing it."""
        self._format(self.disk, self.settings)

    def restore_disk_speed(self) -> None:
        """End a slowdown of the disk, which a fault began. Tasks that have begun are not faster."""
        self.host.max_work_ms = self._max_work_ms

    def start(self) -> None:
        """Start a process, and set `needs_check` after each turn of its event loop."""
        self.start_count += 1
        super().start()
        host = self.host
        self.restore_disk_speed()
        end_turn = host.end_turn
        assert end_turn is not None

        def turn_ended() -> None:
            self.needs_check = True
            end_turn()
            if self.fatal and self.host is host and not host.is_dead:
                self._note(f"{self.name} stops after a fatal error: {self.fatal[0]}")
                self.die()

        self.host.end_turn = turn_ended
        self.needs_check = True
