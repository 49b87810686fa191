"""Loading, creating, deleting, checkpointing and closing the logs of a broker. Kafka's LogManager.

The logs of a directory with a clean shutdown are loaded without recovery. All other logs are recovered from
their recovery points. The node knows the cluster metadata, so it decides which logs are stray.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from kwire.broker.storage.checkpoints import UNKNOWN_BROKER_EPOCH, OffsetCheckpoints, read_topic_id
from kwire.broker.storage.dirs.broker_logs import BrokerLogs
from kwire.broker.storage.dirs.checkpoint_files import (
    CheckpointFiles,
    Offsets,
    checkpoint_offsets,
    write_checkpoint_files,
)
from kwire.broker.storage.dirs.log_closing import RunAll, flush_each, run_in_order
from kwire.broker.storage.dirs.log_dir import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    STRAY_SUFFIX,
    DirectoryInUse,
    LogDirectory,
    PartitionDirectory,
    future_dir_name,
    suffixed_dir_name,
    unusable_text,
)
from kwire.broker.storage.dirs.log_replacement import LogReplacement, ReplacedLog
from kwire.broker.storage.dirs.meta_properties import StartRefused
from kwire.broker.storage.dirs.pending_logs import PendingLogs
from kwire.broker.storage.disk import Disk, ResourceShortage, StorageError, failure_in, join
from kwire.broker.storage.log.delayed_deletion import DelayedDeletion
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.producer_state import PRODUCER_ID_EXPIRATION_MS
from kwire.broker.storage.log.recovery import open_log
from kwire.host.host import Host
from kwire.host.loggers import NodeLogger
from kwire.wire.plural import plural
from kwire.wire.primitives import ZERO_UUID, TopicPartition, Uuid

_MAX_PREFERENCES = 10_000
"""The maximum number of partitions whose preferred directory is remembered until they are created."""


class LogManager(BrokerLogs):
    """The logs of one broker, by topic and partition."""

    def __init__(
        self,
        disk: Disk,
        log_dirs: Sequence[str],
        *,
        rng: random.Random,
        logger: NodeLogger,
        config_for: Callable[[str], LogConfig] | None = None,
        assigned_directory_id: Callable[[str, int], Uuid | None] = lambda topic, partition: None,
        metadata_dir: str | None = None,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        on_directory_failed: Callable[[LogDirectory, StorageError], None] = lambda directory, error: None,
    ) -> None:
        """`config_for` returns the initial configuration of a topic's logs; `Log.config` may change later.

        `assigned_directory_id` returns the directory id that the cluster metadata has for a partition. That
        directory keeps the log if two directories have the partition. `metadata_dir` is the one of `log_dirs`
        that has only the metadata log; None if there is no such directory.

        `on_directory_failed` is called after a directory and its logs have gone offline.
        """
        super().__init__(
            [
                LogDirectory(disk, path.rstrip("/") or "/", holds_only_metadata=path == metadata_dir)
                for path in log_dirs
            ]
        )
        self._on_directory_failed = on_directory_failed
        self._disk = disk
        self._rng = rng
        self._logger = logger
        self._config_for = config_for
        self._assigned_directory_id = assigned_directory_id
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._preferences: dict[TopicPartition, LogDirectory] = {}
        self._delayed_deletion = DelayedDeletion(disk, logger)
        self._checkpoints = {
            directory.path: CheckpointFiles(disk, directory.path, self._offsets_in)
            for directory in self._directories
        }
        """Recovery points, log start offsets and high watermarks, by directory."""
        self.pending_logs = PendingLogs(self.handle_log_failure, self._write_checkpoints, self.directory_of)
        self.high_watermarks: dict[TopicPartition, int] = {}
        """The high watermarks that the checkpoint files had when the broker started."""
        self._is_open = False  # whether the logs of partitions were opened

    # --- opening

    def open(self, now_ms: int) -> None:
        self.lock()
        self.load_meta_properties()
        self.open_logs(now_ms)

    def lock(self) -> None:
        """Create missing log directories, and lock all log directories. A directory that fails goes offline.

        Raises StartRefused if no directory is usable, and DirectoryInUse if a directory is already locked.
        """
        for directory in self._directories:
            try:
                directory.open()
            except (DirectoryInUse, ResourceShortage):
                self._release()
                raise
            except StorageError as error:
                directory.failure = str(error)  # `load_meta_properties` reports it, if the start goes on
        self._check_any_online()

    def load_meta_properties(self) -> None:
        """Read the `meta.properties` of each directory, and read and remove its clean shutdown marker.

        A directory that fails goes offline. Raises StartRefused if no directory stays online.
        """
        for directory in self._directories:
            if directory.failure is not None:
                self._report_failure(directory, StorageError(directory.failure))
            else:
                try:
                    with self._disk.reserved():
                        directory.read_properties()
                        directory.consume_clean_shutdown()
                except ResourceShortage:
                    self._release()
                    raise
                except StorageError as error:
                    self.handle_log_dir_failure(directory, error)
        self._check_any_online()

    def open_logs(self, now_ms: int) -> None:
        """Load all logs except the metadata log. Raises StartRefused if no directory stays online."""
        for directory in self._directories:
            if directory.offline:
                continue
            try:
                with self._disk.reserved():
                    self._open_directory(directory, now_ms)
            except ResourceShortage:
                raise
            except StorageError as error:
                self.handle_log_dir_failure(directory, error)
        self._check_any_online()
        self._is_open = True

    def _open_directory(self, directory: LogDirectory, now_ms: int) -> None:
        path, config_of = directory.path, cache(self._config)
        recovery_points, start_offsets, high_watermarks = OffsetCheckpoints.read(self._disk, path)
        self.high_watermarks.update(high_watermarks)
        self._checkpoints[path].checkpointed.update(recovery_points, start_offsets)
        opened: dict[TopicPartition, Log] = {}
        for found in directory.partitions():
            where = join(path, found.name)
            if found.suffix == DELETE_SUFFIX:
                self._delayed_deletion.add_directory(where, self._config(found.topic).file_delete_delay_ms)
                continue
            if found.suffix and found.suffix != FUTURE_SUFFIX:
                self._logger.warning("Not loading stray log %s. Delete it if it is not needed", where)
                continue
            if found.topic == METADATA_TOPIC:
                continue
            topic_partition = (found.topic, found.partition)
            if found.suffix and topic_partition in self._future_logs:
                # A partition has at most one future log. The current log has all records of this second one.
                self._delayed_deletion.add_directory(where, self._config(found.topic).file_delete_delay_ms)
                continue
            if not found.suffix and topic_partition in self._logs:
                self._resolve_duplicate(directory, found)
                if topic_partition in self._logs:
                    continue
            log = self._load(
                directory,
                found.topic,
                found.partition,
                name=found.name,
                config=config_of(found.topic),
                clean=directory.had_clean_shutdown,
                recovery_point=recovery_points.get(topic_partition, 0),
                log_start_offset=start_offsets.get(topic_partition, 0),
                now_ms=now_ms,
            )
            log.high_watermark = max(
                log.log_start_offset, min(high_watermarks.get(topic_partition, 0), log.log_end_offset)
            )
            opened[topic_partition] = log
        if any(
            log.recovery_point < recovery_points.get(topic_partition, 0)
            for topic_partition, log in opened.items()
        ):
            # The recovery point is beyond the end of the log, because durable records were lost. If it were
            # kept, recovery would skip new records at these offsets.
            self._checkpoints[path].write_now()
        if opened:
            how = "after a clean shutdown" if directory.had_clean_shutdown else "with log recovery"
            self._logger.info("Log directory %s: loaded %s %s", path, plural(len(opened), "log"), how)

    def _resolve_duplicate(self, directory: LogDirectory, found: PartitionDirectory) -> None:
        """Mark one of two directories of a partition as stray. Raises StorageError if it is unclear which.

        Two directories with the same topic id normally make the start fail earlier, in `needs_format`. A
        directory without a topic id is marked as stray: its creation failed on a full disk, and the partition
        was then created in another directory. Otherwise the directory that the cluster metadata assigns is
        kept.
        """
        log = self._logs[found.topic, found.partition]
        other = self._parents[log]
        assigned_id = self._assigned_directory_id(found.topic, found.partition)
        path = join(directory.path, found.name)
        marking = "Marking duplicate log %s as stray: keeping the log in %s"
        if read_topic_id(self._disk, path) is None or (
            log.topic_id != ZERO_UUID and assigned_id is not None and assigned_id == other.directory_id
        ):
            self._logger.warning(marking, path, other.path)
            self._disk.rename(path, self._renamed_path(log, directory, STRAY_SUFFIX))
            self._disk.sync_directory(directory.path)
        elif log.topic_id == ZERO_UUID or (assigned_id is not None and assigned_id == directory.directory_id):
            self._logger.warning(marking, log.directory, directory.path)
            self.mark_stray(log)
        else:
            raise StorageError(
                f"{path} and {log.directory} are both directories of partition {log.name}: move one of them "
                f"out of log.dirs"
            )

    def _config(self, topic: str) -> LogConfig:
        return self._config_for(topic) if self._config_for is not None else LogConfig()

    def _load(
        self,
        directory: LogDirectory,
        topic: str,
        partition: int,
        *,
        config: LogConfig,
        clean: bool,
        now_ms: int,
        name: str | None = None,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        topic_id: Uuid | None = None,
    ) -> Log:
        log = open_log(
            self._disk,
            join(directory.path, name or f"{topic}-{partition}"),
            topic,
            partition,
            config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            topic_id=topic_id,
            producer_id_expiration_ms=self._producer_id_expiration_ms,
            logger=self._logger,
            delayed_deletion=self._delayed_deletion,
            rng=self._rng,
            now_ms=now_ms,
            on_failure=self.handle_log_failure,
            flush_metrics=self.flush_metrics,
        )
        if clean and not log.is_recoverable:
            is_checkpointed = (topic, partition) in self._checkpoints[directory.path].checkpointed
            self.pending_logs.add(log, directory if is_checkpointed else None)
        is_future = name is not None and name.endswith(FUTURE_SUFFIX)
        (self._future_logs if is_future else self._logs)[topic, partition] = log
        self._parents[log] = directory
        return log

    def open_metadata_log(self, config: LogConfig, now_ms: int, *, directory: str | None = None) -> Log:
        """Load or create `__cluster_metadata-0`, by default in the first log directory. Raises StorageError.

        As in Kafka, log recovery always reads the metadata log from its beginning, even after a clean
        shutdown. `directory` is a path.
        """
        parent = self._directories[0] if directory is None else self._directory(directory)
        if parent.offline:
            raise StorageError(f"{parent.path}, which holds the metadata log, is offline: {parent.failure}")
        is_new = not self._disk.exists(join(parent.path, f"{METADATA_TOPIC}-0"))
        log = self._load(
            parent, METADATA_TOPIC, 0, config=config, clean=False, topic_id=METADATA_TOPIC_ID, now_ms=now_ms
        )
        if is_new or not log.is_recoverable:
            log.flush()
            parent.sync()  # before any partition is created: the broker does not start without this log
        return log

    # --- creating, replacing and deleting logs

    def create(self, topic: str, partition: int, topic_id: Uuid, config: LogConfig, now_ms: int) -> Log:
        """Create a log in its preferred directory, or else in the directory with the fewest logs.

        A directory that fails goes offline. Raises StorageError if the preferred directory is offline, or if
        all directories are.
        """
        topic_partition = (topic, partition)
        wanted = self._preferences.pop(topic_partition, None)
        if wanted is not None and wanted.offline:
            raise StorageError(f"the preferred log directory {wanted.path} is offline")
        while True:
            directory = wanted or self._next_directory()
            try:
                with self._disk.reserved():
                    return self._load(
                        directory,
                        topic,
                        partition,
                        config=config,
                        clean=True,
                        topic_id=topic_id,
                        now_ms=now_ms,
                    )
            except ResourceShortage:
                if wanted is not None:
                    self._preferences[topic_partition] = wanted
                raise
            except StorageError as error:
                self.handle_log_dir_failure(directory, error)
                if wanted is not None:
                    raise

    def set_preferred_directory(self, topic: str, partition: int, directory: LogDirectory) -> None:
        if len(self._preferences) < _MAX_PREFERENCES:
            self._preferences[topic, partition] = directory

    def create_future_log(self, source: Log, directory: LogDirectory, start_offset: int, now_ms: int) -> Log:
        """Create an empty future log of `source` that starts at `start_offset`, in another directory.

        Raises StorageError after the directory has gone offline.
        """
        name = future_dir_name(source.topic, source.partition, self._rng)
        try:
            return self._load(
                directory,
                source.topic,
                source.partition,
                name=name,
                config=source.config,
                clean=True,
                log_start_offset=start_offset,
                topic_id=source.topic_id,
                now_ms=now_ms,
            )
        except StorageError as error:
            self.handle_log_dir_failure(directory, error)
            raise

    def replace_current_with_future_log(self, future: Log) -> LogReplacement:
        """Make `future`, which has caught up, the partition's current log; return the replacement to run.

        Raises StorageError if the future log has failed; the current log then stays in use.
        """
        topic_partition = (future.topic, future.partition)
        directory, source = self._parents[future], self._logs.get(topic_partition)
        old = None
        if source is not None:
            parent = self._parents[source]
            old = ReplacedLog(source, parent, self._renamed_path(source, parent, DELETE_SUFFIX))
        replacement = LogReplacement(
            self._disk,
            future,
            directory,
            join(directory.path, future.name),
            old,
            on_failed=self.handle_log_dir_failure,
            on_old_removed=self._on_replaced_log_removed,
        )
        del self._future_logs[topic_partition]
        self._logs[topic_partition] = future
        if source is not None:
            self._replaced_logs[source] = self._parents.pop(source)
            source.fail(StorageError(f"{future.directory} replaces {source.directory}"))
        return replacement

    def _on_replaced_log_removed(self, old: ReplacedLog) -> None:
        del self._replaced_logs[old.log]
        if old.log.directory == old.deleted_path and not old.directory.offline:
            self._delayed_deletion.add_directory(old.deleted_path, old.log.config.file_delete_delay_ms)

    def delete(self, log: Log, now_ms: int, *, sync: bool = True) -> None:
        """Rename a log for deletion. Its files are deleted after file.delete.delay.ms. Raises StorageError.

        With `sync=False`, the caller must call `LogDirectory.sync`, once for all logs of a topic.
        """
        renamed = self._rename_aside(log, DELETE_SUFFIX, sync=sync)
        if renamed is not None:
            self._delayed_deletion.add_directory(renamed, log.config.file_delete_delay_ms)

    def mark_stray(self, log: Log) -> None:
        """Rename the directory of a log as stray, and keep its files. Raises StorageError.

        Such a log is not in the cluster metadata, or is a duplicate in another log directory.
        """
        self._rename_aside(log, STRAY_SUFFIX, sync=True)

    def _renamed_path(self, log: Log, directory: LogDirectory, suffix: str) -> str:
        return join(directory.path, suffixed_dir_name(log.topic, log.partition, suffix, self._rng))

    def _rename_aside(self, log: Log, suffix: str, *, sync: bool) -> str | None:
        directory = self._parents.pop(log)
        self.pending_logs.discard(log)
        for logs in (self._logs, self._future_logs):
            if logs.get((log.topic, log.partition)) is log:
                del logs[log.topic, log.partition]
        was_offline = log.failure is not None
        log.fail(StorageError(f"{log.topic}-{log.partition} was deleted or marked as stray"))
        if directory.offline:
            return None
        is_aside = log.directory.endswith(suffix)
        path = log.directory if is_aside else self._renamed_path(log, directory, suffix)
        try:
            if not is_aside:
                self._disk.rename(log.directory, path)
            if sync:
                self._disk.sync_directory(directory.path)
        except StorageError as error:
            if not was_offline:
                self.handle_log_dir_failure(directory, error)
            raise
        log.directory = path
        return path

    # --- periodic work

    def set_producer_expiration(self, expiration_ms: int) -> None:
        self._producer_id_expiration_ms = expiration_ms
        for log in self._logs.values():
            log.producers.expiration_ms = expiration_ms

    def tick(self, now_ms: int) -> bool:
        """Delete renamed files and directories that are due, up to a limit; return whether more are due."""
        return self._delayed_deletion.tick(now_ms)

    def expire_producers(self, now_ms: int, monotonic_ms: int) -> None:
        for log in self._logs.values():
            log.producers.expire(now_ms)
            log.producers.verifications.expire(monotonic_ms - self._producer_id_expiration_ms)

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention to all logs but the metadata log; return the number of deleted segments.

        If a log fails, its directory goes offline.
        """
        deleted = 0
        for log in list(self._logs.values()):
            if log.failure is None and log.topic != METADATA_TOPIC:
                try:
                    deleted += log.delete_old_segments(now_ms)
                except StorageError as error:
                    self._logger.error("Cannot delete old segments of %s: %s", log.name, error)
        return deleted

    def due_for_flush(self, monotonic_ms: int) -> list[Log]:
        """Return the logs to flush now, because of flush.messages, flush.ms or a rolled segment."""
        return [
            log
            for log in self._logs.values()
            if log.failure is None and (log.needs_flush(monotonic_ms) or log.has_unflushed_segments)
        ]

    def write_checkpoints(self) -> None:
        """Write the outdated checkpoint files of all online directories on the event loop."""
        for directory in self._directories:
            if not directory.offline:
                try:
                    self._checkpoints[directory.path].write_now()
                except StorageError as error:
                    self.handle_log_dir_failure(directory, error)

    def checkpoint(self, host: Host) -> None:
        """Write the outdated checkpoint files of all online directories in workers."""
        self._write_checkpoints(host, self._directories, lambda: None)

    def _write_checkpoints(
        self, host: Host, directories: Iterable[LogDirectory], then: Callable[[], None]
    ) -> None:
        online = {each: self._checkpoints[each.path] for each in directories if not each.offline}
        write_checkpoint_files(online, host, self.handle_sync_result, then)

    def _offsets_in(self, path: str) -> Mapping[str, Offsets]:
        return checkpoint_offsets(log for log in self._logs_on_disk(path) if log.topic != METADATA_TOPIC)

    # --- failures and shutdown

    def handle_log_failure(self, log: Log, error: StorageError) -> None:
        self.handle_log_dir_failure(self.directory_of(log), error)

    def handle_sync_result(self, directory: LogDirectory, result: object) -> None:
        """Take a directory offline if a sync in a worker has failed."""
        error = failure_in(result)
        if error is not None:
            self.handle_log_dir_failure(directory, error)

    def handle_log_dir_failure(self, directory: LogDirectory, error: StorageError) -> None:
        """Take a directory and its logs offline, unless the process was only short of descriptors."""
        if directory.offline:
            return
        if isinstance(error, ResourceShortage):
            self._logger.error("Log directory %s stays online: %s", directory.path, error)
            return
        directory.failure = str(error)
        for log in self.logs_in(directory.path):
            log.fail(error)
        self._report_failure(directory, error)

    def _report_failure(self, directory: LogDirectory, error: StorageError) -> None:
        self._logger.error(
            "Log directory %s is offline until its disk is repaired and the broker is restarted: %s",
            *(directory.path, error),
        )
        self._on_directory_failed(directory, error)

    def check_online(self, path: str) -> None:
        """Check that the directory is online. Otherwise release all locks and raise StorageError."""
        directory = self._directory(path)
        if directory.offline:
            self._release()
            raise StorageError(f"{path} is offline: {directory.failure}")

    def _check_any_online(self) -> None:
        if all(directory.offline for directory in self._directories):
            self._release()
            raise StartRefused(unusable_text({each.path: each.failure for each in self._directories}))

    def _release(self) -> None:
        for directory in self._directories:
            directory.release()

    def shutdown(
        self,
        now_ms: int,
        *,
        broker_epoch: int = UNKNOWN_BROKER_EPOCH,
        run_all: RunAll = run_in_order,
        is_complete: bool = True,
    ) -> None:
        """Close all logs, and write the checkpoint files and clean shutdown marker of each online directory.

        A directory gets no marker if one of its logs cannot be closed, and no directory gets one without
        `is_complete`: a sync is still running, and its failure would not be noticed. `broker_epoch` is for
        the marker. `run_all` syncs the logs.
        """
        self.pending_logs.finish_replacements()
        for directory in self._directories:
            if directory.offline:
                directory.release()
                continue
            complete = self._close_logs(directory, run_all) and is_complete
            try:
                directory.sync()  # makes the names of logs created since the start durable
                if complete and self._is_open:
                    self._checkpoints[directory.path].write_now()
                    directory.last_broker_epoch = broker_epoch
                if complete and (self._is_open or directory.had_clean_shutdown):
                    directory.mark_clean()
            except StorageError as error:
                self._logger.error(
                    "Cannot mark log directory %s as cleanly shut down, so the next start runs log recovery: "
                    "%s",
                    directory.path,
                    error,
                )
            directory.release()
        self._forget_logs()

    def _close_logs(self, directory: LogDirectory, run_all: RunAll) -> bool:
        """Flush and close the logs of a directory; return whether all of them are durable."""
        logs = self._logs_on_disk(directory.path)
        complete = True
        for begin in (Log.begin_partition_metadata_flush, Log.begin_close):
            for log, error in flush_each(logs, begin, run_all):
                if not complete and (directory.offline or isinstance(error, ResourceShortage)):
                    continue  # one error is enough: the other logs of the directory fail for the same reason
                complete = False
                self._logger.error(
                    "Cannot close the log of %s, so log directory %s gets no clean shutdown marker, and "
                    "the next start runs log recovery: %s",
                    *(log.name, directory.path, error),
                )
                if log.failure is None and not isinstance(error, ResourceShortage):
                    self.handle_log_failure(log, error)
        return complete

    def _forget_logs(self) -> None:
        self._logs.clear()
        self._future_logs.clear()
        self._parents.clear()
        self._replaced_logs.clear()
