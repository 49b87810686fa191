"""The log directories of a broker: moves between them, failed directories and cordoned directories.

The broker reports three things to the controller: the directory of each replica (KIP-858), failed
directories, and cordoned directories. Cordoned directories get no new partitions (KIP-1066).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.metadata.records import DIRECTORIES_LEVEL
from kwire.broker.replication.directory_moves import DirectoryMoves, OnAssigned
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.replication_quota import configured_rate
from kwire.broker.replication.roles import Role
from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
from kwire.broker.storage.dirs.log_dir import LogDirectory, future_dir_name_fits
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid

MOVE_RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
"""A dynamic broker config: it cannot be set in server.properties."""
EVERY_DIRECTORY = "*"


DirectoryAssignments = Mapping[tuple[Uuid, int], Uuid]
"""The directory ids of replicas, by topic id and partition index."""


class AssignmentsManager(Protocol):
    """The component that reports log directories to the controller."""

    def assign(self, directory_ids: DirectoryAssignments, on_assigned: OnAssigned | None = None) -> None:
        """Report the directories of replicas with AssignReplicasToDirs, until the controller accepts them.

        `on_assigned` is called for each replica, unless the replica is removed or gets another directory
        first, or the broker shuts down.
        """

    def report_directories(self, failed: Sequence[Uuid], cordoned: Sequence[Uuid]) -> None:
        """Report failed and cordoned directories until the controller acknowledges the report."""


class LogDirsNode(Protocol):
    """The parts of the node that its log directories use."""

    node_id: int
    config: BrokerConfig
    host: Host
    log_manager: LogManager
    cleaner: LogCleaner
    stopping: bool

    @property
    def assignments(self) -> AssignmentsManager:
        """Reports the log directories to the controller."""

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""

    @property
    def partition(self) -> Callable[[str, int], Partition | None]:
        """Returns the partition, or None if this broker has no replica of it."""

    @property
    def led_partition(self) -> Callable[[str, int], Partition]:
        """Returns the partition.

        Raises ApiError if this broker is not its leader or the partition is offline.
        """


class LogDirs:
    """The log directories of one broker."""

    def __init__(self, node: LogDirsNode) -> None:
        self._node = node
        self._logger = node.host.logger("kwire.node")
        self._log_manager = node.log_manager
        self._is_started = False
        self.moves = DirectoryMoves(
            node.log_manager,
            node.host,
            assign=self._assign,
            is_cleaned=lambda log: log in node.cleaner.cleaning,
            bytes_per_second=self._move_rate,
            on_moved=node.cleaner.handle_log_replaced,
        )

    # --- life cycle

    def recover_abandoned_future_logs(self) -> None:
        """Promote future logs whose current logs are gone, and mark unknown future logs as stray."""
        image = self._node.image
        for future in self._log_manager.future_logs():
            topic = image.topics.get(future.topic)
            try:
                if (
                    topic is None
                    or topic.topic_id != future.topic_id
                    or not self._is_partition(image, future)
                ):
                    self._logger.warning(
                        "Marking future log %s as stray: its partition is not in the metadata",
                        future.directory,
                    )
                    self._log_manager.mark_stray(future)
                elif self._log_manager.get(future.topic, future.partition) is None:
                    self._recover(image, future)
            except StorageError as error:
                self._logger.error(
                    "Promoting future log %s, or marking it as stray, failed: %s. The broker tries again at "
                    "its next start. Check the disk of the log directory",
                    *(future.directory, error),
                )

    def _is_partition(self, image: MetadataImage, log: Log) -> bool:
        return log.partition < len(image.topics[log.topic].partitions)

    def _recover(self, image: MetadataImage, future: Log) -> None:
        """Promote a future log that has no current log, unless the current log is only offline."""
        directory = self._log_manager.directory_of(future)
        assigned = self.assigned_directory(future.topic, future.partition)
        has_assignments = image.metadata_version >= DIRECTORIES_LEVEL
        if assigned != directory.directory_id if has_assignments else self._log_manager.any_offline:
            return
        self._logger.warning(
            "Making future log %s the current log of its partition, because the current log is missing",
            future.directory,
        )
        future.flush()
        self._log_manager.replace_current_with_future_log(future).finish()

    def start(self) -> None:
        """Resume interrupted moves and report the directories. Called after each replica got its role."""
        self._is_started = True
        for future in self._log_manager.future_logs():
            partition = self._node.partition(future.topic, future.partition)
            if partition is not None:
                self.moves.resume(partition)
        self._report_directories()

    def stop(self) -> None:
        """Stop all moves because the broker is shutting down."""
        self.moves.stop()

    # --- assignments

    def assigned_directory(self, topic: str, partition: int) -> Uuid | None:
        """Return the directory id that the metadata has for this broker's replica, or None."""
        known = self._node.image.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return None
        return known.partitions[partition].directory_of(self._node.node_id)

    def _assign(self, log: Log, directory: LogDirectory, on_assigned: OnAssigned) -> None:
        directory_id = directory.directory_id
        if directory_id is None:
            self._node.host.call_soon(on_assigned)
            return
        self._node.assignments.assign({(log.topic_id, log.partition): directory_id}, on_assigned)

    # --- moves

    def _move_rate(self) -> int | None:
        """Return the limit for all moves in bytes per second; None for no limit."""
        return configured_rate(self._node.image, self._node.node_id, MOVE_RATE_KEY)

    def move(self, topic: str, index: int, path: str) -> None:
        """Start to move a replica to the log directory `path`, unless the replica is already there.

        Raises ApiError: INVALID_TOPIC_EXCEPTION if the topic name is too long for a future log;
        LOG_DIR_NOT_FOUND; KAFKA_STORAGE_ERROR if the directory or the replica is offline;
        INVALID_REPLICA_ASSIGNMENT if the directory is cordoned; REPLICA_NOT_AVAILABLE or
        UNKNOWN_TOPIC_OR_PARTITION if this broker has no replica. A later replica is then created in `path`.
        """
        if not future_dir_name_fits(topic, index):
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        directory = self._log_manager.directory(path)
        if directory is None or directory.holds_only_metadata:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND)
        if directory.offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if directory.cordoned:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        partition = self._node.partition(topic, index)
        if partition is None or partition.role is not Role.FOLLOWER:
            partition = self._leader_or_prefer(topic, index, directory)
        try:
            future = self._log_manager.future_log(topic, index)
            if future is not None and self._log_manager.directory_of(future) is not directory:
                self.moves.cancel(partition)
            self.moves.start(partition, directory)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _leader_or_prefer(self, topic: str, index: int, directory: LogDirectory) -> Partition:
        try:
            return self._node.led_partition(topic, index)
        except ApiError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            # The partition does not exist yet. It will be created in this directory.
            self._log_manager.set_preferred_directory(topic, index, directory)
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                # As in Kafka, for compatibility with older clients of AlterReplicaLogDirs.
                raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE) from error
            raise

    def partition_removed(self, partition: Partition) -> None:
        """Delete the future log of a partition that was removed from this broker."""
        try:
            self.moves.cancel(partition)
        except StorageError as error:
            self._logger.error(
                "Cannot delete the future log of %s, which was removed from this broker: %s. Its files "
                "remain. The next start marks them as stray if the partition does not exist any more",
                *(partition.log.name, error),
            )

    # --- failed and cordoned directories

    def directory_failed(self) -> None:
        """Report to the controller that a directory has gone offline."""
        if self._is_started and not self._node.stopping:
            self._node.host.call_soon(self._report_directories)

    def apply_cordoned(self) -> None:
        """Apply cordoned.log.dirs and report the cordoned directories to the controller."""
        named = self._node.config.cordoned_log_dirs
        for directory in self._log_manager.directories():
            directory.cordoned = EVERY_DIRECTORY in named or directory.path in named
        if self._is_started:
            self._report_directories()

    def _report_directories(self) -> None:
        known = [
            directory for directory in self._log_manager.directories() if not directory.holds_only_metadata
        ]
        failed = [found.directory_id for found in known if found.offline and found.directory_id]
        cordoned = [found.directory_id for found in known if found.cordoned and found.directory_id]
        self._node.assignments.report_directories(failed, cordoned)
