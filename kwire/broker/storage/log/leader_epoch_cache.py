"""Which leader epoch appended which offsets. KIP-101, KIP-279.

Each entry is an epoch and the offset of its first record. Epochs and start offsets both grow strictly; an
assignment that contradicts later entries removes them.

The file is replaced at each change but not synced with it: what a loss of power takes away are entries of
records that were not flushed either, or that recovery finds again in the batches, of the whole log if need
be. Flushing the log syncs it.
"""

from __future__ import annotations

from bisect import bisect_right

from kwire.broker.storage.checkpoints import LEADER_EPOCHS, CorruptCheckpoint, read_epochs, write_epochs
from kwire.broker.storage.disk import Disk, join
from kwire.host.loggers import STORAGE_LOGGER, NodeLogger
from kwire.wire.batch import NO_LEADER_EPOCH, NO_OFFSET


class LeaderEpochFileCache:
    """The epochs of one log, in its `leader-epoch-checkpoint`."""

    __slots__ = (
        "_disk",
        "_entries",
        "_logger",
        "_path",
        "_written",
        "is_corrupt",
        "needs_save",
        "needs_sync",
    )

    def __init__(self, disk: Disk, directory: str, logger: NodeLogger = STORAGE_LOGGER) -> None:
        self._logger = logger
        self._disk = disk
        self._path = join(directory, LEADER_EPOCHS)
        self._entries: list[tuple[int, int]] = []
        self._written: list[tuple[int, int]] = []
        self.needs_sync = False
        """Whether the file was replaced since it was last synced."""
        self.needs_save = False
        """Whether an epoch has begun that the file does not tell."""
        self.is_corrupt = False
        """Whether the file was there and made no sense."""

    def load(self) -> None:
        """Read the file. A garbled one counts as empty: opening finds the epochs again. StorageError."""
        try:
            stored = read_epochs(self._disk, self._path)
            self.is_corrupt = False
        except CorruptCheckpoint as error:
            self._logger.warning("%s: the leader epochs are read from the batches instead", error)
            stored, self.is_corrupt = [], True
        self._entries = []
        for epoch, start_offset in stored:
            self.assign_in_memory(epoch, start_offset)
        self._written = stored

    @property
    def path(self) -> str:
        return self._path

    def update_directory(self, directory: str) -> None:
        """The log's directory was renamed."""
        self._path = join(directory, LEADER_EPOCHS)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Epochs with their start offsets, oldest first."""
        return list(self._entries)

    @property
    def latest(self) -> int | None:
        return self._entries[-1][0] if self._entries else None

    @property
    def earliest(self) -> tuple[int, int] | None:
        return self._entries[0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """The records from `start_offset` on are of this epoch, unless it is negative. StorageError."""
        if epoch < 0:
            return
        entries = self._entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:
            return
        self.assign_in_memory(epoch, start_offset)
        self.save()

    def begin(self, epoch: int, start_offset: int) -> None:
        """A leader of this epoch goes on at `start_offset`. To be saved before its first record is written.

        An epoch without a record need not be told: whoever loads the file forgets it. A broker with thousands
        of quiet logs leads them anew at each start, and would write each of their files.
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
        """Note an epoch if it is newer than all that is known, as recovery does for each batch it reads."""
        latest = self.latest
        if epoch > (NO_LEADER_EPOCH if latest is None else latest):
            self.assign_in_memory(epoch, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch that is at most `epoch`, and where it ended; -1, -1 when it cannot be told."""
        entries = self._entries
        if epoch == NO_LEADER_EPOCH or not entries:
            return NO_LEADER_EPOCH, NO_OFFSET
        if entries[-1][0] == epoch:
            return epoch, log_end_offset
        after = bisect_right(entries, epoch, key=_epoch)
        if after == len(entries):
            return NO_LEADER_EPOCH, NO_OFFSET
        end_offset = entries[after][1]
        # Before the first known epoch: its records are gone, and whoever asks goes on from our start.
        return (entries[after - 1][0] if after else epoch), end_offset

    def epoch_for(self, offset: int) -> int | None:
        """The epoch that the record at `offset` was appended in."""
        after = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[after - 1][0] if after else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at `end_offset` or beyond. StorageError."""
        entries = self._entries
        if not entries or entries[-1][1] < end_offset:
            return
        while entries and entries[-1][1] >= end_offset:
            entries.pop()
        self.write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop what ended before `start_offset`; the epoch that holds it now starts there. StorageError."""
        entries = self._entries
        count = bisect_right(entries, start_offset, key=_start_offset)
        if not count or entries[count - 1] == (entries[0][0], start_offset):
            return
        entries[:count] = [(entries[count - 1][0], start_offset)]
        self.write()

    def drop_from(self, offset: int) -> None:
        """Drop the epochs that start at `offset` or beyond, without writing the file."""
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()

    def restrict_to(self, start_offset: int, end_offset: int) -> None:
        """Keep what lies within the log.

        The file is left as it is: whoever loads it again cuts it again, and the next epoch is written with
        the rest. A broker with thousands of empty logs starts without thousands of writes. What recovery
        has read from the log itself is to be saved.
        """
        self.drop_from(end_offset)
        count = bisect_right(self._entries, start_offset, key=_start_offset)
        if count:
            self._entries[:count] = [(self._entries[count - 1][0], start_offset)]

    def save(self) -> None:
        """Write the file if it says anything else, or nothing that makes sense. StorageError."""
        if self.is_corrupt or self._entries != self._written:
            self.write()
        self.needs_save = self.is_corrupt = False

    def clear(self) -> None:
        """Forget every epoch. StorageError."""
        self._entries.clear()
        self.write()

    def write(self) -> None:
        """Replace the file with what is known. StorageError."""
        write_epochs(self._disk, self._path, self._entries, sync=False)
        self._written = list(self._entries)
        self.needs_save = False
        self.needs_sync = True


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start_offset(entry: tuple[int, int]) -> int:
    return entry[1]
