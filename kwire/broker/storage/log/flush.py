"""What of a log is durable, and making the rest so.

A flush has two halves: the waiting for the disk, which a worker may do, and what the log makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kwire.broker.storage.checkpoints import (
    PARTITION_METADATA,
    TEMPORARY_PARTITION_METADATA,
    rename_partition_metadata,
)
from kwire.broker.storage.disk import Disk, DiskFile, join
from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.producer_state import ProducerStateManager
from kwire.broker.storage.log.segments import LogSegments


class FlushTicket:
    """What has to be synced for a log to be durable up to `end_offset`.

    The files were opened on the loop; `work` touches nothing else of the log, so it may run beside appends,
    rolls and deletions.
    """

    __slots__ = ("_directories", "_disk", "_files", "end_offset", "finish")

    def __init__(
        self,
        disk: Disk,
        files: Sequence[DiskFile],
        directories: Sequence[str],
        end_offset: int,
        finish: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._files = files
        self._directories = directories
        self.end_offset = end_offset
        """Everything before it is durable once `finish` has been called."""
        self.finish = finish
        """To be called on the loop when `work` has returned: advances the recovery point."""

    def work(self) -> None:
        """Sync. May run in any thread. StorageError."""
        for file in self._files:
            file.sync()
        for directory in self._directories:
            self._disk.sync_directory(directory)


class Durability:
    """How far a log is durable."""

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_flushed_ms",
        "_is_new",
        "_metadata_needs_sync",
        "_producers",
        "_renames",
        "_seen_ms",
        "_segments",
        "_synced_base",
        "_tail_needs_sync",
        "_truncations",
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
        *,
        recovery_point: int,
        lacks_partition_metadata: bool,
        metadata_needs_sync: bool,
        names_are_synced: bool,
        tail_needs_sync: bool,
    ) -> None:
        """`lacks_partition_metadata`: `partition.metadata` is written, and not placed yet.

        `metadata_needs_sync`: it was written, and the directory made, only just now.

        `names_are_synced`: the directory is as a clean shutdown has left it. `tail_needs_sync`: what was cut
        off the active segment may not be gone for good, so the next flush syncs it, whatever else it does.
        """
        self.recovery_point = recovery_point
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self.lacks_partition_metadata = lacks_partition_metadata
        """Whether the log cannot tell its topic's id yet, should the process die: it would be a stray's."""
        self.is_replacing = False
        """Whether it has taken the place of another, and a start after a crash may find that one."""
        self._is_new = metadata_needs_sync
        """Whether the name of the directory, and those in it, may not be durable."""
        self._metadata_needs_sync = (
            metadata_needs_sync and not lacks_partition_metadata
        )  # else it is synced before it is placed
        self._seen_ms: int | None = None
        """When somebody last asked whether a flush is due, in monotonic time."""
        self._flushed_ms: int | None = None
        self._synced_base = segments.active.base_offset if names_are_synced else -1
        self._tail_needs_sync = tail_needs_sync
        self.awaits_sync = False
        """Whether the log was cut, and a flush has to make that durable before anything is appended."""
        self._renames = 0
        self._truncations = 0

    def is_due(self, config: LogConfig, monotonic_ms: int) -> bool:
        """Whether flush.messages or flush.ms asks for a flush."""
        self._seen_ms = monotonic_ms
        if self._flushed_ms is None:
            self._flushed_ms = monotonic_ms
        unflushed = self._segments.end_offset - self.recovery_point
        return unflushed > 0 and (
            unflushed >= config.flush_messages or monotonic_ms - self._flushed_ms >= config.flush_ms
        )

    def on_truncated(self, offset: int) -> None:
        """The log now ends there. What is appended next is not what an unfinished flush will call durable."""
        self._truncations += 1
        self._tail_needs_sync = self.awaits_sync = True
        self.recovery_point = min(self.recovery_point, offset)

    def on_files_renamed(self) -> None:
        """Files of the log were renamed: the next flush makes that durable."""
        self._renames += 1
        self._synced_base = -1

    def begin_partition_metadata_flush(self) -> FlushTicket:
        """What is to be synced before the log can tell its topic's id for good. StorageError."""
        beside = self._disk.open(join(self._directory, TEMPORARY_PARTITION_METADATA))
        return FlushTicket(self._disk, [beside], (), self.recovery_point, self._rename_partition_metadata)

    def flush_partition_metadata(self) -> None:
        """Have the log tell its topic's id from here on, unless it does. StorageError."""
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
        """Whether a start after a crash would take it for the partition's log."""
        return not (self.lacks_partition_metadata or self.is_replacing)

    def update_directory(self, directory: str) -> None:
        """The directory was renamed; who did so makes that durable."""
        self._directory = directory

    def begin_flush(self) -> FlushTicket:
        """What is to be synced for all that is in the files now, of a log that has its name. StorageError."""
        assert self.is_recoverable, f"{self._directory} is not in its place yet"
        return self._ticket(closes=False)

    def begin_replacement(self) -> FlushTicket:
        """The same, of a log that is on its way to the place of another until that is called finished."""
        ticket = self.begin_flush()
        flushed = ticket.finish

        def replaced() -> None:
            self.is_replacing = False
            flushed()

        ticket.finish = replaced
        self.is_replacing = True
        return ticket

    def begin_close(self) -> FlushTicket:
        """Leave the files as a clean shutdown does; what is to be synced then. StorageError.

        Of a log that nobody has written to since it was opened, nothing is opened or synced. The directory
        above, which has the name of the log's own, is left to the caller: it is the same for all logs in it.
        """
        self.flush_partition_metadata()
        self._segments.active.become_inactive()
        return self._ticket(closes=True)

    def _ticket(self, *, closes: bool) -> FlushTicket:
        epochs, active = self._epochs, self._segments.active
        end_offset = self._segments.end_offset
        is_written = end_offset > self.recovery_point
        files: list[DiskFile] = []
        directories: list[str] = []
        snapshots: list[str] = []
        if is_written or closes:
            for segment in self._segments.unsynced_from(self.recovery_point):
                if is_written or segment.was_trimmed:
                    files.append(segment.file)
                if is_written and segment is not active:
                    files += segment.index_files()
                elif closes:
                    files += segment.unsynced_index_files()
            snapshots = self._producers.take_unsynced_paths()
            files += [self._disk.open(path) for path in snapshots]
        if closes:
            # The next start trusts them all.
            files += [
                file
                for one in self._segments
                if one.indexes_were_rebuilt
                for file in one.unsynced_index_files()
            ]
        if self._tail_needs_sync and not is_written:
            files.append(active.file)
        if epochs.needs_sync:
            files.append(self._disk.open(epochs.path))
        if self._metadata_needs_sync:
            files.append(self._disk.open(join(self._directory, PARTITION_METADATA)))
        if self._is_new and not closes:
            directories.append(self._directory.rpartition("/")[0])
        if epochs.needs_sync or snapshots or self._is_new or active.base_offset != self._synced_base:
            directories.append(self._directory)
        epochs.needs_sync = False
        synced_base, truncations, renames = active.base_offset, self._truncations, self._renames
        seen_ms = self._seen_ms

        # Until then another flush, which may be done sooner, has to sync the same.
        def finish() -> None:
            self._metadata_needs_sync = self._is_new = False
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, end_offset)
                self._tail_needs_sync = self.awaits_sync = False
            self._flushed_ms = seen_ms
            if renames == self._renames:
                self._synced_base = max(self._synced_base, synced_base)

        return FlushTicket(self._disk, files, directories, end_offset, finish)
