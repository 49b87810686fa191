"""One broker: its logs, its metadata, its coordinators and its partitions, wired together.

A node is synchronous and touches nothing of the world but its `Host` and its `Disk`. The shell calls
`handle_frame` for each frame, `end_turn` when a turn of its loop is over, and sends what the channels hold.
The same node runs in tests under a virtual host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kwire.broker.api.context import Channel
from kwire.broker.api.dispatch import Dispatcher
from kwire.broker.api.records.fetch_sessions import FetchSessionCache, TopicNames
from kwire.broker.config import BrokerConfig, log_config
from kwire.broker.config.group import GroupConfigs
from kwire.broker.controller.commands import AssignDirectories
from kwire.broker.controller.port import ControllerPort
from kwire.broker.controller.topics import new_uuid
from kwire.broker.host.host import Host, Timer
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.feature_levels import KRAFT_VERSION
from kwire.broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    MetadataImage,
    TopicImage,
)
from kwire.broker.node.directories import Directories
from kwire.broker.node.format import (
    all_directories,
    format_directories,
    metadata_directory,
    naming_metadata_directory,
    separate_directory,
)
from kwire.broker.node.producer_ids import ProducerIds
from kwire.broker.node.state_topic import StateTopic
from kwire.broker.node.topics_view import NodeTopics
from kwire.broker.node.transaction_ports import TransactionPorts
from kwire.broker.raft.service import MetadataService
from kwire.broker.replication.partition import OwnFailure, Partition
from kwire.broker.storage.cleaner.cleaner import Cleaner
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC, LogDirectory
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.dirs.owners import give_directory_ids, may_start, read_owners
from kwire.broker.storage.disk import Disk, StorageError
from kwire.broker.storage.log.log_config import LogConfig
from kwire.coordinator.groups.service import GroupCoordinatorService
from kwire.coordinator.ports import OFFSETS_TOPIC
from kwire.coordinator.transactions.ports import TRANSACTIONS_TOPIC
from kwire.coordinator.transactions.service import TransactionCoordinatorService
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid

logger = logging.getLogger("kwire.node")


class Endpoint(NamedTuple):
    """Where a broker can be reached through one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Features(NamedTuple):
    """Feature levels: what this broker supports, and what its cluster has finalized."""

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int


SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "metadata.version": (7, 30),
    "transaction.version": (0, 2),
}
"""Only features whose whole behaviour is there: what is finalized beyond them is not advertised."""

