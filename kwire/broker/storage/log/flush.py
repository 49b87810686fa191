"""Flushing a log, and the offset up to which the log is durable.

A flush has two parts. `FlushTicket.work` waits for the disk and may run in a worker thread. `finish` runs on
the event loop and advances the recovery point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kwire.broker.storage.checkpoints import (
    PARTITION_METADATA,
    TEMPORARY_PARTITION_METADATA,
    rename_partition_metadata,
)
from kwire.broker.storage.disk import Disk, DiskFile, ResourceShortage, join
from kwire.broker.storage.log.flush_metrics import FlushMetrics, FlushTimer
from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.broker.storage.log.segments import LogSegments


class FlushTicket:
    """The files and directories to sync so that a log is durable up to `end_offset`.

    The files are opened on the event loop. `work` uses only these files, so it may run while the log appends,
    rolls and deletes segments.
    """

    __slots__ = ("_directories", "_disk", "_files", "_timer", "end_offset", "finish")

    def __init__(
        self,
        disk: Disk,
        files: Sequence[DiskFile],
        directories: Sequence[str],
        end_offset: int,
        finish: Callable[[], None],
        timer: FlushTimer,
    ) -> None:
        self._disk = disk
        self._files = files
        self._directories = directories
        self._timer = timer
        self.end_offset = end_offset
        """The offset up to which the log is durable after `work`, unless it is truncated meanwhile."""
        self.finish = finish
        """Advances the recovery point. Must be called on the event loop after `work` has succeeded."""

    def work(self) -> None:
        """Sync the files and directories. May run in any thread. Raises StorageError."""
        for file in self._files:
            self._timer.duration_s += file.sync()
        self._files = ()  # the sync of a directory may wait until files can be closed
        for directory in self._directories:
            self._disk.sync_directory(directory)


class Durability:
    """The recovery point of a log, and the files that are not synced yet."""

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_flushed_ms",
        "_is_new",
        "_metadata_needs_sync",
        "_metrics",
        "_producers",
        "_renames",
        "_seen_ms",
        "_segments",
        "_synced_base",
        "_tail_needs_sync",
        "_truncations",
        "awaits_checkpoint",
        "awaits_sync",
        "is_replacing",
        "lacks_partition_metadata",
        "recovery_point",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: LogSegments,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        metrics: FlushMetrics,
        *,
        recovery_point: int,
        lacks_partition_metadata: bool,
        metadata_needs_sync: bool,
        names_are_synced: bool,
        tail_needs_sync: bool,
    ) -> None:
        """Start from the state in which loading the log left the files.

        `lacks_partition_metadata`: `partition.metadata` is still under its temporary name.
        `metadata_needs_sync`: the log's directory or its `partition.metadata` may not be durable yet.
        `names_are_synced`: no file was created or removed since a clean shutdown. `tail_needs_sync`: a
        truncation of the active segment may not be durable, so the next flush has to sync the segment.
        """
        self.recovery_point = recovery_point
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._metrics = metrics
        self.lacks_partition_metadata = lacks_partition_metadata
        """Whether `partition.metadata` still has its temporary name. A crash would lose the topic id."""
        self.is_replacing = False
        """Whether this log is replacing the partition's current log. After a crash, the broker may find the
        current log instead."""
        self._is_new = metadata_needs_sync
        """Whether the name of the log's directory, or a name in it, may not be durable."""
        # A file that still has its temporary name is synced before it is renamed.
        self._metadata_needs_sync = metadata_needs_sync and not lacks_partition_metadata
        self._seen_ms: int | None = None
        """The monotonic time of the last call of `is_due` in ms, or None."""
        self._flushed_ms: int | None = None
        self._synced_base = segments.active.base_offset if names_are_synced else -1
        self._tail_needs_sync = tail_needs_sync
        self.awaits_sync = False
        """Whether the log was truncated and has to be flushed before the next append."""
        self.awaits_checkpoint = False
        """Whether the checkpoint file may have a recovery point from before a truncation. After a crash, log
        recovery would not check new records before that offset."""
        self._renames = 0
        self._truncations = 0

    def is_due(self, config: LogConfig, monotonic_ms: int) -> bool:
        """Return whether flush.messages or flush.ms requires a flush now."""
        self._seen_ms = monotonic_ms
        if self._flushed_ms is None:
            self._flushed_ms = monotonic_ms
        unflushed = self._segments.end_offset - self.recovery_point
        return unflushed > 0 and (
            unflushed >= config.flush_messages or monotonic_ms - self._flushed_ms >= config.flush_ms
        )

    def on_truncated(self, offset: int) -> None:
        """Record that the log was truncated. A flush in progress will not advance the recovery point."""
        self._truncations += 1
        self._tail_needs_sync = self.awaits_sync = True
        if offset < self.recovery_point:
            self.recovery_point = offset
            self.awaits_checkpoint = True

    def on_checkpointed(self, recovery_point: int) -> None:
        """Record that the checkpoint file has this recovery point, or an earlier one."""
        if recovery_point <= self.recovery_point:
            self.awaits_checkpoint = False

    def on_files_renamed(self) -> None:
        """Record that files of the log were renamed, so that the next flush syncs the log's directory."""
        self._renames += 1
        self._synced_base = -1

    def begin_partition_metadata_flush(self) -> FlushTicket:
        """Return the ticket that syncs and renames `partition.metadata`. Raises StorageError."""
        temporary = self._disk.open(join(self._directory, TEMPORARY_PARTITION_METADATA))
        finish = self._rename_partition_metadata
        return FlushTicket(self._disk, [temporary], (), self.recovery_point, finish, FlushTimer())

    def flush_partition_metadata(self) -> None:
        """Sync and rename `partition.metadata` if it has its temporary name. Raises StorageError."""
        if self.lacks_partition_metadata:
            ticket = self.begin_partition_metadata_flush()
            ticket.work()
            ticket.finish()

    def _rename_partition_metadata(self) -> None:
        if self.lacks_partition_metadata:
            rename_partition_metadata(self._disk, self._directory)
            self.lacks_partition_metadata = False

    @property
    def is_recoverable(self) -> bool:
        """Whether log recovery would find this log as the partition's log after a crash."""
        return not (self.lacks_partition_metadata or self.is_replacing)

    def update_directory(self, directory: str) -> None:
        """Update the paths after the log's directory was renamed. The caller syncs the parent directory."""
        self._directory = directory

    def begin_flush(self) -> FlushTicket:
        """Return the ticket that makes all written batches durable. The log must be recoverable.

        Raises StorageError.
        """
        assert self.is_recoverable, f"a crash now would lose {self._directory}"
        return self._ticket(closes=False)

    def begin_replacement(self) -> FlushTicket:
        """Return a flush ticket, and set `is_replacing` until the ticket's `finish`. Raises StorageError."""
        ticket = self.begin_flush()
        flushed = ticket.finish

        def replaced() -> None:
            self.is_replacing = False
            flushed()

        ticket.finish = replaced
        self.is_replacing = True
        return ticket

    def begin_close(self) -> FlushTicket:
        """Prepare the files for a clean shutdown, and return the ticket to sync them. Raises StorageError.

        If nothing was written since the log was opened, no file is synced. The caller must sync the parent
        directory.
        """
        self.flush_partition_metadata()
        self._segments.active.become_inactive()
        return self._ticket(closes=True)

    def _ticket(self, *, closes: bool) -> FlushTicket:
        epochs, active = self._epochs, self._segments.active
        end_offset = self._segments.end_offset
        is_written = end_offset > self.recovery_point
        paths: list[str] = []
        directories: list[str] = []
        snapshots = self._producers.unsynced_snapshots if is_written or closes else {}
        if is_written or closes:
            for segment in self._segments.unsynced_from(self.recovery_point):
                if is_written or segment.was_trimmed:
                    paths.append(segment.log_path)
                if is_written and segment is not active:
                    paths += segment.index_paths()
                elif closes:
                    paths += segment.unsynced_index_paths()
            paths += [self._producers.snapshot_path(offset) for offset in snapshots]
        if closes:
            # After a clean shutdown, the next start trusts all indexes.
            paths += [
                path
                for one in self._segments
                if one.indexes_were_rebuilt
                for path in one.unsynced_index_paths()
            ]
        if self._tail_needs_sync and not is_written:
            paths.append(active.log_path)
        if epochs.needs_sync:
            paths.append(epochs.path)
        if self._metadata_needs_sync:
            paths.append(join(self._directory, PARTITION_METADATA))
        if self._is_new and not closes:
            directories.append(self._directory.rpartition("/")[0])
        if epochs.needs_sync or snapshots or self._is_new or active.base_offset != self._synced_base:
            directories.append(self._directory)
        synced_base, truncations, renames = active.base_offset, self._truncations, self._renames
        epochs_version, seen_ms = epochs.version, self._seen_ms
        metrics, timer = self._metrics, FlushTimer()

        # Reset these only now: another flush may finish first, and must sync the same files.
        def finish() -> None:
            if is_written:
                metrics.record(timer.duration_s)
            self._metadata_needs_sync = self._is_new = False
            epochs.synced_version = max(epochs.synced_version, epochs_version)
            self._producers.snapshots_synced(snapshots)
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end_offset)
                self._tail_needs_sync = self.awaits_sync = False
            self._flushed_ms = seen_ms
            if renames == self._renames:
                self._synced_base = max(self._synced_base, synced_base)

        return FlushTicket(self._disk, self._open_all(paths, timer), directories, end_offset, finish, timer)

    def _open_all(self, paths: Sequence[str], timer: FlushTimer) -> list[DiskFile]:
        """Open files to be synced. If there are too few descriptors, sync them one after another, now."""
        files: list[DiskFile] = []
        for path in dict.fromkeys(paths):
            try:
                file = self._disk.open(path)
            except ResourceShortage:
                for one in files:
                    timer.duration_s += one.sync()
                files.clear()
                file = self._disk.open(path)
            files.append(file)
        return files
