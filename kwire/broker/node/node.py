"""One broker: its logs, its metadata, its coordinators and its partitions, wired together.

A node is synchronous and touches nothing of the world but its `Host` and its `Disk`. The shell calls
`handle_frame` for each frame, `end_turn` when a turn of its loop is over, and sends what the channels hold.
The same node runs in tests under a virtual host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from kwire.broker.api.context import Channel
from kwire.broker.api.dispatch import Dispatcher
from kwire.broker.api.ports import Endpoint, Features, Forwards
from kwire.broker.api.records.fetch_sessions import FetchSessionCache
from kwire.broker.config import BrokerConfig
from kwire.broker.config.group import GroupConfigs
from kwire.broker.controller.topics import new_uuid
from kwire.broker.host.host import Host, Timer
from kwire.broker.host.loggers import known_loggers
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.features import KRAFT_VERSION, served_features
from kwire.broker.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, MetadataImage
from kwire.broker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kwire.broker.node.format import (
    all_directories,
    format_directories,
    metadata_directory,
    naming_metadata_directory,
    separate_directory,
)
from kwire.broker.node.isr_controller import NodeIsrController
from kwire.broker.node.metadata import Metadata
from kwire.broker.node.placement import Placement
from kwire.broker.node.producer_ids import ProducerIds
from kwire.broker.node.state_topic import StateTopic
from kwire.broker.node.topics_view import NodeTopics
from kwire.broker.node.transaction_ports import NodeTransactionPorts
from kwire.broker.replication.fetchers import Fetchers
from kwire.broker.replication.led_replicas import Leading
from kwire.broker.replication.log_dirs import LogDirs
from kwire.broker.replication.replicas import Replicas
from kwire.broker.replication.throttle import LEADER, Throttle
from kwire.broker.storage.cleaner.cleaner import Cleaner
from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.dirs.owners import give_directory_ids, may_start, read_owners
from kwire.broker.storage.disk import Disk, StorageError
from kwire.coordinator.groups.service import GroupCoordinatorService
from kwire.coordinator.transactions.service import TransactionCoordinatorService

FETCH_SESSION_EVICTION_MS = 120_000
HOUSEKEEPING_MS = 10_000
"""How often what is set aside long enough is removed."""
HOUSEKEEPING_PAUSE_MS = 20
FLUSH_CHECK_MS = 1_000


class Node:
    """A broker and controller in one. Nothing may be asked of it before `start` has returned."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        disk: Disk,
        *,
        on_unfenced: Callable[[], None] = lambda: None,
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_unfenced` is called when the broker is a part of its cluster, and clients may be told of it.

        `on_fatal` is called with the reason once the node cannot go on, and should be shut down.
        """
        self.config = config
        self.host = host
        self._logger = host.logger("kwire.node")
        self.node_id = config.node_id
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            FETCH_SESSION_EVICTION_MS,
            host.random("fetch sessions"),
        )
        self.bound_ports: dict[str, int] = {}
        """The port that each listener is bound to, by listener name: the shell fills it in."""
        self.host_name = "localhost"
        """What others call this machine, for listeners on every interface: of the shell, too."""
        self._disk = disk
        self._on_fatal = on_fatal
        self.config_changed: list[Callable[[], None]] = []
        """Called when settings of the broker have changed while it runs."""
        self.log_manager = LogManager(
            disk,
            all_directories(config),
            rng=host.random("directories"),
            logger=host.logger("kwire.storage"),
            config_for=lambda topic: self.replicas.log_config(topic),
            place_of=lambda topic, index: self.log_dirs.place_of(topic, index),
            metadata_dir=separate_directory(config),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failed=self._directory_failed,
        )
        self.cleaner = Cleaner(self.log_manager, config, host, disk)
        self._metadata = Metadata(
            config, host, self.log_manager, disk, on_unfenced=on_unfenced, on_failed=on_fatal
        )
        self.controller = self._metadata.controller
        """The way to the active controller."""
        self.quorum = self._metadata.quorum
        self.life = self._metadata.life
        self.producer_ids = ProducerIds(
            self.controller, host, config.node_id, broker_epoch=lambda: self.life.broker_epoch
        )
        self.placement = Placement(self.controller, self.node_id, broker_epoch=lambda: self.life.broker_epoch)
        self.log_dirs: LogDirs = LogDirs(self)
        own_settings = GroupConfigs(config, lambda group_id: self.image.config(RESOURCE_GROUP, group_id))
        self.groups = GroupCoordinatorService(
            config, host, StateTopic(self, GROUP_METADATA_TOPIC), NodeTopics(lambda: self.image), own_settings
        )
        ports = NodeTransactionPorts(self)
        self.transactions = TransactionCoordinatorService(config, host, ports)
        self.write_marker = ports.write_marker
        self.fetchers = Fetchers(
            config,
            host,
            image=lambda: self.image,
            broker_epoch=lambda: self.life.broker_epoch,
            stage=lambda appended: self.replicas.stage(appended),
            on_cut=self.log_dirs.moves.source_cut,
        )
        self.config_changed.append(self.fetchers.config_changed)
        self.leader_throttle = Throttle(LEADER, config, host, lambda: self.image)
        self.leading = Leading(
            host,
            config,
            config.node_id,
            image=lambda: self.image,
            broker_epoch=lambda: self.life.broker_epoch,
            controller=NodeIsrController(self.controller, config.node_id, lambda: self.life.broker_epoch),
        )
        self.replicas: Replicas = Replicas(
            config,
            host,
            self.log_manager,
            image=lambda: self.image,
            coordinators={GROUP_METADATA_TOPIC: self.groups, TRANSACTION_STATE_TOPIC: self.transactions},
            placement=self.placement,
            following=self.fetchers,
            leading=self.leading,
            on_left=self.log_dirs.gone,
            on_deleted=self.cleaner.logs_deleted,
        )
        self.partition = self.replicas.get
        self.partition_exists = self.replicas.exists
        self.led_partition = self.replicas.led
        self.current_leader = self.replicas.current_leader
        self.end_turn = self.replicas.end_turn
        self.forwarding: Forwards | None = None
        self._dispatcher = Dispatcher(self)
        self._timers: dict[object, Timer] = {}
        self.stopping = False

    # --- life

    def start(self) -> None:
        """Format what is new, replay the metadata, open the logs, take up every partition.

        FormatError, StorageError (StartRefused among them), CorruptMetadata.
        """
        config, now_ms, rng = self.config, self.host.now_ms(), self.host.random("formatting")
        owners = read_owners(self._disk, all_directories(config))
        home = metadata_directory(config)
        is_new = may_start(self._disk, owners, home=home, node_id=self.node_id)
        self.log_manager.lock()
        if is_new:
            for line in format_directories(config, self._disk, rng, now_ms, ignore_formatted=True):
                self._logger.info("%s", line)
        else:
            give_directory_ids(self._disk, owners, lambda: new_uuid(rng), self._logger)
        self.log_manager.read_owners()
        # The metadata comes first: logs are opened with the configurations of their topics.
        with naming_metadata_directory(config):
            self._metadata.start(self.bound_ports, self.host_name)
        self._take_broker_configs()
        self.log_manager.open_logs(now_ms)
        with naming_metadata_directory(config):
            self.log_manager.check_online(home)
        self.log_dirs.adopt()
        self.replicas.start()
        self._tell_what_is_offline()
        self.cleaner.start()
        self._metadata.publisher.subscribe(self._metadata_changed)
        self.log_dirs.start()
        checkpoint_ms = min(
            config.log_flush_offset_checkpoint_interval_ms,
            config.log_flush_start_offset_checkpoint_interval_ms,
            config.replica_high_watermark_checkpoint_interval_ms,
        )
        self._every(checkpoint_ms, lambda: self.log_manager.checkpoint(self.host))
        self._every(config.log_retention_check_interval_ms, self._apply_retention)
        self._every(HOUSEKEEPING_MS, self._keep_house)
        self._every(config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._every(FLUSH_CHECK_MS, self.replicas.flush_due)
        self._every(max(1, config.replica_lag_time_max_ms // 2), self.leading.check_followers)
        self.end_turn()

    def begin_shutdown(self) -> None:
        """Let everyone go who waits, so that connections can drain."""
        self.stopping = True
        self.cleaner.stop()
        self.log_dirs.stop()
        self.fetchers.stop()
        self.groups.shutdown()
        self.transactions.shutdown()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.replicas.end_waits()
        self.quorum.end_waits()

    def finish_shutdown(self) -> None:
        """Write what is staged, then flush, checkpoint and mark the directories as cleanly shut down."""
        self.end_turn()
        self._metadata.shutdown()
        self.log_manager.shutdown(self.host.now_ms(), broker_epoch=self.life.broker_epoch)

    def _every(self, interval_ms: int, work: Callable[[], object]) -> None:
        """Do `work` again and again until the node stops."""

        def due() -> None:
            self._every(interval_ms, work)
            work()

        self._timers[work] = self.host.schedule(interval_ms, due)

    def _apply_retention(self) -> None:
        if self.log_manager.delete_old_segments(self.host.now_ms()):
            self.leading.starts_moved()

    def _expire_producers(self) -> None:
        self.log_manager.expire_producers(self.host.now_ms())

    def _keep_house(self) -> None:
        if self.log_manager.tick(self.host.monotonic_ms()) and not self.stopping:
            self._timers["more housekeeping"] = self.host.schedule(HOUSEKEEPING_PAUSE_MS, self._keep_house)

    # --- the turn

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        """Take one request (without its size prefix). WireError: the connection must be closed."""
        self._dispatcher.dispatch(channel, frame, self.host.now_ms())

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Whether a request is not to be handled before earlier ones of its connection are answered."""
        return self._dispatcher.must_wait(channel, frame)

    def channel_closed(self, channel: Channel) -> None:
        """A connection is gone: its long poll, if it has one, ends."""
        interrupt = channel.interrupt
        channel.close()
        if interrupt is not None:
            interrupt()

    # --- what clients are told

    @property
    def cluster_id(self) -> str:
        return self.log_manager.cluster_id

    @property
    def image(self) -> MetadataImage:
        return self._metadata.publisher.image

    def endpoints(self, node_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Where these brokers are reached through a listener, as configured; else they are left out."""
        return [
            Endpoint(
                self.node_id,
                advertised.host or self.host_name,
                advertised.port or self.bound_ports.get(listener, 0),
                self.config.broker_rack,
            )
            for advertised in self.config.advertised_endpoints()
            if advertised.name == listener and self.node_id in node_ids
        ]

    def loggers(self) -> dict[str, logging.Logger]:
        """Those of the process: nodes in one share them."""
        return known_loggers()

    def features(self) -> Features:
        """Feature levels for ApiVersions."""
        image = self.image
        served = served_features()
        finalized = {name: level for name, level in image.features.items() if name in served}
        if self.quorum.kraft_version:
            finalized[KRAFT_VERSION] = self.quorum.kraft_version
        return Features(served, finalized, image.offset)

    # --- following the metadata

    def _tell_what_is_offline(self) -> None:
        """After a start, what of the data nobody can read."""
        for directory in self.log_manager.directories():
            if directory.offline:
                self._logger.error("%s is served without: %s", directory.path, directory.failure)
        self.replicas.tell_offline()

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.changed_configs):
            self._take_broker_configs()
        self.replicas.changed(delta)
        altered = [change.after for change in delta.altered_topics if change.after is not None]
        names = [topic.name for topic in (*delta.created_topics, *altered, *delta.deleted_topics)]
        if names:
            self.groups.topics_changed(names, created=bool(delta.created_topics))
        if delta.deleted_topics:
            self.groups.topics_deleted({topic.name: topic.topic_id for topic in delta.deleted_topics})

    def _take_broker_configs(self) -> None:
        """What was set on the running cluster and broker holds from now on, for every topic, too."""
        image = self.image
        self.config.update(
            image.config(RESOURCE_BROKER, ""), image.config(RESOURCE_BROKER, str(self.node_id))
        )
        self.log_manager.set_producer_expiration(self.config.producer_id_expiration_ms)
        self.log_dirs.take_config()
        self.replicas.broker_config_changed()
        for changed in self.config_changed:
            changed()

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Everything in a log directory goes offline at once.

        There is no broker without the metadata log, or without any directory.
        """
        self.replicas.directory_failed(error)
        if all(known.offline for known in self.log_manager.directories()):
            reason = f"no log directory is left: {error}"
        elif directory.path == metadata_directory(self.config):
            reason = f"the directory of the metadata log has failed: {error}"
        else:
            self.log_dirs.failed()
            return
        self.host.call_soon(lambda: self._on_fatal(reason))
