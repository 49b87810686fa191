"""The offset checkpoint files of a log directory, and their replacement without blocking the event loop.

    write     write the new content to a temporary file and sync it    in a worker
    rename    rename the temporary file to the checkpoint's name       on the event loop
    sync      sync the directory                                       in a worker

`write_now` replaces the files on the event loop instead. A replacement whose first step is still running in a
worker then ends without the rename, because its content is outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from kwire.broker.storage.checkpoints import OffsetCheckpoints, encode_offsets
from kwire.broker.storage.disk import (
    SHORTAGE_RETRY_MS,
    TEMPORARY_SUFFIX,
    Disk,
    FileMissing,
    ResourceShortage,
    StorageError,
    failure_in,
    join,
)
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host
from kwire.wire.primitives import TopicPartition

T = TypeVar("T")
Offsets = Mapping[TopicPartition, int]
OnWritten = Callable[[StorageError | None], None]
"""Called with None after a successful write, or with the error of the write."""

_NEXT_SUFFIX = ".next" + TEMPORARY_SUFFIX


class CheckpointFiles:
    """The checkpoint files of one directory. Each file has one offset per partition."""

    def __init__(self, disk: Disk, directory: str, wanted: Callable[[str], Mapping[str, Offsets]]) -> None:
        """`wanted(directory)` returns the offsets that each file should have now, by file name."""
        self._disk = disk
        self._directory = directory
        self._wanted = wanted
        self._on_disk: dict[str, Offsets] = {}
        """The durable content of each file. A file whose content is unknown is missing here."""
        self.checkpointed: set[TopicPartition] = set()
        """The partitions that a checkpoint file could contain if the broker crashed now."""
        self._is_writing = False
        self._waiting: list[OnWritten] = []
        """The callbacks of the next write, which starts when the current write ends."""
        self._sync_writes = 0

    def record_initial(self, name: str, offsets: Offsets) -> None:
        """Record the offsets that a file had when the broker started. The caller has read the file."""
        self._on_disk[name] = offsets
        self.checkpointed.update(offsets)

    def write_now(self) -> None:
        """Write the outdated files and sync them before returning. Raises StorageError."""
        self._sync_writes += 1
        wanted = self._wanted(self._directory)
        for name, offsets in self._changed(wanted).items():
            self._on_disk.pop(name, None)  # if the write fails, the content is unknown
            self._disk.replace(join(self._directory, name), encode_offsets(offsets), sync=True)
            self._on_disk[name] = offsets
        self.checkpointed = _partitions(wanted)

    def write(self, host: Host, then: OnWritten) -> None:
        """Write the outdated files in workers, then call `then` on the event loop.

        If a write is in progress, the new write starts after its success; after a failure, `then` gets the
        error. A write that finds too few descriptors or too little memory is tried again.
        """
        if self._is_writing:
            self._waiting.append(then)
        else:
            self._start(host, [then])

    def _start(self, host: Host, waiting: list[OnWritten]) -> None:
        wanted = self._wanted(self._directory)
        try:
            changed = self._changed(wanted)
        except StorageError as error:
            self._end(host, waiting, error)
            return
        if not changed:
            self._end(host, waiting, None)
            return
        disk, directory, version = self._disk, self._directory, self._sync_writes
        self._is_writing = True
        self.checkpointed |= _partitions(changed)

        def work() -> None:
            for name, offsets in changed.items():
                disk.write(join(directory, name + _NEXT_SUFFIX), encode_offsets(offsets), sync=True)

        def written(result: object) -> None:
            error = failure_in(result)
            if error is not None or version != self._sync_writes:
                self._end(host, waiting, error)
                return
            try:
                for name in changed:
                    self._on_disk.pop(name, None)
                    disk.rename(join(directory, name + _NEXT_SUFFIX), join(directory, name))
            except StorageError as failure:
                self._end(host, waiting, failure)
                return
            host.run_in_worker(partial(disk.sync_directory, directory), named)

        def named(result: object) -> None:
            if not isinstance(result, BaseException) and version == self._sync_writes:
                self._on_disk.update(changed)
                self.checkpointed = _partitions(wanted)
            self._end(host, waiting, failure_in(result))

        host.run_in_worker(work, written)

    def _end(self, host: Host, waiting: list[OnWritten], error: StorageError | None) -> None:
        if isinstance(error, ResourceShortage):
            self._is_writing = True
            host.schedule(SHORTAGE_RETRY_MS, partial(self._start, host, waiting))
            return
        self._is_writing = False
        again, self._waiting = self._waiting, []
        if error is not None:
            waiting, again = [*waiting, *again], []
        for then in waiting:
            then(error)
        if again:
            self._start(host, again)

    def _changed(self, wanted: Mapping[str, Offsets]) -> dict[str, Offsets]:
        """Return the new content of the outdated files. Raises StorageError.

        The other files are accessed, too, so that a failed disk is noticed even if nothing has to be written.
        """
        return {
            name: offsets
            for name, offsets in wanted.items()
            if self._on_disk.get(name) != offsets or not self._exists(name)
        }

    def _exists(self, name: str) -> bool:
        try:
            self._disk.size(join(self._directory, name))
        except FileMissing:
            return False
        return True


def write_checkpoint_files(
    files: Mapping[T, CheckpointFiles],
    host: Host,
    written: Callable[[T, StorageError | None], None],
    then: Callable[[], None],
) -> None:
    """Write the outdated files of several directories in workers.

    Call `written` for each directory, with its key in `files` and its error or None, and `then` at the end.
    """
    left = dict(files)

    def done(which: T, error: StorageError | None) -> None:
        written(which, error)
        del left[which]
        if not left:
            then()

    if not left:
        then()
    for which, one in files.items():
        one.write(host, partial(done, which))


def checkpoint_offsets(logs: Iterable[Log]) -> Mapping[str, Offsets]:
    """Return the offsets of the logs in a directory, by the name of the checkpoint file that has them."""
    by_partition = {(log.topic, log.partition): log for log in logs}
    return OffsetCheckpoints(
        recovery_points={partition: log.recovery_point for partition, log in by_partition.items()},
        # As in Kafka, the log start offset is stored only if it differs from the first segment's base offset.
        log_start_offsets={
            partition: log.log_start_offset
            for partition, log in by_partition.items()
            if log.log_start_offset != log.segment_base_offsets[0]
        },
        high_watermarks={partition: log.high_watermark for partition, log in by_partition.items()},
    ).by_file()


def _partitions(files: Mapping[str, Offsets]) -> set[TopicPartition]:
    return {partition for offsets in files.values() for partition in offsets}
