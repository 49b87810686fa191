"""The leader epochs of a log with their start offsets. KIP-101, KIP-279.

Epochs and start offsets both grow strictly. Assigning an epoch removes the later entries that contradict it.

The file is replaced at each change, and synced when the log is flushed. So a power loss can only lose an
entry whose records were not flushed either, or whose records log recovery reads again.
"""

from __future__ import annotations

from bisect import bisect_right

from kwire.broker.storage.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, read_epochs, write_epochs
from kwire.broker.storage.disk import Disk, join
from kwire.host.loggers import STORAGE_LOGGER, NodeLogger
from kwire.wire.batch import NO_LEADER_EPOCH, NO_OFFSET


class LeaderEpochFileCache:
    """The leader epochs of one log, stored in `leader-epoch-checkpoint`."""

    __slots__ = (
        "_disk",
        "_entries",
        "_logger",
        "_path",
        "_written",
        "is_corrupt",
        "needs_save",
        "synced_version",
        "version",
    )

    def __init__(self, disk: Disk, directory: str, logger: NodeLogger = STORAGE_LOGGER) -> None:
        self._logger = logger
        self._disk = disk
        self._path = join(directory, LEADER_EPOCHS)
        self._entries: list[tuple[int, int]] = []
        self._written: list[tuple[int, int]] = []
        self.version = self.synced_version = 0
        """The number of times that the file was replaced, now and when it was last synced."""
        self.needs_save = False
        """Whether an epoch was started that is not in the file yet."""
        self.is_corrupt = False
        """Whether the file had invalid content."""

    def load(self) -> None:
        """Read the file. Raises StorageError.

        A corrupt file counts as empty, because the epochs can be read from the batches.
        """
        try:
            stored = read_epochs(self._disk, self._path)
            self.is_corrupt = False
        except CorruptCheckpoint as error:
            self._logger.warning("Rebuilding the leader epoch cache from the log: %s", error)
            stored, self.is_corrupt = [], True
        self._entries = []
        for epoch, start_offset in stored:
            self.assign_in_memory(epoch, start_offset)
        self._written = stored

    @property
    def path(self) -> str:
        return self._path

    @property
    def needs_sync(self) -> bool:
        """Whether the file may not be durable."""
        return self.version != self.synced_version

    def update_directory(self, directory: str) -> None:
        """Update the path after the log's directory was renamed."""
        self._path = join(directory, LEADER_EPOCHS)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """The epochs with their start offsets, oldest first."""
        return list(self._entries)

    @property
    def latest(self) -> int | None:
        return self._entries[-1][0] if self._entries else None

    @property
    def earliest(self) -> tuple[int, int] | None:
        return self._entries[0] if self._entries else None

    def begin(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at `start_offset`. The caller must `save` it before its first record is written.

        An epoch without records need not be in the file. A broker with thousands of idle logs thus avoids
        thousands of writes at each start.
        """
        self.assign_in_memory(epoch, start_offset)
        self.needs_save = True

    def assign_in_memory(self, epoch: int, start_offset: int) -> None:
        """Assign an epoch without writing the file."""
        entries = self._entries
        if epoch < 0 or start_offset < 0:
            return
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))

    def assign_if_newer(self, epoch: int, start_offset: int) -> None:
        """Assign an epoch in memory if it is later than all known epochs. Used by log recovery."""
        latest = self.latest
        if epoch > (NO_LEADER_EPOCH if latest is None else latest):
            self.assign_in_memory(epoch, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch` and its end offset, or (-1, -1) if unknown.

        If `epoch` is before the earliest epoch, return `epoch` and the start offset of the earliest epoch.
        """
        entries = self._entries
        if epoch == NO_LEADER_EPOCH or not entries:
            return NO_LEADER_EPOCH, NO_OFFSET
        if entries[-1][0] == epoch:
            return epoch, log_end_offset
        after = bisect_right(entries, epoch, key=_epoch)
        if after == len(entries):
            return NO_LEADER_EPOCH, NO_OFFSET
        end_offset = entries[after][1]
        return (entries[after - 1][0] if after else epoch), end_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after `end_offset`. Raises StorageError."""
        entries = self._entries
        if not entries or entries[-1][1] < end_offset:
            return
        while entries and entries[-1][1] >= end_offset:
            entries.pop()
        self.write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that ended before `start_offset`. Raises StorageError.

        If the earliest remaining epoch starts before `start_offset`, it then starts there.
        """
        entries = self._entries
        count = bisect_right(entries, start_offset, key=_start_offset)
        if not count or entries[count - 1] == (entries[0][0], start_offset):
            return
        entries[:count] = [(entries[count - 1][0], start_offset)]
        self.write()

    def drop_from(self, offset: int) -> None:
        """Remove the epochs that start at or after `offset`, without writing the file."""
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()

    def restrict_to(self, start_offset: int, end_offset: int) -> None:
        """Remove entries outside of the log's offset range, without writing the file.

        A broker with thousands of empty logs thus avoids thousands of writes at each start; the next load
        removes the same entries. The caller has to save entries that log recovery has read from the batches.
        """
        self.drop_from(end_offset)
        count = bisect_right(self._entries, start_offset, key=_start_offset)
        if count:
            self._entries[:count] = [(self._entries[count - 1][0], start_offset)]

    def save(self) -> None:
        """Write the file if its content differs from the epochs or is corrupt. Raises StorageError."""
        if self.is_corrupt or self._entries != self._written:
            self.write()
        self.needs_save = self.is_corrupt = False

    def clear(self) -> None:
        """Remove all epochs and write the file. Raises StorageError."""
        self._entries.clear()
        self.write()

    def write(self) -> None:
        """Replace the file without a sync. Raises StorageError."""
        write_epochs(self._disk, self._path, self._entries, sync=False)
        self._written = list(self._entries)
        self.needs_save = False
        self.version += 1


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start_offset(entry: tuple[int, int]) -> int:
    return entry[1]
