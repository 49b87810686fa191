"""A broker, or a broker that is also a controller: its logs, coordinators and partitions, and their wiring.

The broker opens its logs once its metadata includes its registration, and is unfenced after that (see
`broker_lifecycle`). If this node is the only voter, its broker is unfenced before `start` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kwire.broker.api.records.fetch_sessions import FetchSessionCache
from kwire.broker.api.request.context import Channel
from kwire.broker.config import BrokerConfig
from kwire.broker.config.group import GroupConfigs
from kwire.broker.metadata.batches import CorruptMetadata
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, MetadataImage
from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.broker.node.assignments_manager import NodeAssignmentsManager
from kwire.broker.node.base import NodeBase
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import (
    all_directories,
    metadata_directory,
    name_metadata_directory_in_errors,
    separate_directory,
)
from kwire.broker.node.isr_controller import NodeIsrController
from kwire.broker.node.producer_id_manager import ProducerIdManager
from kwire.broker.node.state_topic import StateTopic
from kwire.broker.node.topics_view import NodeTopics
from kwire.broker.node.transaction_ports import NodeTransactionPorts
from kwire.broker.replication.log_dirs import LogDirs
from kwire.broker.replication.remote_replicas import LeaderPartitions
from kwire.broker.replication.replica_fetcher_manager import ReplicaFetcherManager
from kwire.broker.replication.replica_manager import ReplicaManager
from kwire.broker.replication.replication_quota import LEADER_SIDE, ReplicationQuota
from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import Disk, StorageError
from kwire.coordinator.groups.service import GroupCoordinatorService
from kwire.coordinator.transactions.service import TransactionCoordinatorService
from kwire.host.host import Host, Timer

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole
    from kwire.broker.api.telemetry.client_telemetry import ClientTelemetry
    from kwire.broker.node.controller_node import ControllerNode

FETCH_SESSION_EVICTION_MS = 120_000
HOUSEKEEPING_MS = 1_000
"""The interval of periodic work, such as deleting files whose deletion delay has passed."""
HOUSEKEEPING_PAUSE_MS = 20
FLUSH_CHECK_MS = 1_000


class Node(NodeBase):
    """A node with the broker role, with or without the controller role."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        disk: Disk,
        *,
        on_unfenced: Callable[[], None] = lambda: None,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """For `on_unfenced` and `on_fatal`, see `NodeBase`."""
        log_manager = LogManager(
            disk,
            all_directories(config),
            rng=host.random("directories"),
            logger=host.logger("kwire.storage"),
            config_for=lambda topic: self.replica_manager.log_config(topic),
            assigned_directory_id=lambda topic, index: self.log_dirs.assigned_directory(topic, index),
            metadata_dir=separate_directory(config),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failed=self._directory_failed,
        )
        super().__init__(
            config,
            host,
            disk,
            log_manager,
            on_caught_up=self._caught_up,
            on_unfenced=on_unfenced,
            on_fatal=on_fatal,
        )
        self.is_open = False
        """Whether the logs are open and the replicas are leaders or followers."""
        self.delayed_delete_records = 0
        self.has_telemetry_receiver = False
        """Whether this node exports client metrics. The HTTP port sets this attribute."""
        self._telemetry: ClientTelemetry | None = None
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            FETCH_SESSION_EVICTION_MS,
            host.random("fetch sessions"),
        )
        self.cleaner = LogCleaner(self.log_manager, config, host, disk)
        self.producer_ids = ProducerIdManager(
            self.controller, host, config.node_id, broker_epoch=lambda: self.lifecycle.broker_epoch
        )
        self.assignments = NodeAssignmentsManager(
            self.controller, self.lifecycle, host, self.node_id, lambda: self.image
        )
        self.quorum.subscribe_leader(self.assignments.retry_now)
        self.log_dirs: LogDirs = LogDirs(self)
        own_settings = GroupConfigs(config, lambda group_id: self.image.config(RESOURCE_GROUP, group_id))
        self.groups = GroupCoordinatorService(
            config,
            host,
            StateTopic(self, GROUP_METADATA_TOPIC, needs_isr=False),
            NodeTopics(lambda: self.image),
            own_settings,
        )
        ports = NodeTransactionPorts(self)
        self.transactions = TransactionCoordinatorService(config, host, ports)
        self.verification_metrics = ports.verification_metrics
        self.write_marker = ports.write_marker
        self.add_or_verify_partition = ports.add_or_verify_partition
        self._leaders_changed = ports.leaders_changed
        self.fetcher_manager = ReplicaFetcherManager(
            config,
            host,
            image=lambda: self.image,
            broker_epoch=lambda: self.lifecycle.broker_epoch,
            stage=lambda appended: self.replica_manager.stage(appended),
            on_truncated=self.log_dirs.moves.source_truncated,
        )
        self.peer_address = self.fetcher_manager.address_of
        self.config_changed.append(self.fetcher_manager.config_changed)
        self.leader_quota = ReplicationQuota(LEADER_SIDE, config, host, lambda: self.image)
        self.leader_partitions = LeaderPartitions(
            host,
            config,
            config.node_id,
            image=lambda: self.image,
            broker_epoch=lambda: self.lifecycle.broker_epoch,
            controller=NodeIsrController(
                self.controller, config.node_id, lambda: self.lifecycle.broker_epoch
            ),
        )
        self.topic_stats = self.leader_partitions.topic_stats
        self.replica_manager: ReplicaManager = ReplicaManager(
            config,
            host,
            self.log_manager,
            image=lambda: self.image,
            coordinators={GROUP_METADATA_TOPIC: self.groups, TRANSACTION_STATE_TOPIC: self.transactions},
            assignments=self.assignments,
            fetcher_manager=self.fetcher_manager,
            leader_partitions=self.leader_partitions,
            on_removed=self.log_dirs.partition_removed,
            on_deleted=self.cleaner.handle_logs_deleted,
        )
        self.partition = self.replica_manager.get
        self.partition_exists = self.replica_manager.exists
        self.led_partition = self.replica_manager.led_partition
        self.missing_partition_error = self.replica_manager.missing_partition_error
        self.current_leader = self.replica_manager.current_leader
        self._timers: dict[object, Timer] = {}

    # --- life cycle

    def start(self) -> None:
        super().start()
        if self.lifecycle.stage is LifecycleStage.CAUGHT_UP:
            self._open()

    def _caught_up(self) -> None:
        """Open the logs now that the metadata has caught up, unless `start` has already opened them."""
        if self.is_open or self.stopping:
            return
        try:
            self._open()
        except (StorageError, CorruptMetadata) as error:
            self._on_fatal(str(error))
        except Exception:
            self._logger.exception("Cannot open the logs of this broker: it stops")
            self._on_fatal("an internal error, see the log")

    def _open(self) -> None:
        """Open the logs and make all replicas leaders or followers. Raises StorageError.

        The metadata is loaded first, because a log is opened with the configuration of its topic.
        """
        config = self.config
        self._apply_configs()
        self.log_manager.open_logs(self.host.now_ms())
        with name_metadata_directory_in_errors(config):
            self.log_manager.check_online(metadata_directory(config))
        self.log_dirs.recover_abandoned_future_logs()
        self.replica_manager.start()
        self._log_offline()
        self.cleaner.start()
        self.metadata.publisher.subscribe(self._metadata_changed)
        self.log_dirs.start()
        checkpoint_ms = min(
            config.log_flush_offset_checkpoint_interval_ms,
            config.log_flush_start_offset_checkpoint_interval_ms,
            config.replica_high_watermark_checkpoint_interval_ms,
        )
        self._schedule_every(checkpoint_ms, lambda: self.log_manager.checkpoint(self.host))
        self._schedule_every(config.log_retention_check_interval_ms, self._apply_retention)
        self._schedule_every(HOUSEKEEPING_MS, self._housekeep)
        self._schedule_every(config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._schedule_every(FLUSH_CHECK_MS, self.replica_manager.flush_due_logs)
        self._schedule_every(
            max(1, config.replica_lag_time_max_ms // 2), self.leader_partitions.maybe_shrink_isr
        )
        self.is_open = True
        self.end_turn()
        with name_metadata_directory_in_errors(config):
            self.metadata.opened()
        self.end_turn()

    def begin_shutdown(self) -> None:
        super().begin_shutdown()
        self.cleaner.stop()
        self.log_dirs.stop()
        self.assignments.stop()
        self.fetcher_manager.stop()
        self.groups.shutdown()
        self.transactions.shutdown()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.replica_manager.complete_delayed_fetches()
        self.metadata.complete_delayed_fetches()

    def kill(self) -> None:
        self.cleaner.stop()

    def _schedule_every(self, interval_ms: int, work: Callable[[], object]) -> None:
        """Call `work` every `interval_ms` until the node stops."""

        def due() -> None:
            self._timers[work] = self.host.schedule_check(interval_ms, due)
            work()

        self._timers[work] = self.host.schedule_check(interval_ms, due)

    def _apply_retention(self) -> None:
        if self.log_manager.delete_old_segments(self.host.now_ms()):
            self.leader_partitions.log_start_offsets_moved()

    def _expire_producers(self) -> None:
        self.log_manager.expire_producers(self.host.now_ms(), self.host.monotonic_ms())

    def _housekeep(self) -> None:
        if self._telemetry is not None:
            self._telemetry.expire()
        if self.log_manager.tick(self.host.monotonic_ms()) and not self.stopping:
            self._timers["more housekeeping"] = self.host.schedule(HOUSEKEEPING_PAUSE_MS, self._housekeep)

    @property
    def as_node_role(self) -> NodeRole:
        return self

    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        """Write and acknowledge the appends of this turn, and complete delayed requests."""
        self.replica_manager.end_turn(send_responses)

    def channel_closed(self, channel: Channel) -> None:
        super().channel_closed(channel)
        if self._telemetry is not None:
            self._telemetry.disconnected(channel.id)

    @property
    def has_client_metrics_subscriptions(self) -> bool:
        return self.telemetry.instances.has_subscriptions

    @property
    def telemetry(self) -> ClientTelemetry:
        """The client metrics. The object is created, and its module imported, on first use."""
        if self._telemetry is None:
            from kwire.broker.api.telemetry.client_telemetry import ClientTelemetry

            self._telemetry = telemetry = ClientTelemetry(
                self.config, self.host, self.image, has_receiver=lambda: self.has_telemetry_receiver
            )
            self.metadata.publisher.subscribe(telemetry.metadata_changed)
        return self._telemetry

    # --- metadata

    def _log_offline(self) -> None:
        """Log which log directories and partitions are offline after a start."""
        for directory in self.log_manager.directories():
            if directory.offline:
                self._logger.error("Log directory %s is offline: %s", directory.path, directory.failure)
        self.replica_manager.log_offline_partitions()

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.changed_configs):
            self._apply_configs()
        self.replica_manager.apply_delta(delta)
        altered = [change.after for change in delta.altered_topics if change.after is not None]
        names = [topic.name for topic in (*delta.created_topics, *altered, *delta.deleted_topics)]
        if names:
            self._leaders_changed()
            self.transactions.topics_changed(names)
            self.groups.topics_changed(names, created=bool(delta.created_topics))
        if delta.deleted_topics:
            self.groups.on_topics_deleted({topic.name: topic.topic_id for topic in delta.deleted_topics})

    def _apply_configs(self) -> None:
        """Apply the dynamic configuration of the cluster and of this broker, including topic defaults."""
        super()._apply_configs()
        self.log_manager.set_producer_expiration(self.config.producer_id_expiration_ms)
        self.log_dirs.apply_cordoned()
        self.replica_manager.broker_config_changed()

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Take all replicas in a failed log directory offline.

        The node stops if no other log directory is online, or if the directory contains the metadata log.
        """
        self.replica_manager.directory_failed(error)
        if all(known.offline for known in self.log_manager.directories()):
            reason = f"all log directories have failed, the last one with: {error}"
        elif directory.path == metadata_directory(self.config):
            reason = f"the log directory of the metadata log has failed: {error}"
        else:
            self.log_dirs.directory_failed()
            return
        self.host.call_soon(lambda: self._on_fatal(reason))


def new_node(
    config: BrokerConfig,
    host: Host,
    disk: Disk,
    *,
    on_unfenced: Callable[[], None] = lambda: None,
    on_fatal: Callable[[str], None] = lambda reason: None,
) -> Node | ControllerNode:
    """Create a node with the roles of process.roles."""
    if config.is_broker:
        kind: type[Node | ControllerNode] = Node
    else:
        # Imported here to shorten the start of a broker, which does not need it.
        from kwire.broker.node.controller_node import ControllerNode

        kind = ControllerNode
    return kind(config, host, disk, on_unfenced=on_unfenced, on_fatal=on_fatal)
