"""The checkpoint files of a log directory: what they say, and how they come to say something else.

    written    the new content lies beside the old, synced      in a worker
    placed     it has the old one's name                        on the loop
    named      it has it after a loss of power, too             in a worker

Who cannot go on before it is done writes at once instead. What is under way then is older, and gets no place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from kwire.broker.storage.checkpoints import OffsetCheckpoints, encode_offsets
from kwire.broker.storage.disk import TEMPORARY_SUFFIX, Disk, FileMissing, StorageError, failure_in, join
from kwire.broker.storage.log.log import Log
from kwire.host.host import Host
from kwire.wire.primitives import TopicPartition

T = TypeVar("T")
Offsets = Mapping[TopicPartition, int]
OnWritten = Callable[[StorageError | None], None]
"""Told that it is done (None), or why not."""

_NEXT_SUFFIX = ".next" + TEMPORARY_SUFFIX


class CheckpointFiles:
    """Some checkpoint files of one directory, each an offset for each of its partitions."""

    def __init__(self, disk: Disk, directory: str, wanted: Callable[[str], Mapping[str, Offsets]]) -> None:
        """`wanted` tells what the files of a directory should say now, by their names."""
        self._disk = disk
        self._directory = directory
        self._wanted = wanted
        self._on_disk: dict[str, Offsets] = {}
        """What a file says, durably; a file of which that is not known is not there."""
        self.checkpointed: set[TopicPartition] = set()
        """The partitions that a file may tell of, were the broker to die now."""
        self._is_writing = False
        self._waiting: list[OnWritten] = []
        """Who wants what is under way to be done once more."""
        self._sync_writes = 0

    def read(self, name: str, offsets: Offsets) -> None:
        """A file was found to say this."""
        self._on_disk[name] = offsets
        self.checkpointed.update(offsets)

    def write_now(self) -> None:
        """Have the files say what is so, durably, before this returns. StorageError."""
        self._sync_writes += 1
        wanted = self._wanted(self._directory)
        for name, offsets in self._changed(wanted).items():
            self._on_disk.pop(name, None)  # nobody knows what a write leaves that fails
            self._disk.replace(join(self._directory, name), encode_offsets(offsets), sync=True)
            self._on_disk[name] = offsets
        self.checkpointed = _partitions(wanted)

    def write(self, host: Host, then: OnWritten) -> None:
        """Have the files say what is so; whoever asks while that is under way has it done once more."""
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
        self._is_writing = False
        again, self._waiting = self._waiting, []
        if error is not None:
            waiting, again = [*waiting, *again], []
        for then in waiting:
            then(error)
        if again:
            self._start(host, again)

    def _changed(self, wanted: Mapping[str, Offsets]) -> dict[str, Offsets]:
        """The files that do not say what they should.

        The others are looked at: a directory that nobody writes to is found to have gone, all the same.
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
    """Have them all say what is so: `written` is told of each, `then` of the end."""
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
    """What the files of a directory are to say that has these logs."""
    places = {(log.topic, log.partition): log for log in logs}
    return OffsetCheckpoints(
        recovery_points={place: log.recovery_point for place, log in places.items()},
        # Only where it differs from where the first segment starts, as Kafka does.
        log_start_offsets={
            place: log.log_start_offset
            for place, log in places.items()
            if log.log_start_offset > log.segment_base_offsets[0]
        },
        high_watermarks={place: log.high_watermark for place, log in places.items()},
    ).by_file()


def _partitions(files: Mapping[str, Offsets]) -> set[TopicPartition]:
    return {place for offsets in files.values() for place in offsets}
