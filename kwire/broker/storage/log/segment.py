"""A segment: a file of batches and its indexes. The last segment of a log is the active segment.

A segment keeps no file descriptor. Each operation gets the file from the disk's handle cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain

from kwire.broker.storage.disk import Disk, DiskFile, FileMissing, join
from kwire.broker.storage.log.index import (
    MAX_RELATIVE_OFFSET,
    CorruptIndex,
    InvalidOffset,
    OffsetIndex,
    TimeIndex,
)
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.scan import BatchLocation, InvalidBatch, scan_headers
from kwire.broker.storage.log.transaction_index import (
    AbortedTxn,
    append_aborted_txn,
    read_aborted_txns,
    truncate_aborted_txns,
)
from kwire.broker.storage.log.worker_reads import WorkerReads
from kwire.wire.batch import NO_TIMESTAMP, read_header, records
from kwire.wire.named_tuple import NamedTuple

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""The suffix of a compacted segment that is being written. Log recovery deletes it."""
SWAP_SUFFIX = ".swap"
"""The suffix of a complete compacted segment that replaces other segments. Log recovery completes the
swap."""
_MAX_SEARCHED_BATCH_BYTES = 256 * 1024 * 1024
"""The maximum size of a batch that is decompressed to find a timestamp."""


class TimestampOffset(NamedTuple):
    """A record's timestamp in ms, offset, and leader epoch (-1 if unknown)."""

    timestamp: int
    offset: int
    leader_epoch: int


