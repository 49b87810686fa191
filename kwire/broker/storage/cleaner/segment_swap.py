"""The replacement of segments by a compacted segment. A crash leaves the old segments or the new one in use.

    prepare    rename the new files from .cleaned to .swap
    sync       after a crash before this step, log recovery deletes the new segment; after a later crash, it
               completes the swap
    install    use the new segment in the log, and rename the old files to .deleted
    sync       otherwise a crash could leave an old segment beside the new segment, with the same offsets
    complete   remove the .swap suffix, from the log file last

The worker has already synced the new files. The two syncs of the directory may run in a thread. Meanwhile
readers open the new segment under its current name.
"""

from __future__ import annotations

from kwire.broker.storage.cleaner.job import Cleaned
from kwire.broker.storage.disk import Disk, FileMissing
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.segment import CLEANED_SUFFIX, SUFFIXES, SWAP_SUFFIX, LogSegment


class SegmentSwap:
    """The replacement of the segments `old` by the segment in a report of the worker.

    All methods may raise StorageError. All except `sync` must run on the event loop.
    """

    def __init__(self, disk: Disk, log: Log, old: list[LogSegment], cleaned: Cleaned, now_ms: int) -> None:
        self._disk = disk
        self._log = log
        self._directory = log.directory
        self._old = old
        self._sizes = [segment.size_bytes for segment in old]
        self._cleaned = cleaned
        self._now_ms = now_ms
        self._installed: LogSegment | None = None

    @property
    def is_possible(self) -> bool:
        """Whether the log still exists and its segments are those that the worker has read."""
        log = self._log
        if log.failure is not None or log.directory != self._directory:
            return False
        present = {id(segment) for segment in log.segments[:-1]}
        return all(
            id(segment) in present and segment.size_bytes == size_bytes
            for segment, size_bytes in zip(self._old, self._sizes, strict=True)
        )

    def prepare(self) -> None:
        """Rename the new files to `.swap`, the log file last."""
        prefix = f"{self._directory}/{self._cleaned.base_offset:020d}"
        for suffix in reversed(SUFFIXES):
            try:
                self._disk.rename(prefix + suffix + CLEANED_SUFFIX, prefix + suffix + SWAP_SUFFIX)
            except FileMissing:
                continue

    def sync(self) -> None:
        """Make the new names durable. May run in any thread."""
        self._disk.sync_directory(self._directory)

    def install(self) -> None:
        """Replace the old segments of the log by the new segment."""
        cleaned = self._cleaned
        segment = LogSegment(
            self._disk,
            self._directory,
            cleaned.base_offset,
            self._log.config,
            size_bytes=cleaned.size_bytes,
            created_ms=self._now_ms,
            roll_jitter_ms=0,
            suffix=SWAP_SUFFIX,
        )
        segment.set_max_timestamp(cleaned.max_timestamp, cleaned.offset_of_max_timestamp)
        self._log.replace_segments(self._old, segment)
        self._installed = segment

    def complete(self) -> None:
        """Remove the `.swap` suffix, unless the log has meanwhile deleted the segment."""
        segment = self._installed
        if segment is None or self._log.failure is not None:
            return
        self._installed = None
        if any(present is segment for present in self._log.segments):
            segment.remove_suffix()

    def undo(self) -> None:
        """Delete the new segment's files. Must not be called after `install`."""
        prefix = f"{self._directory}/{self._cleaned.base_offset:020d}"
        for file_suffix in (CLEANED_SUFFIX, SWAP_SUFFIX):
            for suffix in SUFFIXES:
                self._disk.remove(prefix + suffix + file_suffix)
