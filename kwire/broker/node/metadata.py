"""The parts of a node that have to do with metadata, and how they hold together.

The quorum keeps the log. What it commits goes to the publisher, whose image everybody reads. While this node
leads the quorum, its controller runtime decides commands and appends to the log. The snapshotter writes what
the image was. And the broker's life goes through the port to the active controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from kwire.broker.config import BrokerConfig
from kwire.broker.controller.bootstrap import bootstrap_records
from kwire.broker.controller.commands import RegisterBroker, RegisterController
from kwire.broker.controller.config_rules import BrokerConfigRules
from kwire.broker.controller.controller import Controller
from kwire.broker.controller.liveness import Liveness
from kwire.broker.controller.partition_changes import UNCLEAN_ELECTION
from kwire.broker.controller.periodic import Periods
from kwire.broker.controller.port import ControllerPort
from kwire.broker.controller.runtime import ControllerRuntime
from kwire.broker.controller.topics import Defaults, new_uuid
from kwire.broker.host.host import Host
from kwire.broker.metadata.features import registered_features
from kwire.broker.metadata.publisher import Publisher
from kwire.broker.node.format import metadata_directory
from kwire.broker.node.life import BrokerLife
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.quorum import Quorum
from kwire.broker.raft.snapshotter import Snapshotter
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError
from kwire.wire.primitives import ZERO_UUID


class Metadata:
    """The metadata of one node. Nothing may be asked of it before `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        log_manager: LogManager,
        disk: Disk,
        *,
        on_unfenced: Callable[[], None] = lambda: None,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_failed` is called with the reason once the metadata log cannot be written any more."""
        self._config = config
        self._host = host
        self._log_manager = log_manager
        self._disk = disk
        self._home = metadata_directory(config)
        self._on_failed = on_failed
        self._snapshotter: Snapshotter | None = None
        self.publisher = Publisher(host)
        self.quorum = Quorum(config, host, on_committed=self.publisher.committed, on_failed=self._failed)
        defaults = Defaults(
            config.num_partitions,
            config.default_replication_factor,
            config.min_insync_replicas,
            unclean_leader_election=config.value(UNCLEAN_ELECTION) is True,
        )
        self._runtime = ControllerRuntime(
            Controller(config.node_id, BrokerConfigRules(config), defaults),
            self.quorum,
            self.publisher,
            host,
            periods=_periods(config),
            liveness=Liveness(config.node_id, config.broker_session_timeout_ms),
            bootstrap=lambda: bootstrap_records(disk, self._home),
        )
        self.controller: ControllerPort = self._runtime
        self.life = BrokerLife(
            self.controller,
            host,
            config.node_id,
            image=lambda: self.publisher.image,
            on_unfenced=on_unfenced,
        )

    def start(self, bound_ports: Mapping[str, int], host_name: str = "localhost") -> None:
        """Replay the log, take the lead in a new epoch, and make this node known; all of it with one sync.

        `bound_ports` tells the port of each listener by its name, `host_name` what this machine is called.
        CorruptMetadata, StorageError.
        """
        config, host = self._config, self._host
        directories = self._log_manager.directories()
        ids = {directory.path: directory.directory_id for directory in directories}
        log = MetadataLog(
            self._log_manager.open_metadata_log(
                metadata_log_config(config), host.now_ms(), directory=self._home
            ),
            self._disk,
            host.logger("kwire.raft"),
            node_id=config.node_id,
            directory_id=ids[self._home] or ZERO_UUID,
        )
        self.publisher.subscribe(self.life.image_changed)
        endpoints = controller_endpoints(config, bound_ports, host_name)
        self.quorum.start(log, self._runtime, endpoints)
        features, rng = registered_features(), host.random("incarnations")
        self.controller.submit(
            RegisterController(config.node_id, new_uuid(rng), endpoints, features),
            lambda reply: None,
        )
        known = self.publisher.image.brokers.get(config.node_id)
        was_clean = all(directory.was_clean for directory in directories)
        self.life.start(
            RegisterBroker(
                config.node_id,
                new_uuid(rng),
                broker_endpoints(config, bound_ports, host_name),
                features,
                config.broker_rack,
                [directory_id for directory_id in ids.values() if directory_id is not None],
                previous_broker_epoch=known.broker_epoch if known is not None and was_clean else -1,
            )
        )
        self.quorum.settle()
        self._snapshotter = Snapshotter(config, host, log)
        self._snapshotter.start(self.publisher.image)
        self.publisher.subscribe(self._snapshotter.image_changed)

    def shutdown(self) -> None:
        """Hand over what this broker leads, as Kafka does before it ends; synced. Never raises."""
        if self._snapshotter is not None:
            self._snapshotter.stop()
        with suppress(StorageError):  # of which the quorum tells
            self.quorum.settle()
            # What it leads is given up with its end, and need not be because others are to lead.
            self.publisher.close()
            self.life.leave()
            self.quorum.settle()

    def _failed(self, reason: str) -> None:
        if self._snapshotter is not None:
            self._snapshotter.stop()
        self._on_failed(reason)


def _periods(config: BrokerConfig) -> Periods:
    rebalance_ms = config.leader_imbalance_check_interval_seconds * 1000
    return Periods(
        preferred_ms=rebalance_ms if config.auto_leader_rebalance_enable else None,
        unclean_ms=config.unclean_leader_election_interval_ms,
    )