class LogSegment:
    """A `.log` file and its indexes, starting at `base_offset`.

    Methods that read the `.log` file raise StorageError or InvalidBatch.
    """

    __slots__ = (
        "_aborted",
        "_disk",
        "_first_timestamp",
        "_index_was_checked",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "index",
        "index_interval_bytes",
        "indexes_were_rebuilt",
        "log_path",
        "roll_jitter_ms",
        "size_bytes",
        "time_index",
        "transaction_index_needs_sync",
        "was_trimmed",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        size_bytes: int,
        created_ms: int,
        roll_jitter_ms: int,
        suffix: str = "",
    ) -> None:
        """Wrap existing files. `suffix` is `.cleaned` or `.swap` for a compacted segment not in use yet."""
        prefix = f"{directory}/{base_offset:020d}"
        self._disk = disk
        self.base_offset = base_offset
        self.log_path = prefix + LOG_SUFFIX + suffix
        self.index = OffsetIndex(disk, prefix + INDEX_SUFFIX + suffix, base_offset)
        self.time_index = TimeIndex(disk, prefix + TIME_INDEX_SUFFIX + suffix, base_offset)
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.bytes_since_index_entry = 0
        self._aborted: list[AbortedTxn] | None = None
        self.transaction_index_needs_sync = False
        """Whether the transaction index was changed since the segment was opened. It may not be durable."""
        self.was_trimmed = False
        """Whether preallocated space was removed since the segment was opened. The removal may not be
        durable."""
        self.indexes_were_rebuilt = False
        """Whether the indexes were rebuilt since the segment was opened. They may not be durable."""
        self._first_timestamp: int | None = None
        self._index_was_checked = False
        self._max_timestamp: int | None = None
        self._offset_of_max_timestamp = base_offset

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        roll_jitter_ms: int,
    ) -> LogSegment:
        """Create the files of a new active segment. Raises StorageError."""
        segment = cls(
            disk,
            directory,
            base_offset,
            config,
            size_bytes=0,
            created_ms=now_ms,
            roll_jitter_ms=roll_jitter_ms,
        )
        disk.open(segment.log_path, create=True).truncate(config.segment_bytes if config.preallocate else 0)
        segment.index.create(config.segment_index_bytes)
        segment.time_index.create(config.segment_index_bytes)
        segment._max_timestamp = NO_TIMESTAMP
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.log_path}, {self.size_bytes} bytes)"

    @property
    def file(self) -> DiskFile:
        """The `.log` file, opened through the handle cache."""
        return self._disk.open(self.log_path)

    def update_directory(self, directory: str) -> None:
        """Update the paths after the log's directory was renamed."""
        self.log_path, self.index.path, self.time_index.path = (
            join(directory, path.rpartition("/")[2])
            for path in (self.log_path, self.index.path, self.time_index.path)
        )

    @property
    def paths(self) -> list[str]:
        """The paths of all files that the segment may have."""
        prefix, _, file_suffix = self.log_path.rpartition(LOG_SUFFIX)
        return [prefix + suffix + file_suffix for suffix in SUFFIXES]

    @property
    def _transaction_index_path(self) -> str:
        prefix, _, file_suffix = self.log_path.rpartition(LOG_SUFFIX)
        return prefix + TRANSACTION_INDEX_SUFFIX + file_suffix

    def aborted(self) -> list[AbortedTxn]:
        """Return the transactions whose abort markers are in this segment, as a read-only list."""
        if self._aborted is None:
            self._aborted = read_aborted_txns(self._disk, self._transaction_index_path)
        return self._aborted

    def add_aborted(self, entries: Iterable[AbortedTxn]) -> None:
        """Add transactions whose abort markers were just written. Raises StorageError."""
        known = self.aborted()
        for entry in entries:
            self.transaction_index_needs_sync = True
            append_aborted_txn(self._disk, self._transaction_index_path, entry)
            known.append(entry)

    def set_aborted(self, entries: list[AbortedTxn]) -> None:
        """Replace the transaction index by the entries that log recovery found. Raises StorageError."""
        self._disk.remove(self._transaction_index_path)
        self._aborted = []
        self.add_aborted(entries)

    def index_paths(self) -> list[str]:
        """Return the paths of all existing index files, including the transaction index.

        Raises StorageError.
        """
        paths = [self.index.path, self.time_index.path]
        if self.aborted():
            paths.append(self._transaction_index_path)
        return paths

    def index_files(self) -> list[DiskFile]:
        """Open all existing index files. Raises StorageError."""
        return [self._disk.open(path) for path in self.index_paths()]

    def unsynced_index_paths(self) -> list[str]:
        """Return the paths of the index files that were changed since they were loaded."""
        paths = [index.path for index in (self.index, self.time_index) if index.needs_sync]
        if self.transaction_index_needs_sync and self._disk.exists(self._transaction_index_path):
            paths.append(self._transaction_index_path)
        return paths

    # --- appending

    def should_roll(
        self,
        config: LogConfig,
        size_bytes: int,
        max_timestamp: int,
        last_offset: int,
        staged_bytes: int,
        now_ms: int,
    ) -> bool:
        """Return whether the segment has to roll before an append with these properties.

        `size_bytes` is the size of the append, `staged_bytes` that of all appends that are staged already.
        """
        held_bytes = self.size_bytes + staged_bytes
        if held_bytes > config.segment_bytes - size_bytes:
            return True
        if held_bytes:
            first_timestamp = self.first_timestamp()
            # Without timestamps, the time since the creation of the segment counts.
            waited_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms
            if waited_ms > config.max_segment_ms - self.roll_jitter_ms:
                return True
        return (
            self.index.is_full
            or self.time_index.is_full
            or not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
        )

    def first_timestamp(self) -> int:
        """Return the greatest timestamp of the first append, or -1 if the segment is empty."""
        if self._first_timestamp is None:
            if not self.size_bytes:
                return NO_TIMESTAMP
            first = next(scan_headers(self.file, 0, self.size_bytes), None)
            self._first_timestamp = first.max_timestamp if first else NO_TIMESTAMP
        return self._first_timestamp

    def set_first_timestamp(self, max_timestamp: int) -> None:
        """Set the greatest timestamp of the segment's first append, which is being staged."""
        self._first_timestamp = max_timestamp

    def update_after_append(
        self, size_bytes: int, last_offset: int, max_timestamp: int, offset_of_max: int
    ) -> None:
        """Update size, indexes and timestamps after an append was written to the file."""
        position = self.size_bytes
        largest, offset_of_largest = self.max_timestamp_entry()
        if max_timestamp > largest:
            self.set_max_timestamp(max_timestamp, offset_of_max)
            largest, offset_of_largest = max_timestamp, offset_of_max
        if self.bytes_since_index_entry > self.index_interval_bytes:
            self.index.append(last_offset, position)
            self.time_index.maybe_append(largest, offset_of_largest)
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += size_bytes
        self.size_bytes = position + size_bytes

    def open_for_appends(self, config: LogConfig) -> None:
        """Make this existing segment the active one. Raises StorageError."""
        try:
            self.index.open_for_appends(config.segment_index_bytes)
            self.time_index.open_for_appends(config.segment_index_bytes)
        except (CorruptIndex, FileMissing):
            self.rebuild_indexes()
            self.index.open_for_appends(config.segment_index_bytes)
            self.time_index.open_for_appends(config.segment_index_bytes)

    def become_inactive(self) -> None:
        """Add the last time index entry and remove preallocated space: the log rolls or is closed."""
        if self._max_timestamp is not None:
            self.time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
        self.index.finish()
        self.time_index.finish()
        if self._disk.size(self.log_path) != self.size_bytes:
            self.file.truncate(self.size_bytes)
            self.was_trimmed = True

    # --- lookups

    def max_timestamp_entry(self) -> tuple[int, int]:
        """Return the greatest timestamp, and the last offset of the first batch with that timestamp."""
        if self._max_timestamp is None:
            try:
                self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry
            except (CorruptIndex, FileMissing):
                self.rebuild_indexes()
                assert self._max_timestamp is not None
        return self._max_timestamp, self._offset_of_max_timestamp

    def set_max_timestamp(self, timestamp: int, offset: int) -> None:
        """Set the greatest timestamp, and the last offset of the first batch with that timestamp."""
        self._max_timestamp, self._offset_of_max_timestamp = timestamp, offset

    def largest_timestamp(self) -> int:
        """Return the greatest timestamp, or the file's modification time if there are no timestamps."""
        largest = self.max_timestamp_entry()[0]
        return largest if largest >= 0 else self._disk.modified_ms(self.log_path)

    def position_before(self, offset: int) -> int:
        """Return the position of a batch at or before the one that contains `offset`.

        Invalid indexes are rebuilt.
        """
        try:
            position = self.index.lookup(offset)
            if position < self.size_bytes or position == 0:
                return position
        except (CorruptIndex, FileMissing):
            pass
        self.rebuild_indexes()
        return self.index.lookup(offset)

    def find(self, offset: int) -> BatchLocation | None:
        """Return the batch with `offset`, or the first batch after `offset`, or None if there is neither."""
        for location in self._locations_for(offset):
            if location.last_offset >= offset:
                return location
        return None

    def _locations_for(self, offset: int) -> Iterator[BatchLocation]:
        """Yield the batches from an indexed position at or before `offset`, after a check of the index entry.

        An index has no checksum. Without the check, a flipped bit could make a read skip records silently.
        """
        position = self.position_before(offset)
        locations = scan_headers(self.file, position, self.size_bytes)
        if not position or self._index_was_checked:
            return locations
        try:
            first = next(locations, None)
        except InvalidBatch:
            first = None
        if first is not None and self.base_offset <= first.base_offset <= offset:
            return chain((first,), locations)
        # Do not check again: another rebuild of the index does not help if the log file itself is damaged.
        self._index_was_checked = True
        self.rebuild_indexes()
        return scan_headers(self.file, self.position_before(offset), self.size_bytes)

    def next_offset(self) -> int:
        """Return the offset after the last batch. Raises InvalidBatch if the last batch is incomplete."""
        next_offset = self.base_offset
        if not self.size_bytes:
            return next_offset
        try:
            last_indexed = self.index.last_offset
        except (CorruptIndex, FileMissing):
            last_indexed = self.base_offset
        indexed = self.find(last_indexed)
        position = indexed.position if indexed else 0
        for location in scan_headers(self.file, position, self.size_bytes):
            next_offset = location.last_offset + 1
            position = location.next_position
        if position != self.size_bytes:
            raise InvalidBatch(position, "incomplete batch")
        return next_offset

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """Return the first record from `start_offset` on with this timestamp or a later one, or None.

        Also raises CorruptBatch.
        """
        position = self.timestamp_position(timestamp, start_offset)
        for location in scan_headers(self.file, position, self.size_bytes):
            if location.max_timestamp >= timestamp and location.last_offset >= start_offset:
                found = self._first_record(location, timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def timestamp_position(self, timestamp: int, start_offset: int) -> int:
        """Return the position from which `find_timestamp` searches."""
        try:
            indexed = self.time_index.lookup(timestamp)
        except (CorruptIndex, FileMissing):
            self.rebuild_indexes()
            indexed = self.time_index.lookup(timestamp)
        return self.position_before(max(indexed, start_offset))

    def warm_index(self, index: OffsetIndex | TimeIndex, reads: WorkerReads) -> None:
        """Raise ReadPending if a worker has to read an index of this inactive segment ahead."""
        with suppress(FileMissing):
            file = self._disk.open(index.path)
            reads.warm(index.path, file, 0, file.size())

    def warm_batches(self, position: int, reads: WorkerReads) -> None:
        """Raise ReadPending if a worker has to read the batches at a position ahead."""
        if position < self.size_bytes:
            size = min(self.index_interval_bytes, self.size_bytes - position)
            reads.warm(self.log_path, self.file, position, size)

    def find_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the greatest timestamp, or None. Also raises CorruptBatch."""
        timestamp, offset = self.max_timestamp_entry()
        for location in scan_headers(self.file, self.position_before(offset), self.size_bytes):
            if location.max_timestamp == timestamp:
                return self._first_record(location, timestamp, self.base_offset)
        return None

    def _first_record(
        self, location: BatchLocation, timestamp: int, start_offset: int
    ) -> TimestampOffset | None:
        batch = memoryview(self.file.read_at(location.position, location.size_bytes))
        header = read_header(batch, 0)
        for record in records(batch, 0, header, max_bytes=_MAX_SEARCHED_BATCH_BYTES):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(record.timestamp, record.offset, location.leader_epoch)
        return None

    # --- truncating, renaming and rebuilding

    def remove_suffix(self) -> None:
        """Remove the suffix `.swap`, from the log file last, because its suffix marks an incomplete swap."""
        prefix, _, file_suffix = self.log_path.rpartition(LOG_SUFFIX)
        for suffix in reversed(SUFFIXES):
            with suppress(FileMissing):
                self._disk.rename(prefix + suffix + file_suffix, prefix + suffix)
        self.log_path = prefix + LOG_SUFFIX
        self.index.path = prefix + INDEX_SUFFIX
        self.time_index.path = prefix + TIME_INDEX_SUFFIX

    def truncate_to(self, offset: int, config: LogConfig, now_ms: int) -> None:
        """Truncate the segment to `offset` and make it the active one."""
        location = self.find(offset)
        self.index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index_needs_sync = True
        truncate_aborted_txns(self._disk, self._transaction_index_path, offset)
        self._aborted = None
        if location is not None:
            self.file.truncate(location.position)
            self.size_bytes = location.position
        self.open_for_appends(config)
        if not self.size_bytes:
            self.created_ms = now_ms
            self._first_timestamp = None
        self.bytes_since_index_entry = 0
        largest, offset_of_largest = self.time_index.last_entry
        for remaining in scan_headers(self.file, self.position_before(offset_of_largest), self.size_bytes):
            if remaining.max_timestamp > largest:
                largest, offset_of_largest = remaining.max_timestamp, remaining.last_offset
        self.set_max_timestamp(largest, offset_of_largest)

    def rebuild_indexes(self) -> None:
        """Rebuild the offset and time indexes. Raises StorageError, or InvalidBatch if the log is damaged."""
        self.indexes_were_rebuilt = True
        rebuilding = self.begin_rebuild()
        for location in scan_headers(self.file, 0, self.size_bytes):
            try:
                if not 0 <= location.last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
                    raise InvalidOffset(f"offset {location.last_offset} is out of the segment's range")
                rebuilding.add(location)
            except InvalidOffset as error:
                raise InvalidBatch(location.position, str(error)) from error
        rebuilding.finish()

    def begin_rebuild(self) -> IndexRebuild:
        """Empty the offset and time indexes; return an object that rebuilds them batch by batch."""
        return IndexRebuild(self)


class IndexRebuild:
    """The rebuilding of a segment's offset and time indexes from its batches, in offset order."""

    __slots__ = ("_segment", "_was_active", "indexed_position")

    def __init__(self, segment: LogSegment) -> None:
        self._segment = segment
        self.indexed_position = 0
        self._was_active = segment.index.max_entries, segment.time_index.max_entries
        segment.index.create(0)
        segment.time_index.create(0)
        segment.set_max_timestamp(NO_TIMESTAMP, segment.base_offset)

    @property
    def interval_bytes(self) -> int:
        """The minimum distance in bytes between indexed batches."""
        return self._segment.index_interval_bytes

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of the batches that were added."""
        return self._segment.max_timestamp_entry()[0]

    def add(self, location: BatchLocation) -> None:
        """Add the next batch. Raises InvalidOffset if offsets are not ascending.

        The caller may omit a batch if its timestamp is not above `largest_timestamp` and no index entry is
        due.
        """
        segment = self._segment
        if location.max_timestamp > segment.max_timestamp_entry()[0]:
            segment.set_max_timestamp(location.max_timestamp, location.last_offset)
        if location.position - self.indexed_position > segment.index_interval_bytes:
            segment.index.append(location.last_offset, location.position)
            segment.time_index.maybe_append(*segment.max_timestamp_entry())
            self.indexed_position = location.position

    def finish(self) -> None:
        """Write the last entries and trim the files. Open the indexes of an active segment for appends."""
        segment = self._segment
        segment.time_index.maybe_append(*segment.max_timestamp_entry())
        segment.index.finish()
        segment.time_index.finish()
        entries, time_entries = self._was_active
        if entries:
            segment.index.open_for_appends(entries * 8)
            segment.time_index.open_for_appends(time_entries * 12)
