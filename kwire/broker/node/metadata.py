"""The parts of a node that have to do with metadata, and how they hold together.

The quorum keeps the log, whether the node votes or only follows. What is committed goes to the publisher,
whose image everybody reads. While this node leads, its controller's runtime decides commands and appends to
the log; else they are sent to whoever leads. The snapshotter writes what the image was. And the broker's life
goes through the port to the active controller, wherever that is.
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
from kwire.broker.controller.heartbeat_manager import BrokerHeartbeatManager
from kwire.broker.controller.partition_change_builder import UNCLEAN_ELECTION
from kwire.broker.controller.periodic_tasks import TaskPeriods
from kwire.broker.controller.port import ControllerPort
from kwire.broker.controller.runtime import ControllerRuntime
from kwire.broker.controller.topics import TopicDefaults, new_uuid
from kwire.broker.metadata.features import broker_features, registered_features
from kwire.broker.metadata.publisher import MetadataPublisher
from kwire.broker.node.broker_lifecycle import BrokerLifecycleManager, LifecycleSettings, LifecycleStage
from kwire.broker.node.controller_registration import ControllerRegistration
from kwire.broker.node.format import metadata_directory
from kwire.broker.raft.endpoints import (
    broker_endpoints,
    controller_endpoints,
    quorum_addresses,
    static_voters,
)
from kwire.broker.raft.metadata_log import MetadataLog, metadata_log_config
from kwire.broker.raft.quorum import Quorum
from kwire.broker.raft.snapshotter import Snapshotter
from kwire.broker.security.delegation_tokens import TokenHmacs, token_settings
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError
from kwire.host.host import Host
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.broker.node.remote_controller import RemoteController

MAX_SHUTDOWN_HEARTBEATS = 3
"""How often a node that ends asks itself as its own controller whether its broker may go: twice is enough."""


class NodeMetadata:
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
        on_shutdown_allowed: Callable[[], None] = lambda: None,
        on_failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """For the first three see `BrokerLifecycleManager`.

        `on_failed` is called with the reason once the metadata cannot be written or followed any more.
        """
        self._config = config
        self._host = host
        self._log_manager = log_manager
        self._disk = disk
        self._home = metadata_directory(config)
        self._on_failed = on_failed
        self._snapshotter: Snapshotter | None = None
        self.publisher = MetadataPublisher(host)
        self.quorum = Quorum(
            config,
            host,
            on_committed=self.publisher.handle_commit,
            on_restarted=self.publisher.handle_snapshot,
            on_failed=self._failed,
        )
        self.token_hmacs = TokenHmacs(token_settings(config).secret)
        self.runtime = self._new_runtime() if config.is_controller else None
        """The controller of this node, if it is one: it decides while it is the active one."""
        self.remote: RemoteController | None = None
        """The way to an active controller that may be another node."""
        self.controller: ControllerPort
        """The active controller, wherever it is."""
        if self.runtime is None or controller_endpoints(config):
            self.controller = self.remote = self._new_remote_controller()
        else:
            self.controller = self.runtime  # nobody else can reach the quorum
        self._registration: ControllerRegistration | None = None
        self.lifecycle = BrokerLifecycleManager(
            self.controller,
            host,
            config.node_id,
            LifecycleSettings(
                config.broker_heartbeat_interval_ms,
                config.broker_session_timeout_ms,
                config.initial_broker_registration_timeout_ms,
                config.log_dir_failure_timeout_ms,
            ),
            image=lambda: self.publisher.image,
            is_only_broker=self._is_only_broker,
            on_caught_up=on_caught_up,
            on_unfenced=on_unfenced,
            on_shutdown_allowed=on_shutdown_allowed,
            on_failed=on_failed,
        )

    def _new_remote_controller(self) -> RemoteController:
        # Imported here: a node that is alone starts without it.
        from kwire.broker.node.remote_controller import RemoteController

        return RemoteController(
            self._config,
            self._host,
            self.quorum,
            cluster_id=lambda: self._log_manager.cluster_id,
            local_controller=self.runtime,
        )

    def _new_runtime(self) -> ControllerRuntime:
        config = self._config
        defaults = TopicDefaults(
            config.num_partitions,
            config.default_replication_factor,
            config.min_insync_replicas,
            unclean_leader_election=config.value(UNCLEAN_ELECTION) is True,
        )
        return ControllerRuntime(
            Controller(
                config.node_id,
                BrokerConfigRules(config),
                defaults,
                quorum_addresses(config).voters.keys(),
                token_settings(config),
                self.token_hmacs,
            ),
            self.quorum,
            self.publisher,
            self._host,
            periods=_periods(config),
            heartbeats=BrokerHeartbeatManager(
                config.node_id if config.is_broker else None, config.broker_session_timeout_ms
            ),
            bootstrap=lambda: bootstrap_records(self._disk, self._home),
        )

    def start(self, bound_ports: Mapping[str, int], host_name: str = "localhost") -> None:
        """Take up the log, and begin to make this node known.

        A sole voter replays the log, takes the lead in a new epoch, and has registered its broker when this
        returns. Whoever else it is has begun to follow the quorum, and is registered later.

        `bound_ports` tells the port of each listener by its name, `host_name` what this machine is called.
        CorruptMetadata, StorageError.
        """
        config, host = self._config, self._host
        directories = self._log_manager.directories()
        ids = {directory.path: directory.directory_id for directory in directories}
        endpoints = controller_endpoints(config, bound_ports, host_name) if config.is_controller else []
        log = MetadataLog(
            self._log_manager.open_metadata_log(
                metadata_log_config(config), host.now_ms(), directory=self._home
            ),
            self._disk,
            host.logger("kwire.raft"),
            node_id=config.node_id,
            directory_id=ids[self._home] or ZERO_UUID,
            static_voters=static_voters(config, endpoints),
        )
        rng = host.random("incarnations")
        self.publisher.subscribe(self.lifecycle.image_changed)
        quorum = self.quorum
        quorum.start(log, self._log_manager.cluster_id, self.runtime, endpoints)
        if config.is_controller:
            self._registration = registration = ControllerRegistration(
                self.controller,
                host,
                RegisterController(config.node_id, new_uuid(rng), endpoints, registered_features()),
            )
            if quorum.is_sole_voter:
                registration.register()
            self.publisher.subscribe(registration.image_changed)
            quorum.subscribe_leader(registration.retry_now)
        if config.is_broker:
            quorum.subscribe_leader(self._leader_changed)
        if config.is_broker:
            self.lifecycle.start(
                RegisterBroker(
                    config.node_id,
                    new_uuid(rng),
                    broker_endpoints(config, bound_ports, host_name),
                    # A sole voter takes itself as it is.
                    registered_features() if quorum.is_sole_voter else broker_features(),
                    config.broker_rack,
                    [directory_id for directory_id in ids.values() if directory_id is not None],
                    previous_broker_epoch=self._previous_broker_epoch(),
                )
            )
        quorum.settle()
        self._snapshotter = Snapshotter(config, host, log)
        self._snapshotter.start(self.publisher.image)
        self.publisher.subscribe(self._snapshotter.image_changed)

    def _leader_changed(self) -> None:
        """Have whoever leads now hear of the broker, without the pause before."""
        if not self.quorum.leads:
            self.lifecycle.send_now()

    def _previous_broker_epoch(self) -> int:
        """The epoch in which this broker has ended cleanly, in every directory; else -1. KIP-966."""
        directories = self._log_manager.directories()
        epochs = {
            directory.last_broker_epoch for directory in directories if not directory.holds_only_metadata
        }
        return epochs.pop() if len(epochs) == 1 else UNKNOWN_BROKER_EPOCH

    def opened(self) -> None:
        """The logs are open, and the replicas taken up: the broker may be unfenced. StorageError."""
        self.lifecycle.opened()
        self.quorum.settle()

    def _is_only_broker(self) -> bool:
        return self.quorum.is_sole_voter and self.publisher.image.brokers.keys() <= {self._config.node_id}

    def resign(self, on_resigned: Callable[[], None]) -> None:
        """Have another node lead the quorum, if this one does; `on_left` is called when it may end."""
        self.quorum.leave(on_resigned)

    def complete_delayed_fetches(self) -> None:
        """Let everyone go who waits for the metadata log to grow."""
        self.quorum.end_waits()

    def shutdown(self) -> None:
        """Hand over what this broker leads, where that has not been done, as Kafka does before it ends.

        What this node led as a controller is synced. Never raises.
        """
        if self._snapshotter is not None:
            self._snapshotter.stop()
        if self._registration is not None:
            self._registration.stop()
        if self.runtime is None or not self.quorum.is_sole_voter:
            self.lifecycle.stop()
            self.quorum.stop()
            return
        with suppress(StorageError):  # of which the quorum tells
            self.quorum.settle()
            # What it leads is given up with its end, and need not be because others are to lead.
            self.publisher.close()
            self.runtime.release()
            self.lifecycle.begin_controlled_shutdown()
            for _ in range(MAX_SHUTDOWN_HEARTBEATS):
                self.quorum.settle()
                self.runtime.release()
                if self.lifecycle.stage is not LifecycleStage.CONTROLLED_SHUTDOWN:
                    break
                self.lifecycle.send_now()
            self.lifecycle.stop()
        self.quorum.stop()

    def _failed(self, reason: str) -> None:
        if self._snapshotter is not None:
            self._snapshotter.stop()
        self._on_failed(reason)


def _periods(config: BrokerConfig) -> TaskPeriods:
    rebalance_ms = config.leader_imbalance_check_interval_seconds * 1000
    return TaskPeriods(
        preferred_election_ms=rebalance_ms if config.auto_leader_rebalance_enable else None,
        unclean_election_ms=config.unclean_leader_election_interval_ms,
        token_expiry_ms=config.delegation_token_expiry_check_interval_ms
        if token_settings(config).secret
        else None,
    )
