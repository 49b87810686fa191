"""Deletion of renamed files and directories after `file.delete.delay.ms`."""

from __future__ import annotations

from kwire.broker.storage.disk import Disk, FileMissing, StorageError
from kwire.broker.storage.log.segment import DELETED_SUFFIX
from kwire.host.loggers import STORAGE_LOGGER, NodeLogger

MAX_REMOVALS_PER_TICK = 8
"""A removal blocks the event loop, for some milliseconds if it removes a directory."""


class DelayedDeletion:
    """The files and directories that are to be deleted later, for all logs of a broker."""

    def __init__(self, disk: Disk, logger: NodeLogger = STORAGE_LOGGER) -> None:
        self._logger = logger
        self._disk = disk
        self._arrived: list[tuple[int, str, bool]] = []
        """(delay_ms, path, is_directory) for each path that was added since the last tick."""
        self._due: list[tuple[int, str, bool]] = []
        """(due_ms, path, is_directory) for the other paths."""

    def __len__(self) -> int:
        return len(self._arrived) + len(self._due)

    def rename_files(self, paths: list[str], delay_ms: int) -> None:
        """Add the suffix `.deleted` to files of a log, and delete them later. Raises StorageError.

        Missing files are skipped.
        """
        for path in paths:
            renamed = path + DELETED_SUFFIX
            try:
                self._disk.rename(path, renamed)
            except FileMissing:
                continue
            self._arrived.append((delay_ms, renamed, False))

    def add_directory(self, path: str, delay_ms: int) -> None:
        """Delete a directory later. The caller has already renamed it."""
        self._arrived.append((delay_ms, path, True))

    def update_directory(self, old: str, new: str) -> None:
        """Update the paths of the files to delete in a directory that was renamed from `old` to `new`."""
        for arrivals in (self._arrived, self._due):
            arrivals[:] = [
                (when_ms, new + path.removeprefix(old) if path.startswith(f"{old}/") else path, is_directory)
                for when_ms, path, is_directory in arrivals
            ]

    def tick(self, now_ms: int) -> bool:
        """Delete the files and directories that are due, up to a limit; return whether more are due.

        Failures are logged. The next start of the broker deletes the remaining files.
        """
        if self._arrived:
            self._due += [(now_ms + delay_ms, path, tree) for delay_ms, path, tree in self._arrived]
            self._arrived = []
        if not self._due:
            return False
        left = MAX_REMOVALS_PER_TICK
        more = False
        keep: list[tuple[int, str, bool]] = []
        for due_ms, path, is_directory in self._due:
            if due_ms > now_ms or not left:
                more = more or due_ms <= now_ms
                keep.append((due_ms, path, is_directory))
                continue
            left -= 1
            try:
                if is_directory:
                    self._disk.remove_tree(path)
                else:
                    self._disk.remove(path)
            except StorageError as error:
                self._logger.error("Cannot delete %s, will retry at the next start: %s", path, error)
        self._due = keep
        return more
