"""The metadata of a node: quorum, publisher, controller, snapshots, and the broker's life cycle.

The quorum maintains the metadata log on voters and observers. The publisher applies committed records to the
metadata image, which all other parts read. While this node is the active controller, its controller runtime
handles commands and appends to the log. Otherwise commands are sent to the active controller. The snapshotter
writes snapshots of the image. The broker's life cycle uses the active controller on any node.
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
from kwire.broker.security.settings import missing_node_rights
from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from kwire.broker.storage.dirs.log_dir import ignores_case
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError
from kwire.host.host import Host
from kwire.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kwire.broker.controller.activation_queue import ActivationQueue
    from kwire.broker.node.remote_controller import RemoteController

MAX_SHUTDOWN_HEARTBEATS = 3
"""The limit for heartbeats from a stopping broker to a controller on the same node. Two usually suffice."""


class NodeMetadata:
    """The metadata of one node. Callers must call `start` before any other method."""

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
        """For the first three callbacks, see `BrokerLifecycleManager`.

        `on_failed` is called with the reason why the metadata can no longer be written or read.
        """
        self._config = config
        self._host = host
        self._log_manager = log_manager
        self._disk = disk
        self._home = metadata_directory(config)
        self._on_failed = on_failed
        self.snapshotter: Snapshotter | None = None
        """The generator of metadata snapshots; None before `start`."""
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
        """The controller on this node; None if the node does not have the controller role."""
        self.remote: RemoteController | None = None
        """The client of an active controller on another node; None if no other node can be the controller."""
        self.controller: ControllerPort
        """The active controller, on this node or another one."""
        self.own_controller: ActivationQueue | ControllerRuntime | None = self.runtime
        """The controller on this node, for requests of other nodes."""
        if self.runtime is None or controller_endpoints(config):
            self.controller = self.remote = self._new_remote_controller()
        else:
            self.controller = self.runtime  # no other node can be a voter or an observer of this quorum
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
                missing_node_rights(config),
            ),
            image=lambda: self.publisher.image,
            is_only_broker=self._is_only_broker,
            on_caught_up=on_caught_up,
            on_unfenced=on_unfenced,
            on_shutdown_allowed=on_shutdown_allowed,
            on_failed=on_failed,
        )

    def _new_remote_controller(self) -> RemoteController:
        # Imported here to shorten the start of a single node, which does not need them.
        from kwire.broker.controller.activation_queue import ActivationQueue
        from kwire.broker.node.remote_controller import RemoteController

        if self.runtime is not None:
            self.own_controller = queue = ActivationQueue(self.runtime, lambda: self.quorum.leads)
            self.quorum.subscribe_leader(queue.leader_changed)
        return RemoteController(
            self._config,
            self._host,
            self.quorum,
            cluster_id=lambda: self._log_manager.cluster_id,
            local_controller=self.own_controller,
        )

    def _new_runtime(self) -> ControllerRuntime:
        config = self._config
        defaults = TopicDefaults(
            config.num_partitions,
            config.default_replication_factor,
            config.min_insync_replicas,
            unclean_leader_election=config.value(UNCLEAN_ELECTION) is True,
            ignores_case=lambda: ignores_case(self._disk, self._home),
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
        """Open the metadata log and start to register this node.

        A sole voter replays the log, becomes leader in a new epoch, and registers its broker before this
        returns. Any other node starts to follow the quorum and registers later.

        `bound_ports` has the port of each listener by name, and `host_name` is the host name to advertise.
        Raises CorruptMetadata or StorageError.
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
        quorum.start(log, self._log_manager.cluster_id, self.own_controller, endpoints)
        if config.is_controller:
            self._registration = registration = ControllerRegistration(
                self.controller,
                host,
                RegisterController(config.node_id, new_uuid(rng), endpoints, registered_features()),
            )
            if quorum.is_sole_voter:
                registration.register()
            self.publisher.subscribe(registration.image_changed)
            assert self.runtime is not None
            self.publisher.subscribe(self.runtime.metrics.image_changed)
            quorum.subscribe_leader(registration.retry_now)
        if config.is_broker:
            quorum.subscribe_leader(self.lifecycle.send_now)
        if config.is_broker:
            self.lifecycle.start(
                RegisterBroker(
                    config.node_id,
                    new_uuid(rng),
                    broker_endpoints(config, bound_ports, host_name),
                    # A sole voter accepts its own features without checking them.
                    registered_features() if quorum.is_sole_voter else broker_features(),
                    config.broker_rack,
                    [directory_id for directory_id in ids.values() if directory_id is not None],
                    previous_broker_epoch=self._previous_broker_epoch(),
                )
            )
        quorum.settle()
        self.snapshotter = Snapshotter(config, host, log)
        self.snapshotter.start(self.publisher.image)
        self.publisher.subscribe(self.snapshotter.image_changed)

    def _previous_broker_epoch(self) -> int:
        """Return the broker epoch of the last clean shutdown; -1 if the directories disagree. KIP-966."""
        directories = self._log_manager.directories()
        epochs = {
            directory.last_broker_epoch for directory in directories if not directory.holds_only_metadata
        }
        return epochs.pop() if len(epochs) == 1 else UNKNOWN_BROKER_EPOCH

    def opened(self) -> None:
        """Request to be unfenced, after the logs were opened and the replicas became leaders or followers.

        Raises StorageError if the metadata log cannot be written.
        """
        self.lifecycle.opened()
        self.quorum.settle()

    def _is_only_broker(self) -> bool:
        return self.quorum.is_sole_voter and self.publisher.image.brokers.keys() <= {self._config.node_id}

    def resign(self, on_resigned: Callable[[], None]) -> None:
        """Resign if this node is the quorum leader, then call `on_resigned`."""
        self.quorum.leave(on_resigned)

    def complete_delayed_fetches(self) -> None:
        """Complete all delayed fetches of the metadata log, and append no more NoOpRecords."""
        self.quorum.end_waits()

    def shutdown(self) -> None:
        """Stop. A sole voter first syncs its records to disk and completes its broker's controlled shutdown.

        Storage errors are ignored, because the quorum has already reported them.
        """
        if self.snapshotter is not None:
            self.snapshotter.stop()
        if self._registration is not None:
            self._registration.stop()
        if self.remote is not None:
            self.remote.stop()
        if self.runtime is None or not self.quorum.is_sole_voter:
            self.lifecycle.stop()
            self.quorum.stop()
            return
        with suppress(StorageError):  # the quorum has already reported the error
            self.quorum.settle()
            # Publish no further images: the broker is stopping, and need not apply the move of its leaders.
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
        if self.snapshotter is not None:
            self.snapshotter.stop()
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