NO_LEADER = -1
UNKNOWN_EPOCH = -1
FETCH_SESSION_EVICTION_MS = 120_000
FETCH_SESSION_CACHES = 8
"""Kafka has so many, and gives each the same number of the slots: of fewer none gets any."""
HOUSEKEEPING_MS = 10_000
"""How often what is set aside long enough is removed."""
MAX_WARNINGS = 100
MAX_TOLD = 20
"""How many partitions a line of the log names."""
MAX_SHARED_CONFIGS = 1_000
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
        on_fatal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_fatal` is called with the reason once the node cannot go on, and should be shut down."""
        self.config = config
        self.host = host
        self.node_id = config.node_id
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots // FETCH_SESSION_CACHES * FETCH_SESSION_CACHES,
            FETCH_SESSION_EVICTION_MS,
            host.random("fetch sessions"),
        )
        self.bound_ports: dict[str, int] = {}
        """The port that each listener is bound to, by listener name: the shell fills it in."""
        self._disk = disk
        self._on_fatal = on_fatal
        self.config_changed: list[Callable[[], None]] = []
        """Called when settings of the broker have changed while it runs."""
        self.log_manager = LogManager(
            disk,
            all_directories(config),
            rng=host.random("directories"),
            config_for=self.log_config,
            place_of=lambda topic, index: self.directories.place_of(topic, index),
            metadata_dir=separate_directory(config),
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            on_directory_failed=self._directory_failed,
        )
        self.cleaner = Cleaner(self.log_manager, config, host, disk)
        self.metadata = MetadataService(
            config, host, self.log_manager, disk, bound_ports=self.bound_ports, on_failed=on_fatal
        )
        self.controller: ControllerPort = self.metadata
        self.quorum = self.metadata
        self.producer_ids = ProducerIds(
            self.controller, host, config.node_id, broker_epoch=lambda: self.metadata.broker_epoch
        )
        self.directories = Directories(self)
        own_settings = GroupConfigs(config, lambda group_id: self.image.config(RESOURCE_GROUP, group_id))
        self.groups = GroupCoordinatorService(
            config, host, StateTopic(self, OFFSETS_TOPIC), NodeTopics(self), own_settings
        )
        ports = TransactionPorts(self)
        self.transactions = TransactionCoordinatorService(config, host, ports)
        self.write_marker = ports.write_marker
        self._dispatcher = Dispatcher(self)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._unavailable: set[tuple[str, int]] = set()
        """Partitions of this broker whose logs lie in a directory that cannot be used."""
        self._staged: list[Partition] = []
        self._warned: set[str] = set()
        self._topic_names = TopicNames({})
        self._log_configs: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        """What the logs of topics with these overrides go by, until the broker's own settings change."""
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
                logger.info("%s", line)
        else:
            give_directory_ids(self._disk, owners, lambda: new_uuid(rng))
        self.log_manager.read_owners()
        # The metadata comes first: logs are opened with the configurations of their topics.
        with naming_metadata_directory(config):
            self.metadata.start()
        self._take_broker_configs()
        self.log_manager.open_logs(now_ms)
        with naming_metadata_directory(config):
            self.log_manager.check_online(home)
        self.directories.adopt()
        self._reconcile()
        self._tell_what_is_offline()
        self.cleaner.start()
        self.metadata.subscribe(self._metadata_changed)
        self.directories.start()
        checkpoint_ms = min(
            config.log_flush_offset_checkpoint_interval_ms,
            config.log_flush_start_offset_checkpoint_interval_ms,
            config.replica_high_watermark_checkpoint_interval_ms,
        )
        self._every(checkpoint_ms, self.log_manager.write_checkpoints)
        self._every(config.log_retention_check_interval_ms, self._apply_retention)
        self._every(HOUSEKEEPING_MS, self._keep_house)
        self._every(config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._every(FLUSH_CHECK_MS, self._flush_due)
        self.end_turn()

    def begin_shutdown(self) -> None:
        """Let everyone go who waits, so that connections can drain."""
        self.stopping = True
        self.cleaner.stop()
        self.directories.stop()
        self.groups.shutdown()
        self.transactions.shutdown()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for partition in self._partitions.values():
            partition.end_waits()

    def finish_shutdown(self) -> None:
        """Write what is staged, then flush, checkpoint and mark the directories as cleanly shut down."""
        self.end_turn()
        self.metadata.shutdown()
        self.log_manager.shutdown(self.host.now_ms(), broker_epoch=self.metadata.broker_epoch)

    def _every(self, interval_ms: int, work: Callable[[], object]) -> None:
        """Do `work` again and again until the node stops."""

        def due() -> None:
            self._every(interval_ms, work)
            work()

        self._timers[work] = self.host.schedule(interval_ms, due)

    def _apply_retention(self) -> None:
        self.log_manager.delete_old_segments(self.host.now_ms())

    def _expire_producers(self) -> None:
        self.log_manager.expire_producers(self.host.now_ms())

    def _keep_house(self) -> None:
        if self.log_manager.tick(self.host.now_ms()) and not self.stopping:
            self._timers["more housekeeping"] = self.host.schedule(HOUSEKEEPING_PAUSE_MS, self._keep_house)

    def _flush_due(self) -> None:
        """flush.ms, and segments that rolled since the last flush, are due without an append, too."""
        for log in self.log_manager.due_for_flush(self.host.now_ms()):
            partition = self._partitions.get((log.topic, log.partition))
            if partition is not None and not partition.offline:
                partition.sync(lambda error: None)

    # --- the turn

    def handle_frame(self, channel: Channel, frame: memoryview) -> None:
        """Take one request (without its size prefix). WireError: the connection must be closed."""
        self._dispatcher.dispatch(channel, frame, self.host.now_ms())

    def must_wait(self, channel: Channel, frame: memoryview) -> bool:
        """Whether a request is not to be handled before earlier ones of its connection are answered."""
        return self._dispatcher.must_wait(channel, frame)

    def end_turn(self, answer: Callable[[], None] | None = None) -> None:
        """Write what this turn appended, acknowledge it, and wake who waits for it.

        What is written may have more to be written, as the end of a transaction has its markers. `answer` is
        called before that: whoever was acknowledged does not wait for it.
        """
        while self._staged:
            staged, self._staged = self._staged, []
            for partition in staged:
                partition.commit()
            if self._staged and answer is not None:
                answer()

    def channel_closed(self, channel: Channel) -> None:
        """A connection is gone: its long poll, if it has one, ends."""
        interrupt = channel.interrupt
        channel.close()
        if interrupt is not None:
            interrupt()

    # --- partitions

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition, if this broker holds it."""
        return self._partitions.get((topic, index))

    def partition_exists(self, topic: str, index: int) -> bool:
        """Whether the cluster has such a partition, be it here or elsewhere."""
        if (topic, index) in self._partitions:
            return True
        known = self.image.topics.get(topic)
        return known is not None and 0 <= index < len(known.partitions)

    def led_partition(self, topic: str, index: int) -> Partition:
        """The partition, led by this broker and online.

        Raises ApiError: KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION.
        """
        partition = self._partitions.get((topic, index))
        if partition is None:
            if (topic, index) in self._unavailable:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
            if self.partition_exists(topic, index):
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        return partition

    def check_leader_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """KIP-320. -1 is a client that does not know the epoch, and is never fenced."""
        if leader_epoch == UNKNOWN_EPOCH or leader_epoch == partition.leader_epoch:
            return
        if leader_epoch < partition.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def current_leader(self, topic: str, index: int) -> tuple[int, int]:
        """The leader's id and epoch as the metadata has them; -1, -1 where there is none."""
        known = self.image.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return NO_LEADER, UNKNOWN_EPOCH
        partition = known.partitions[index]
        return partition.leader, partition.leader_epoch

    def warn_once(self, text: str) -> None:
        """Log a warning once; of only so many texts, since a client could make up ever new ones."""
        if text not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(text)
            logger.warning("%s", text)

    def marker_written(self, topic: str, index: int, producer_id: int, *, commit: bool) -> None:
        """A transaction's marker is in the log of a partition: offsets that it committed count now."""
        if topic == OFFSETS_TOPIC:
            self.groups.transaction_ended(index, producer_id, commit=commit)

    # --- what clients are told

    @property
    def cluster_id(self) -> str:
        return self.log_manager.cluster_id

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    def topic_names(self) -> TopicNames:
        """How topic ids read as names, now."""
        return self._topic_names

    def endpoints(self, node_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Where these brokers are reached through a listener, as configured; else they are left out."""
        return [
            Endpoint(
                self.node_id,
                advertised.host,
                advertised.port or self.bound_ports.get(listener, 0),
                self.config.broker_rack,
            )
            for advertised in self.config.advertised_endpoints()
            if advertised.name == listener and self.node_id in node_ids
        ]

    def features(self) -> Features:
        """Feature levels for ApiVersions."""
        image = self.image
        finalized = {name: level for name, level in image.features.items() if name in SUPPORTED_FEATURES}
        if self.quorum.kraft_version:
            finalized[KRAFT_VERSION] = self.quorum.kraft_version
        return Features(SUPPORTED_FEATURES, finalized, image.offset)

    # --- following the metadata

    def _reconcile(self) -> None:
        """At start: take up the partitions of the image, create what is missing, set strays aside."""
        image = self.image
        self._topic_names = TopicNames(
            {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
        )
        for log in list(self.log_manager.logs()):
            if log.topic == METADATA_TOPIC:
                continue
            topic = image.topics.get(log.topic)
            if topic is not None and topic.topic_id != log.topic_id and log.topic_id in image.topics_by_id:
                # As Kafka: a directory that somebody has copied or renamed stays as it is, and is not served.
                log.fail(StorageError(f"{log.directory} has the id of another topic"))
                continue
            if topic is None or topic.topic_id != log.topic_id or log.partition >= len(topic.partitions):
                logger.warning("%s-%d is not in the metadata: set aside as stray", log.topic, log.partition)
                self.log_manager.set_stray(log)
        for topic in image.topics.values():
            for index in range(len(topic.partitions)):
                self._take_up(topic, index)
        self._tell_directories(image.topics.values())

    def _tell_what_is_offline(self) -> None:
        """After a start, what of the data nobody can read."""
        for directory in self.log_manager.directories():
            if directory.offline:
                logger.error("%s is served without: %s", directory.path, directory.failure)
        if self._unavailable:
            names = sorted(f"{topic}-{index}" for topic, index in self._unavailable)
            more = f" and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else ""
            logger.error("%d partitions are offline: %s%s", len(names), ", ".join(names[:MAX_TOLD]), more)

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.topic_changes:
            self._topic_names = TopicNames(
                {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
            )
        if any(resource_type == RESOURCE_BROKER for resource_type, _ in delta.changed_configs):
            self._take_broker_configs()
        for topic in delta.deleted_topics:
            for index in range(len(topic.partitions)):
                self._give_up(topic, index)
        if delta.deleted_topics:
            self.log_manager.sync_directories()
            self.cleaner.logs_deleted()
        for topic in delta.created_topics:
            for index in range(len(topic.partitions)):
                self._take_up(topic, index, is_new=True)
        for change in delta.altered_topics:
            assert change.before is not None
            assert change.after is not None
            known = len(change.before.partitions)
            for index in range(len(change.after.partitions)):
                self._take_up(change.after, index, is_new=index >= known)
        altered = [change.after for change in delta.altered_topics if change.after is not None]
        self._tell_directories([*delta.created_topics, *altered])
        self._configs_changed({name for kind, name in delta.changed_configs if kind == RESOURCE_TOPIC})
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
        self._log_configs.clear()
        self.log_manager.set_producer_expiration(self.config.producer_id_expiration_ms)
        self.directories.take_config()
        self._configs_changed(set(image.topics))
        for changed in self.config_changed:
            changed()

    def _configs_changed(self, topics: set[str]) -> None:
        if not topics:
            return
        for (topic, _), partition in self._partitions.items():
            if topic in topics:
                partition.log.config = self.log_config(topic)

    def log_config(self, topic: str) -> LogConfig:
        """What the logs of a topic go by, now. Topics of the same overrides share it."""
        overrides = self.image.config(RESOURCE_TOPIC, topic)
        key = tuple(sorted(overrides.items()))
        config = self._log_configs.get(key)
        if config is None:
            if len(self._log_configs) >= MAX_SHARED_CONFIGS:
                self._log_configs.clear()
            config = self._log_configs[key] = log_config(self.config, overrides)
        return config

    def _take_up(self, topic: TopicImage, index: int, *, is_new: bool = False) -> None:
        """Lead a partition of the image, creating its log where there is none yet.

        A log that should be there may lie in a directory that cannot be used now: a second, empty one in
        its place would hide what was acknowledged.
        """
        image = topic.partitions[index]
        if image.leader != self.node_id:
            return
        partition = self._partitions.get((topic.name, index))
        if partition is not None:
            if image.leader_epoch > partition.leader_epoch:
                partition.leader_epoch = image.leader_epoch
                partition.log.begin_leader_epoch(image.leader_epoch)
            return
        log = self.log_manager.get(topic.name, index)
        try:
            if log is not None and log.failure is not None:
                raise log.failure
            if log is None:
                if not is_new and self.log_manager.any_offline:
                    raise StorageError("its log may be in a directory that is offline")
                log = self.log_manager.create(
                    topic.name, index, topic.topic_id, self.log_config(topic.name), self.host.now_ms()
                )
            log.begin_leader_epoch(image.leader_epoch)
        except StorageError as error:
            logger.error("%s-%d is offline: %s", topic.name, index, error)
            self._unavailable.add((topic.name, index))
            return
        log.high_watermark = log.log_end_offset
        self._partitions[(topic.name, index)] = Partition(
            log,
            leader_epoch=image.leader_epoch,
            host=self.host,
            stage=self._staged_append,
            on_offline=self._partition_offline,
        )
        if topic.name == OFFSETS_TOPIC:
            self.groups.elected(index, image.leader_epoch)
        elif topic.name == TRANSACTIONS_TOPIC:
            self.transactions.elected(index, image.leader_epoch)

    def _tell_directories(self, topics: Iterable[TopicImage]) -> None:
        """Tell the controller where logs lie, if it does not know: with several directories it cannot."""
        found: dict[tuple[Uuid, int], Uuid] = {}
        for topic in topics:
            for index, image in enumerate(topic.partitions):
                partition = self._partitions.get((topic.name, index))
                if partition is None or partition.offline or partition.topic_id != topic.topic_id:
                    continue
                if self.log_manager.future(topic.name, index) is not None:
                    continue  # it is moving, and what is known of it is the move's affair
                properties = self.log_manager.directory_of(partition.log).properties
                directory_id = properties and properties.directory_id
                if directory_id and image.directory_of(self.node_id) != directory_id:
                    found[topic.topic_id, index] = directory_id
        if found:
            self.controller.submit(AssignDirectories(self.node_id, found), lambda _: None)

    def _staged_append(self, partition: Partition) -> None:
        self._staged.append(partition)

    def _give_up(self, topic: TopicImage, index: int) -> None:
        self._unavailable.discard((topic.name, index))
        partition = self._partitions.pop((topic.name, index), None)
        if partition is None:
            return
        if topic.name == OFFSETS_TOPIC:
            self.groups.resigned(index)
        elif topic.name == TRANSACTIONS_TOPIC:
            self.transactions.resigned(index)
        partition.take_offline(StorageError(f"topic {topic.name} is deleted"))
        self.directories.gone(partition)
        try:
            self.log_manager.delete(partition.log, self.host.now_ms(), sync=False)
        except StorageError as error:
            logger.error("%s-%d cannot be set aside: %s", topic.name, index, error)

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Everything in a log directory goes offline at once.

        There is no broker without the metadata log, or without any directory.
        """
        for partition in list(self._partitions.values()):
            if partition.log.failure is not None and not partition.offline:
                partition.take_offline(error)
        if all(known.offline for known in self.log_manager.directories()):
            reason = f"no log directory is left: {error}"
        elif directory.path == metadata_directory(self.config):
            reason = f"the directory of the metadata log has failed: {error}"
        else:
            self.directories.failed()
            return
        self.host.call_soon(lambda: self._on_fatal(reason))

    def _partition_offline(self, partition: Partition, error: StorageError) -> None:
        if self._partitions.get((partition.topic, partition.index)) is partition:  # it was not given up
            logger.error("%s-%d is offline: %s", partition.topic, partition.index, error)
            if not isinstance(error, OwnFailure):
                # A sync that failed is the disk's failure, too: nothing in its directory can be relied upon.
                self.log_manager.log_failed(partition.log, error)
