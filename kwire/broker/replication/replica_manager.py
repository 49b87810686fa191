"""The replicas of this broker. Metadata changes make them leader or follower, create them and remove them.

The appends of one turn of the event loop are written at the end of the turn, with one call per partition.

Creating the log of a new replica takes a millisecond or more, and a topic may have thousands of partitions.
So the broker creates new replicas in slices, and handles requests and heartbeats between the slices. A
replica is absent until its log is created. This is as in Apache Kafka: a Kafka broker does not lead a
partition before it has applied the metadata of the partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from kwire.broker.config import BrokerConfig, log_config
from kwire.broker.metadata.delta import MetadataDelta
from kwire.broker.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kwire.broker.replication.fetcher_ports import FetcherManager, StagedAppends
from kwire.broker.replication.internal_failure import InternalFailure
from kwire.broker.replication.log_dirs import AssignmentsManager
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.remote_replicas import LeaderPartitions
from kwire.broker.replication.roles import Role
from kwire.broker.storage.dirs.log_dir import METADATA_TOPIC
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import SHORTAGE_RETRY_MS, ResourceShortage, StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.host.host import Host
from kwire.wire.batch import NO_LEADER_EPOCH
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.plural import plural
from kwire.wire.primitives import Uuid

MAX_LOGGED = 20
"""The maximum number of partitions that a log line names."""
MAX_SHARED_CONFIGS = 1_000
FIRST_SLICE = 16
"""The number of new replicas that are always created in the current turn. Most topics have fewer
partitions."""
SLICE_MS = 5
"""The time per turn for creating more new replicas, in ms."""
UNASSIGNED = (None, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED)
"""The directory ids of replicas that have not been created yet."""


class ElectionListener(Protocol):
    """A coordinator, which serves the partitions of its topic that this broker leads."""

    def elected(self, index: int, leader_epoch: int) -> None:
        """Load the partition: this broker became its leader in this leader epoch."""

    def resigned(self, index: int, leader_epoch: int) -> None:
        """Unload the partition: this broker was its leader in this leader epoch, and has resigned."""


class ReplicaManager:
    """The replicas of one broker, by topic and index."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        log_manager: LogManager,
        *,
        image: Callable[[], MetadataImage],
        coordinators: Mapping[str, ElectionListener],
        assignments: AssignmentsManager,
        fetcher_manager: FetcherManager,
        leader_partitions: LeaderPartitions,
        on_removed: Callable[[Partition], None],
        on_deleted: Callable[[], None],
    ) -> None:
        """`image` returns the current metadata; `coordinators` maps topic names to coordinators.

        `on_removed` is called for each removed partition before its log is deleted. `on_deleted` is called
        after all logs of a metadata change were deleted.
        """
        self._config = config
        self._node_id = config.node_id
        self._host = host
        self._logger = host.logger("kwire.partition")
        self._log_manager = log_manager
        self._image = image
        self._coordinators = coordinators
        self._assignments = assignments
        self._fetcher_manager = fetcher_manager
        self._on_removed = on_removed
        self._on_deleted = on_deleted
        self._topic_stats = leader_partitions.topic_stats
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._new: OrderedDict[tuple[str, int], None] = OrderedDict()
        """New replicas whose logs are still to be created."""
        self._is_creating = False
        self._is_short = False
        """Whether the first replica in `_new` waits for a free descriptor."""
        self._unassigned_topics: dict[str, None] = {}
        """Topics with replicas whose directories may not have been reported to the controller yet."""
        self._new_partition = partial(
            Partition,
            host=host,
            stage=self.stage,
            when_recoverable=log_manager.pending_logs.when_recoverable,
            on_offline=self._partition_offline,
            leader_partitions=leader_partitions,
        )
        """Create a partition for a log. All partitions share one pair of bound methods, to save memory."""
        self._staged: list[StagedAppends] = []
        self._log_configs: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        """Log configurations by topic overrides. The cache is cleared when the broker's own settings
        change."""

    # --- lookups

    def get(self, topic: str, index: int) -> Partition | None:
        """Return this broker's replica in any role, or None if there is none or its log cannot be opened."""
        return self._partitions.get((topic, index))

    def all(self) -> list[Partition]:
        """Return all replicas whose logs could be opened, in any role."""
        return list(self._partitions.values())

    def role(self, topic: str, index: int) -> Role:
        """Return the role of this broker's replica: OFFLINE also if its log could not be opened."""
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition.role
        image = self._image().partition(topic, index)
        if image is None or self._node_id not in image.replicas or (topic, index) in self._new:
            return Role.ABSENT
        return Role.OFFLINE  # this broker should have the replica, but its log cannot be used

    def exists(self, topic: str, index: int) -> bool:
        """Whether the partition exists in the cluster, on this broker or elsewhere."""
        return (topic, index) in self._partitions or self._image().partition(topic, index) is not None

    def led_partition(self, topic: str, index: int) -> Partition:
        """Return the partition, of which this broker must be the leader.

        Raises ApiError: KAFKA_STORAGE_ERROR if the replica is offline; NOT_LEADER_OR_FOLLOWER;
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        partition = self._partitions.get((topic, index))
        if partition is not None and partition.role is Role.LEADER:
            return partition
        raise (
            self.missing_partition_error(topic, index) if partition is None else partition.not_leader_error()
        )

    def missing_partition_error(self, topic: str, index: int) -> ApiError:
        """Return the error for a partition for which `get` returns None."""
        image = self._image().partition(topic, index)
        if image is None:
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        # If this broker is the leader and has tried to open the log, then the log cannot be used.
        leads = image.leader == self._node_id and (topic, index) not in self._new
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def current_leader(self, topic: str, index: int) -> tuple[int, int]:
        """Return the leader's id and leader epoch in the metadata; (-1, -1) if the partition is unknown."""
        partition = self._image().partition(topic, index)
        none = NO_LEADER, NO_LEADER_EPOCH
        return none if partition is None else (partition.leader, partition.leader_epoch)

    def log_offline_partitions(self) -> None:
        """Log which partitions are offline after a start of the broker."""
        names = sorted(
            f"{topic.name}-{index}"
            for topic in self._image().topics.values()
            for index in range(len(topic.partitions))
            if self.role(topic.name, index) is Role.OFFLINE
        )
        if names:
            more = f" and {len(names) - MAX_LOGGED} more" if len(names) > MAX_LOGGED else ""
            self._logger.error(
                "Broker %d has %s offline, because the logs cannot be used: %s%s",
                *(self._node_id, plural(len(names), "replica"), ", ".join(names[:MAX_LOGGED]), more),
            )

    # --- the turn

    def end_turn(self, send_responses: Callable[[], None] | None = None) -> None:
        """Write what was appended in this turn, acknowledge it, and complete delayed requests.

        A write may stage further appends: for example, the end of a transaction stages transaction markers.
        `send_responses` is called before these further appends are written, so that the acknowledged clients
        do not wait for them.
        """
        while self._staged:
            staged, self._staged = self._staged, []
            for one in staged:
                one.commit()
            if self._staged and send_responses is not None:
                send_responses()

    def stage(self, appended: StagedAppends) -> None:
        """Call `appended.commit` at the end of this turn of the event loop."""
        self._staged.append(appended)

    def flush_due_logs(self) -> None:
        """Sync logs that are due without a new append: flush.ms has passed, or segments were rolled."""
        for log in self._log_manager.due_for_flush(self._host.monotonic_ms()):
            partition = self._partitions.get((log.topic, log.partition))
            if partition is not None and partition.role is not Role.OFFLINE:
                partition.sync(lambda error: None)

    def complete_delayed_fetches(self) -> None:
        """Complete every delayed fetch, and create no more replicas, because the broker is shutting down."""
        self._new.clear()
        for partition in self._partitions.values():
            partition.complete_delayed_fetches()

    # --- metadata

    def start(self) -> None:
        """Open the replicas in the metadata, create missing replicas, and mark unknown logs as stray.

        While a log directory is offline, a missing replica is created only in its assigned directory.
        """
        topics = self._image().topics
        for log in list(self._log_manager.logs()):
            if log.topic != METADATA_TOPIC:
                self._check_stray(log)
        # A replica without a log must be created. If a directory was emptied, all its replicas must be
        # created.
        can_be_made = not self._log_manager.any_offline
        for topic in topics.values():
            for index, partition in enumerate(topic.partitions):
                if self._node_id not in partition.replicas:
                    continue
                if can_be_made and self._log_manager.get(topic.name, index) is None:
                    self._new[topic.name, index] = None
                else:
                    self._apply_role(topic, index)
        self._assign_directories(topics.values())
        self._create_new(FIRST_SLICE)

    def _check_stray(self, log: Log) -> None:
        image = self._image()
        topic = image.topics.get(log.topic)
        if topic is not None and topic.topic_id != log.topic_id and log.topic_id in image.topics_by_id:
            # As in Kafka: a log directory that was copied or renamed by hand is kept, and is not served.
            log.fail(StorageError(f"{log.directory} has the topic id of another topic"))
            return
        known = image.partition(log.topic, log.partition)
        if (
            topic is None
            or topic.topic_id != log.topic_id
            or known is None
            or self._node_id not in known.replicas
        ):
            self._logger.warning(
                "Marking %s as stray: the metadata has no such replica on this broker", log.directory
            )
            self._log_manager.mark_stray(log)

    def apply_delta(self, delta: MetadataDelta) -> None:
        """Apply a metadata change: remove, create and change replicas."""
        gone = [
            (topic.name, index) for topic in delta.deleted_topics for index in range(len(topic.partitions))
        ]
        altered: list[TopicImage] = []
        for change in delta.altered_topics:
            assert change.before is not None
            assert change.after is not None
            altered.append(change.after)
            gone += [
                (change.after.name, index)
                for index, partition in enumerate(change.after.partitions)
                if self._node_id not in partition.replicas and (change.after.name, index) in self._partitions
            ]
        for topic, index in gone:
            self._remove(topic, index)
        for deleted in delta.deleted_topics:
            self._topic_stats.remove(deleted.name)
        if gone:
            self._sync_directories()
            self._on_deleted()
        for created in delta.created_topics:
            for index in range(len(created.partitions)):
                self._new[created.name, index] = None
        for change in delta.altered_topics:
            assert change.before is not None
            assert change.after is not None
            for index, now in enumerate(change.after.partitions):
                before = change.before.partitions[index : index + 1]
                if before and before[0] is now:
                    continue  # a delta of a large topic often changes a single partition
                key = change.after.name, index
                if key in self._new or not before or self._node_id not in before[0].replicas:
                    self._new[key] = None
                else:
                    self._apply_role(change.after, index)
        self._unassigned_topics.update(dict.fromkeys(topic.name for topic in altered))
        if not self._is_creating:
            self._create_new(FIRST_SLICE)
        self._apply_configs({name for kind, name in delta.changed_configs if kind == RESOURCE_TOPIC})

    def _create_new(self, at_least: int = 1) -> None:
        """Create new replicas, and schedule the remaining replicas for later turns.

        This turn creates replicas for `SLICE_MS` milliseconds, and not fewer than `at_least` replicas.
        """
        self._is_creating = False
        until_ms = self._host.monotonic_ms() + SLICE_MS
        topics = self._image().topics
        while self._new:
            (name, index), _ = self._new.popitem(last=False)
            topic = topics.get(name)
            if topic is None or index >= len(topic.partitions):
                continue
            self._apply_role(topic, index, is_new=True)
            if self._is_short:
                break
            self._unassigned_topics[name] = None
            at_least -= 1
            if at_least <= 0 and self._host.monotonic_ms() >= until_ms:
                break
        if self._is_short:
            self._is_creating, self._is_short = True, False
            self._host.schedule(SHORTAGE_RETRY_MS, self._create_new)
        elif self._new:
            self._is_creating = True
            self._host.call_soon(self._create_new)
        else:
            self._log_manager.pending_logs.flush_partition_metadata(self._host)
            names, self._unassigned_topics = self._unassigned_topics, {}
            self._assign_directories(topics[name] for name in names if name in topics)

    def _apply_role(self, topic: TopicImage, index: int, *, is_new: bool = False) -> None:
        """Make the replica leader or follower, according to the metadata. A storage failure is logged."""
        image = topic.partitions[index]
        if self._node_id not in image.replicas:
            return
        partition = self._partitions.get((topic.name, index))
        try:
            if partition is None:
                partition = self._open_partition(topic, index, is_new=is_new)
            before = partition.role, partition.leader_epoch
            coordinator = self._coordinators.get(topic.name)
            if image.leader != self._node_id:
                if coordinator is not None and partition.role is Role.LEADER:
                    coordinator.resigned(index, partition.leader_epoch)
                partition.become_follower(image)
            elif partition.role is Role.FOLLOWER and not _is_truncation_durable(partition.log):
                self._fetcher_manager.remove_fetcher(partition)
                partition.sync(lambda error: self._lead_after_sync(partition))
                return
            else:
                partition.become_leader(image)
        except ResourceShortage:
            self._new[topic.name, index] = None
            self._new.move_to_end((topic.name, index), last=False)
            self._is_short = True
            return
        except StorageError as error:
            self._log_offline(f"{topic.name}-{index}", error)
            return
        self._partitions[topic.name, index] = partition
        if partition.role is Role.FOLLOWER and self._is_out_of_isr_at_shutdown(image):
            self._fetcher_manager.remove_fetcher(partition)
        elif partition.role is Role.FOLLOWER:
            self._fetcher_manager.add_fetcher(partition, image.leader, image.leader_epoch)
        elif before[0] is Role.FOLLOWER:
            self._fetcher_manager.remove_fetcher(partition)
        now = partition.role, partition.leader_epoch
        if coordinator is not None and partition.role is Role.LEADER and now != before:
            coordinator.elected(index, partition.leader_epoch)

    def _lead_after_sync(self, partition: Partition) -> None:
        """Become leader after a follower's truncation was synced, unless the role has changed meanwhile."""
        key = partition.topic, partition.index
        image = self._image().partition(*key)
        if (
            image is not None
            and image.leader == self._node_id
            and partition.role is Role.FOLLOWER
            and self._partitions.get(key) is partition
        ):
            self._apply_role(self._image().topics[partition.topic], partition.index)
            if self._is_short and not self._is_creating:
                self._create_new()

    def _is_out_of_isr_at_shutdown(self, image: PartitionImage) -> bool:
        """Whether this broker is in controlled shutdown and the replica has left the ISR."""
        if self._node_id in image.isr:
            return False
        own = self._image().brokers.get(self._node_id)
        return own is not None and own.in_controlled_shutdown

    def _open_partition(self, topic: TopicImage, index: int, *, is_new: bool) -> Partition:
        """Open the replica's log, or create it.

        Raises StorageError, also if the log of an existing replica may be in an offline directory. A second,
        empty log would hide acknowledged records.
        """
        log = self._log_manager.get(topic.name, index)
        if log is None:
            directory_id = topic.partitions[index].directory_of(self._node_id)
            directory = self._log_manager.directory_of_id(directory_id)
            if directory is not None:
                self._log_manager.set_preferred_directory(topic.name, index, directory)
            elif self._log_manager.any_offline and not (is_new and directory_id in UNASSIGNED):
                raise StorageError("its log may be in an offline log directory")
            log = self._log_manager.create(
                topic.name, index, topic.topic_id, self.log_config(topic.name), self._host.now_ms()
            )
        return self._new_partition(log)

    def _remove(self, topic: str, index: int) -> None:
        self._new.pop((topic, index), None)
        partition = self._partitions.pop((topic, index), None)
        if partition is None:
            return
        coordinator = self._coordinators.get(topic)
        if coordinator is not None:
            coordinator.resigned(index, partition.leader_epoch)
        if partition.role is Role.FOLLOWER:
            self._fetcher_manager.remove_fetcher(partition)
        is_deleted = self._image().partition(topic, index) is None
        partition.remove(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_deleted else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        self._on_removed(partition)
        try:
            self._log_manager.delete(partition.log, self._host.now_ms(), sync=False)
        except StorageError as error:
            self._logger.error(
                "Cannot delete the log of %s-%d, the next start of the broker marks it as stray: %s",
                *(topic, index, error),
            )

    def _sync_directories(self) -> None:
        """Sync the renames of deleted logs.

        If a power loss undoes a rename, the log is found as a stray log.
        """
        for directory in self._log_manager.directories():
            if not directory.offline:
                self._host.run_in_worker(
                    directory.sync, partial(self._log_manager.handle_sync_result, directory)
                )

    def _assign_directories(self, topics: Iterable[TopicImage]) -> None:
        """Report the directories of replicas for which the metadata has no directory or another directory."""
        found: dict[tuple[Uuid, int], Uuid] = {}
        first, *more = self._log_manager.directories()
        for topic in topics:
            for index, image in enumerate(topic.partitions):
                if not more and image.directory_of(self._node_id) == first.directory_id:
                    continue  # if a broker has only one directory, the controller assigns it without a report
                partition = self._partitions.get((topic.name, index))
                if (
                    partition is None
                    or partition.role is Role.OFFLINE
                    or partition.topic_id != topic.topic_id
                ):
                    continue
                if self._log_manager.future_log(topic.name, index) is not None:
                    continue  # the move reports the directory
                properties = self._log_manager.directory_of(partition.log).properties
                directory_id = properties and properties.directory_id
                if directory_id and image.directory_of(self._node_id) != directory_id:
                    found[topic.topic_id, index] = directory_id
        if found:
            self._assignments.assign(found)

    # --- configurations

    def log_config(self, topic: str) -> LogConfig:
        """Return the log configuration of a topic. Topics with equal overrides share one object."""
        overrides = self._image().config(RESOURCE_TOPIC, topic)
        key = tuple(sorted(overrides.items()))
        config = self._log_configs.get(key)
        if config is None:
            if len(self._log_configs) >= MAX_SHARED_CONFIGS:
                self._log_configs.clear()
            config = self._log_configs[key] = log_config(self._config, overrides)
        return config

    def broker_config_changed(self) -> None:
        """Apply a change of the broker's settings, which are the defaults for topics."""
        self._log_configs.clear()
        self._apply_configs(self._image().topics.keys())

    def _apply_configs(self, topics: Iterable[str]) -> None:
        wanted = set(topics)
        if wanted:
            for (topic, _), partition in self._partitions.items():
                if topic in wanted:
                    partition.log.config = self.log_config(topic)

    # --- failures

    def directory_failed(self, error: StorageError) -> None:
        """Take all replicas in a failed log directory offline."""
        for partition in list(self._partitions.values()):
            if partition.log.failure is not None:
                partition.fail(error)

    def _log_offline(self, name: str, error: StorageError) -> None:
        self._logger.error(
            "The replica of %s on broker %d is offline: %s. Fix the cause, for example the disk of the log "
            "directory, and restart the broker",
            *(name, self._node_id, error),
        )

    def _partition_offline(self, partition: Partition, error: StorageError) -> None:
        self._fetcher_manager.remove_fetcher(partition)
        coordinator = self._coordinators.get(partition.topic)
        if coordinator is not None:
            coordinator.resigned(partition.index, partition.leader_epoch)
        if (
            self._partitions.get((partition.topic, partition.index)) is partition
        ):  # the partition was not removed
            self._log_offline(partition.log.name, error)
            if not isinstance(error, InternalFailure):
                # A failed sync means that the disk has failed: the whole log directory goes offline.
                self._log_manager.handle_log_failure(partition.log, error)


def _is_truncation_durable(log: Log) -> bool:
    """Write what was fetched; return whether all truncations are synced. Appends must wait until they are."""
    log.commit()
    return not log.awaits_sync
