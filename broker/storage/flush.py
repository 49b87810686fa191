"""A flush in two halves: the waiting for the disk, which a worker does, and what the log makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.storage.disk import Disk, DiskFile


class FlushTicket:
    """What has to be synced for a log to be durable up to `end_offset`.

    The files were opened on the loop; `work` touches nothing else of the log, so it may run beside appends,
    rolls and deletions.
    """

    __slots__ = ("_directory", "_disk", "_files", "end_offset", "finish")

    def __init__(
        self,
        disk: Disk,
        files: Sequence[DiskFile],
        directory: str | None,
        end_offset: int,
        finish: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._files = files
        self._directory = directory
        self.end_offset = end_offset
        """Everything before it is durable once `finish` has been called."""
        self.finish = finish
        """To be called on the loop when `work` has returned: advances the recovery point."""

    def work(self) -> None:
        """Sync. May run in any thread. StorageError."""
        for file in self._files:
            file.sync()
        if self._directory is not None:
            self._disk.sync_directory(self._directory)
