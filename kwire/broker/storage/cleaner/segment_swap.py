"""A compacted segment takes the place of those it was made from, so that a crash leaves the old or the new.

    prepare   .cleaned becomes .swap          until then recovery throws the new segment away
    sync      the names are durable           from here on recovery finishes what is begun
    install   the log reads the new segment; the old files are set aside, to be removed later
    sync      none of the old comes back      were one to lie beside the new, offsets would be there twice
    settle    .swap goes, the log's own last

The files were synced by the worker. What waits for the disk is the two syncs, and these may be done in a
thread; whoever reads in between finds the segment under the names that it has at the time.
"""

from __future__ import annotations

from kwire.broker.storage.cleaner.job import Cleaned
from kwire.broker.storage.disk import Disk, FileMissing
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.segment import CLEANED_SUFFIX, SUFFIXES, SWAP_SUFFIX, LogSegment


class SegmentSwap:
    """One exchange. Every step runs on the loop, but for `sync`; each may raise StorageError."""

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
        """Whether the log is still there, and has the segments unchanged that were read."""
        log = self._log
        if log.failure is not None or log.directory != self._directory:
            return False
        present = {id(segment) for segment in log.segments[:-1]}
        return all(
            id(segment) in present and segment.size_bytes == size_bytes
            for segment, size_bytes in zip(self._old, self._sizes, strict=True)
        )

    def prepare(self) -> None:
        """Say that the new segment is complete. The log's name comes last, as in every step."""
        prefix = f"{self._directory}/{self._cleaned.base_offset:020d}"
        for suffix in reversed(SUFFIXES):
            try:
                self._disk.rename(prefix + suffix + CLEANED_SUFFIX, prefix + suffix + SWAP_SUFFIX)
            except FileMissing:
                continue

    def sync(self) -> None:
        """Make the names durable. In any thread."""
        self._disk.sync_directory(self._directory)

    def install(self) -> None:
        """Let the log read the new segment, and none of the old."""
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
        """Give the new segment its final names, unless the log has dropped it by now."""
        segment = self._installed
        if segment is None or self._log.failure is not None:
            return
        self._installed = None
        if any(present is segment for present in self._log.segments):
            segment.remove_suffix()

    def undo(self) -> None:
        """Throw the new segment's files away; not after `install`."""
        prefix = f"{self._directory}/{self._cleaned.base_offset:020d}"
        for file_suffix in (CLEANED_SUFFIX, SWAP_SUFFIX):
            for suffix in SUFFIXES:
                self._disk.remove(prefix + suffix + file_suffix)
