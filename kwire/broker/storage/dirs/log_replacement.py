"""The replacement of a log by its future log in another directory. KIP-113.

The future log serves the partition as soon as the replacement begins. The replacement has three steps:

1. Sync the future log.
2. Rename the old log's directory to a `-delete` name, and sync its parent directory.
3. Rename the future log's directory to the partition's name, and sync its parent directory.

The two directories never have the partition's name at the same time, not even after a power loss, because a
broker does not start with such directories. If a broker finds a future log but no current log when it starts,
it completes the replacement.

If the old log's disk fails in step 2, the old log's directory keeps the partition's name. After the disk is
repaired, an operator has to move one of the two directories away, as in Kafka.

After a crash before the end of step 2, the broker finds the old log, which lacks the records that were
appended since the beginning of the replacement. Therefore no record is acknowledged during the replacement
(`Log.has_unrecoverable_records`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.disk import Disk, StorageError, join
from kwire.broker.storage.log.log import Log
from kwire.wire.named_tuple import NamedTuple

Work = Callable[[], None]
"""A step that waits for a disk, to be run in any thread. Raises StorageError."""


class ReplacedLog(NamedTuple):
    """The log that is being replaced."""

    log: Log
    directory: LogDirectory
    deleted_path: str
    """The path with the suffix `-delete` to which the log's directory is renamed."""


class LogReplacement:
    """The replacement of one log by its future log. All methods must run on the event loop.

    Only the constructor and the function `work` raise StorageError. Other failures take a directory offline.
    """

    def __init__(
        self,
        disk: Disk,
        log: Log,
        directory: LogDirectory,
        final_path: str,
        old: ReplacedLog | None,
        *,
        on_failed: Callable[[LogDirectory, StorageError], None],
        on_old_removed: Callable[[ReplacedLog], None],
    ) -> None:
        """Begin to replace the log `old`, if there is one, by the future log `log` in `directory`.

        `final_path` is the partition's path in `directory`. `on_old_removed` is called when a restarted
        broker would no longer find the old log. Raises StorageError if the future log has failed.
        """
        self.log = log
        self._disk = disk
        self._directory = directory
        self._final_path = final_path
        self._old = old
        self._on_failed = on_failed
        self._on_old_removed = on_old_removed
        self._ticket = log.begin_replacement()
        self._generator: Generator[Work, StorageError | None] | None = self._steps()
        self._work: Work | None = next(self._generator)

    def __repr__(self) -> str:
        return f"LogReplacement({self.log.directory} to {self._final_path})"

    @property
    def work(self) -> Work | None:
        """The next step that waits for a disk, to be run in any thread; None if no step is left."""
        return self._work

    def done(self, error: StorageError | None) -> None:
        """Continue after `work` was run. `error` is the error that it raised, or None."""
        if self._generator is not None:
            try:
                self._work = self._generator.send(error)
            except StopIteration:
                self._generator = self._work = None

    def finish(self) -> None:
        """Run all remaining steps on the event loop."""
        while (work := self._work) is not None:
            try:
                work()
            except StorageError as error:
                self.done(error)
            else:
                self.done(None)

    def abandon(self) -> None:
        """Stop the replacement because the future log is being deleted, and delete the old log, too."""
        old, self._generator, self._work = self._old, None, None
        if old is not None:
            self._rename_old(old)
            self._on_old_removed(old)

    def _steps(self) -> Generator[Work, StorageError | None]:
        old, log = self._old, self.log
        if self._has_failed(self._directory, (yield self._ticket.work)):
            return  # the old log remains, and the next start of the broker finds it
        if old is not None:
            self._rename_old(old)
            # Continue even if the directory of the old log fails: the old log is offline then.
            self._has_failed(old.directory, (yield old.directory.sync))
        try:
            if log.failure is None:
                self._disk.rename(log.directory, self._final_path)
                log.update_directory(self._final_path)
        except StorageError as error:
            self._on_failed(self._directory, error)
        if log.failure is not None:
            if old is not None:
                self._restore_old(old)
                self._has_failed(old.directory, (yield old.directory.sync))
            return
        if old is not None:
            self._old = None
            self._on_old_removed(old)
        if not self._has_failed(self._directory, (yield self._directory.sync)):
            self._ticket.finish()

    def _has_failed(self, directory: LogDirectory, error: StorageError | None) -> bool:
        if error is not None:
            self._on_failed(directory, error)
        return directory.offline or self.log.failure is not None

    def _rename_old(self, old: ReplacedLog) -> None:
        if old.log.directory != old.deleted_path and not old.directory.offline:
            self._rename(old, old.deleted_path)

    def _restore_old(self, old: ReplacedLog) -> None:
        if old.log.directory == old.deleted_path and not old.directory.offline:
            self._rename(old, join(old.directory.path, old.log.name))

    def _rename(self, old: ReplacedLog, path: str) -> None:
        try:
            self._disk.rename(old.log.directory, path)
            old.log.directory = path
        except StorageError as error:
            self._on_failed(old.directory, error)
