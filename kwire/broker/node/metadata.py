"""The parts of a node that have to do with metadata, and how they hold together.

The quorum keeps the log, or an observer follows it, by whether the node is a controller. What is committed
goes to the publisher, whose image everybody reads. A controller's runtime decides commands and appends to the
log; a broker alone sends them to whoever leads. The snapshotter writes what the image was. And the broker's
life goes through the port to the active controller, wherever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

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
from kwire.broker.metadata.features import broker_features, registered_features
from kwire.broker.metadata.publisher import Publisher
from kwire.broker.node.format import metadata_directory
from kwire.broker.node.life import BrokerLife, Stage, Terms
from kwire.broker.raft.endpoints import broker_endpoints, controller_endpoints
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.quorum import Quorum
from kwire.broker.raft.snapshotter import Snapshotter
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.broker.node.remote_controller import RemoteController
    from kwire.broker.raft.observer import Observer

MAX_LEAVING_HEARTBEATS = 3
"""How often a node that ends asks itself as its own controller whether its broker may go: twice is enough."""


class Metadata:
    """The metadata of one node. Nothing may be asked of it before `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        log_manager: LogManager,
        disk: Disk,
        *,
        on_caught_up: Callable[[], None] = lambda: None,
        on_unfenced: Callable[[], None] = lambda: None,
        on_gone: Callable[[], None] = lambda: None,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """For the first three see `BrokerLife`.

        `on_failed` is called with the reason once the metadata cannot be written or followed any more.
        """
        self._config = config
        self._host = host
        self._log_manager = log_manager
        self._disk = disk
        self._home = metadata_directory(config)
        self._on_failed = on_failed
        self._snapshotter: Snapshotter | None = None
        self.publisher = Publisher(host)
        self.quorum: Quorum | Observer
        self.controller: ControllerPort
        self.remote: RemoteController | None = None
        """The way to an active controller that is another node."""
        if config.is_controller:
            self.quorum = quorum = Quorum(
                config, host, on_committed=self.publisher.committed, on_failed=self._failed
            )
            self.controller = self._runtime = self._made_runtime(quorum)
        else:
            self.quorum, self.remote = self._look_elsewhere()
            self.controller = self.remote
        self.life = BrokerLife(
            self.controller,
            host,
            config.node_id,
            Terms(
                config.broker_heartbeat_interval_ms,
                config.broker_session_timeout_ms,
                config.initial_broker_registration_timeout_ms,
                config.log_dir_failure_timeout_ms,
            ),
            image=lambda: self.publisher.image,
            is_alone=self._is_alone,
            on_caught_up=on_caught_up,
            on_unfenced=on_unfenced,
            on_gone=on_gone,
            on_failed=on_failed,
        )

    def _look_elsewhere(self) -> tuple[Observer, RemoteController]:
        """The quorum and its leader, as other nodes."""
        # Imported here: a node that is alone starts without them.
        from kwire.broker.node.remote_controller import RemoteController
        from kwire.broker.raft.observer import Observer

        config, host = self._config, self._host
        observer = Observer(
            config,
            host,
            on_committed=self.publisher.committed,
            on_restarted=self.publisher.restarted,
            on_failed=self._failed,
        )
        remote = RemoteController(config, host, observer, cluster_id=lambda: self._log_manager.cluster_id)
        return observer, remote

    def _made_runtime(self, quorum: Quorum) -> ControllerRuntime:
        config = self._config
        defaults = Defaults(
            config.num_partitions,
            config.default_replication_factor,
            config.min_insync_replicas,
            unclean_leader_election=config.value(UNCLEAN_ELECTION) is True,
        )
        return ControllerRuntime(
            Controller(config.node_id, BrokerConfigRules(config), defaults),
            quorum,
            self.publisher,
            self._host,
            periods=_periods(config),
            liveness=Liveness(config.node_id if config.is_broker else None, config.broker_session_timeout_ms),
            bootstrap=lambda: bootstrap_records(self._disk, self._home),
        )

    def start(self, bound_ports: Mapping[str, int], host_name: str = "localhost") -> None:
        """Take up the log, and begin to make this node known.

        A controller replays the log, takes the lead in a new epoch, and has registered its broker when this
        returns. A broker alone has begun to follow the quorum, and is registered later.

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
        rng = host.random("incarnations")
        self.publisher.subscribe(self.life.image_changed)
        if isinstance(self.quorum, Quorum):
            endpoints = controller_endpoints(config, bound_ports, host_name)
            self.quorum.start(log, self._runtime, endpoints)
            self.controller.submit(
                RegisterController(config.node_id, new_uuid(rng), endpoints, registered_features()),
                lambda reply: None,
            )
        else:
            self.quorum.subscribe_leader(self.life.hurry)
            self.quorum.start(log, self._log_manager.cluster_id)
        if config.is_broker:
            self.life.start(
                RegisterBroker(
                    config.node_id,
                    new_uuid(rng),
                    broker_endpoints(config, bound_ports, host_name),
                    # Whoever leads the quorum takes itself as it is.
                    registered_features() if config.is_controller else broker_features(),
                    config.broker_rack,
                    [directory_id for directory_id in ids.values() if directory_id is not None],
                    previous_broker_epoch=self._previous_broker_epoch(),
                )
            )
        self._settle()
        self._snapshotter = Snapshotter(config, host, log)
        self._snapshotter.start(self.publisher.image)
        self.publisher.subscribe(self._snapshotter.image_changed)

    def _previous_broker_epoch(self) -> int:
        """The epoch in which this broker has ended cleanly, in every directory; else -1. KIP-966."""
        directories = self._log_manager.directories()
        epochs = {directory.last_broker_epoch for directory in directories if not directory.for_metadata}
        return epochs.pop() if len(epochs) == 1 else UNKNOWN_BROKER_EPOCH

    def opened(self) -> None:
        """The logs are open, and the replicas taken up: the broker may be unfenced. StorageError."""
        self.life.opened()
        self._settle()

    def _settle(self) -> None:
        if isinstance(self.quorum, Quorum):
            self.quorum.settle()

    def _is_alone(self) -> bool:
        return self._config.is_controller and self.publisher.image.brokers.keys() <= {self._config.node_id}

    def end_waits(self) -> None:
        """Let everyone go who waits for the metadata log to grow."""
        if isinstance(self.quorum, Quorum):
            self.quorum.end_waits()

    def shutdown(self) -> None:
        """Hand over what this broker leads, where that has not been done, as Kafka does before it ends.

        What this node led as a controller is synced. Never raises.
        """
        if self._snapshotter is not None:
            self._snapshotter.stop()
        if not isinstance(self.quorum, Quorum):
            self.life.stop()
            self.quorum.stop()
            return
        with suppress(StorageError):  # of which the quorum tells
            self.quorum.settle()
            # What it leads is given up with its end, and need not be because others are to lead.
            self.publisher.close()
            self._runtime.release()
            self.life.leave()
            for _ in range(MAX_LEAVING_HEARTBEATS):
                self.quorum.settle()
                self._runtime.release()
                if self.life.stage is not Stage.LEAVING:
                    break
                self.life.hurry()
            self.life.stop()
        self.quorum.stop()

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
