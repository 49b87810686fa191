"""A copy on its way to the place of its log, for which it serves already. KIP-113.

The copy is made durable, the old directory leaves its place, and when that is durable the copy takes it. So
the partition has two directories in their places at no time, not even after a loss of power: no broker starts
on these. Of a copy without the old directory, a start makes what was intended.

Only an old directory that fails just then cannot leave. Should its disk come back, somebody has to say which
of the two it is, as with Apache Kafka.

Whoever dies before the old directory has left for good finds that one, without what was appended meanwhile:
nobody is told of this before the end (`Log.has_unrecoverable_records`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from kwire.broker.storage.dirs.log_dir import LogDirectory
from kwire.broker.storage.disk import Disk, StorageError, join
from kwire.broker.storage.log.log import Log
from kwire.wire.named_tuple import NamedTuple

Work = Callable[[], None]
"""What waits for a disk, in any thread. StorageError."""


class ReplacedLog(NamedTuple):
    """The log that is replaced."""

    log: Log
    directory: LogDirectory
    deleted_path: str
    """What its directory is to be called."""


class LogReplacement:
    """One copy. Everything but the works runs on the loop; nothing raises."""

    def __init__(
        self,
        disk: Disk,
        log: Log,
        directory: LogDirectory,
        place: str,
        old: ReplacedLog | None,
        *,
        on_failed: Callable[[LogDirectory, StorageError], None],
        on_old_removed: Callable[[ReplacedLog], None],
    ) -> None:
        """`place` is the path it is to have. `on_old_removed`: no start finds the old log from here on.

        StorageError: the copy has failed.
        """
        self.log = log
        self._disk = disk
        self._directory = directory
        self._place = place
        self._old = old
        self._on_failed = on_failed
        self._on_old_removed = on_old_removed
        self._ticket = log.begin_replacement()
        self._generator: Generator[Work, StorageError | None] | None = self._steps()
        self._work: Work | None = next(self._generator)

    def __repr__(self) -> str:
        return f"Arrival({self.log.directory} at {self._place})"

    @property
    def work(self) -> Work | None:
        """What a disk has to do next; None where it is over, one way or the other."""
        return self._work

    def done(self, error: StorageError | None) -> None:
        """The disk has done it, or has failed."""
        if self._generator is not None:
            try:
                self._work = self._generator.send(error)
            except StopIteration:
                self._generator = self._work = None

    def finish(self) -> None:
        """Wait for the disks here, for all that is left to do."""
        while (work := self._work) is not None:
            try:
                work()
            except StorageError as error:
                self.done(error)
            else:
                self.done(None)

    def abandon(self) -> None:
        """The log is deleted: so is the one that it replaces, if that is there. It goes no further."""
        old, self._generator, self._work = self._old, None, None
        if old is not None:
            self._rename_old(old)
            self._on_old_removed(old)

    def _steps(self) -> Generator[Work, StorageError | None]:
        old, log = self._old, self.log
        if self._has_failed(self._directory, (yield self._ticket.work)):
            return  # the next start finds the old one
        if old is not None:
            self._rename_old(old)
            # A directory that fails is gone, as far as this life can tell.
            self._has_failed(old.directory, (yield old.directory.sync))
        try:
            if log.failure is None:
                self._disk.rename(log.directory, self._place)
                log.update_directory(self._place)
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
