"""Cleaning a log: reading the keys of its dirty part, and rewriting each group of segments as one segment.

This module changes no existing file of the log. New files are synced before they are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

from kwire.broker.storage.cleaner.backward_key_scan import BackwardKeyScan, BackwardScanFilter
from kwire.broker.storage.cleaner.batch_filter import BatchFilter, CleaningRules, LastRecord
from kwire.broker.storage.cleaner.batch_reader import (
    TRANSACTIONAL_OR_CONTROL,
    FileRange,
    ReadBatch,
    Throttle,
    batches_backward,
    batches_in,
    no_throttle,
    plain_ranges,
)
from kwire.broker.storage.cleaner.batch_rebuild import REMOVED, decompressed_records
from kwire.broker.storage.cleaner.cleaned_transactions import CleanedTransactionMetadata, marker_kind
from kwire.broker.storage.cleaner.job import Cleaned, Done, Job
from kwire.broker.storage.cleaner.offset_map import OffsetMap, OffsetMapFilter
from kwire.broker.storage.disk import Disk, DiskFile, FileMissing
from kwire.broker.storage.log.index import MAX_RELATIVE_OFFSET, CorruptIndex, OffsetIndex
from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.scan import BatchLocation
from kwire.broker.storage.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    LogSegment,
)
from kwire.broker.storage.log.transaction_index import AbortedTxn, read_aborted_txns
from kwire.wire.batch import BatchHeader, CorruptBatch, crc_is_valid, read_header
from kwire.wire.primitives import Buffer

Sync = Callable[[Sequence[DiskFile]], Callable[[], None]]
"""Begins to sync files, and returns a function that waits until they are durable. Both may raise
StorageError."""
Source = tuple[int, int]
"""The base offset and the size of a segment."""

MIN_RECORDS_PER_BATCH: Final = 4
"""From this average number of records per batch on, a backward scan is faster."""
FILE_RANGE_BYTES: Final = 200
"""The memory for the position of a range of adjacent batches."""


def sync_at_once(files: Sequence[DiskFile]) -> Callable[[], None]:
    """Sync files before returning. The returned function has nothing left to wait for."""
    for file in files:
        file.sync()
    return lambda: None


class LogRewriter:
    """The cleaning of one log, as a job describes it."""

    def __init__(
        self,
        job: Job,
        disk: Disk,
        *,
        throttle: Throttle = no_throttle,
        set_modified: Callable[[str, int], None] = lambda path, modified_ms: None,
        sync: Sync = sync_at_once,
    ) -> None:
        """`set_modified` sets a file's modification time, for retention of records without timestamps."""
        self._job = job
        self._disk = disk
        self._throttle = throttle
        self._set_modified = set_modified
        self._sync = sync
        self._config = LogConfig(index_interval_bytes=job.index_interval_bytes)
        self._indexes: dict[int, list[AbortedTxn]] = {}
        """The transaction indexes that were already read, by base offset."""
        self.bytes_before = 0
        self.bytes_kept = 0

    def run(self) -> Iterator[Cleaned | Done]:
        """Clean the log. Yield each new segment after it has become durable, and Done at the end.

        Raises StorageError or CorruptBatch.
        """
        job = self._job
        rules = CleaningRules(
            job.now_ms,
            job.delete_retention_ms,
            job.first_dirty_offset,
            job.upper_bound_offset,
            {
                producer_id: LastRecord(last_offset, epoch)
                for producer_id, last_offset, epoch in job.last_records
            },
        )
        batches: BatchFilter
        key_scan = self._scan_backward()
        if key_scan is not None:
            end_offset, keys = job.upper_bound_offset, len(key_scan.keys)
            batches = BackwardScanFilter(key_scan, rules, self._transactions)
        else:
            offset_map = OffsetMap(job.map_bytes)
            self._build_offset_map(offset_map)
            end_offset, keys = offset_map.latest_offset + 1, len(offset_map.latest)
            batches = OffsetMapFilter(offset_map, rules, self._transactions)
        unsynced: tuple[Cleaned, Callable[[], None]] | None = None
        for group in self._group_segments_by_size(
            [source for source in self._cleanable if source[0] < end_offset]
        ):
            rewritten = self._clean_group(group, batches)
            if unsynced is not None:
                cleaned, synced = unsynced
                synced()
                yield cleaned
            unsynced = rewritten
        if unsynced is not None:
            cleaned, synced = unsynced
            synced()
            yield cleaned
        yield Done(
            end_offset,
            self.bytes_before,
            self.bytes_kept,
            batches.records_read,
            batches.records_kept,
            keys,
            key_scan is not None,
        )

    @property
    def _cleanable(self) -> list[Source]:
        return [source for source in self._job.segments if source[0] < self._job.upper_bound_offset]

    @cached_property
    def _next_base(self) -> dict[int, int]:
        """The end of each segment's offset range, by base offset."""
        bases = [base_offset for base_offset, _ in self._cleanable]
        return dict(zip(bases, [*bases[1:], self._job.upper_bound_offset], strict=True))

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self._job.directory}/{base_offset:020d}{suffix}"

    def _batches(self, source: Source) -> Iterator[ReadBatch]:
        """Yield the batches of a segment. Raises CorruptBatch if the offsets of a batch are out of range.

        No CRC covers the base offset. A wrong base offset could mark other batches as superseded, or other
        transactions as aborted, even in earlier segments. CRCs are checked here only for batches whose
        records may not be read later: markers, transactional data and empty batches.
        """
        base_offset, size_bytes = source
        file = self._disk.open(self._path(base_offset, LOG_SUFFIX))
        next_offset = base_offset
        greatest_offset = min(base_offset + MAX_RELATIVE_OFFSET, self._next_base[base_offset] - 1)
        for data, at, header in batches_in(file, size_bytes, self._job.read_bytes, self._throttle):
            if not next_offset <= header.base_offset <= header.last_offset <= greatest_offset:
                raise CorruptBatch(
                    f"a batch with offsets {header.base_offset} to {header.last_offset}, expected "
                    f"{next_offset} to {greatest_offset}"
                )
            unread = header.attributes & TRANSACTIONAL_OR_CONTROL or not header.records_count
            if unread and not crc_is_valid(data, at, header):
                raise CorruptBatch(f"the batch at offset {header.base_offset} has a wrong CRC")
            next_offset = header.next_offset
            yield data, at, header

    # --- keys

    @property
    def _dirty(self) -> list[Source]:
        sources, start = self._cleanable, self._job.first_dirty_offset
        return sources[
            max((number for number, source in enumerate(sources) if source[0] <= start), default=0) :
        ]

    def _scan_backward(self) -> BackwardKeyScan | None:
        """Read the keys of the dirty part backward, or return None if a forward scan is necessary."""
        job = self._job
        if not job.scan_backward:
            return None
        found: list[tuple[str, FileRange]] = []
        batches = records = 0
        try:
            for base_offset, size_bytes in self._dirty:
                path = self._path(base_offset, LOG_SUFFIX)
                file = self._disk.open(path)
                divided = plain_ranges(
                    file, base_offset, size_bytes, job.read_bytes, job.first_dirty_offset, self._throttle
                )
                if divided is None or divided.end_offset > self._next_base[base_offset]:
                    return None
                found += [(path, file_range) for file_range in divided.file_ranges]
                batches += divided.batches
                records += divided.records
            if records < MIN_RECORDS_PER_BATCH * batches:
                return None
            return self._scan_ranges(found)
        except CorruptBatch:
            # The corrupt batch may be beyond the part that fits into an offset map.
            return None

    def _scan_ranges(self, found: list[tuple[str, FileRange]]) -> BackwardKeyScan | None:
        key_scan = BackwardKeyScan(self._job.map_bytes - len(found) * FILE_RANGE_BYTES)
        for path, file_range in reversed(found):
            self._throttle(file_range[1] - file_range[0])
            for data, at, header in batches_backward(self._disk.open(path), file_range):
                key_scan.add_previous_batch(data, at, header)
                if key_scan.is_too_large:
                    return None
        return key_scan

    def _build_offset_map(self, offset_map: OffsetMap) -> None:
        """Add the keys of the dirty part to the map until the map is full. Raises CorruptBatch."""
        job = self._job
        start = job.first_dirty_offset
        transactions: CleanedTransactionMetadata | None = None
        sources = self._dirty
        entered_at = self._position_of(sources[0], start)
        for source in sources:
            end = 0
            for data, at, header in self._batches(source):
                end += header.size_bytes
                is_dirty = header.last_offset >= start
                # Earlier batches matter only for transactions, and only from the indexed position on.
                if not is_dirty and end <= entered_at:
                    continue
                if header.attributes & TRANSACTIONAL_OR_CONTROL and transactions is None:
                    transactions = self._transactions(sources[0][0])
                    # The markers of these transactions may be before the indexed position.
                    offset_map.uncertain_producers = {
                        entry.producer_id
                        for entry in self._aborted(sources[0][0])
                        if entry.last_offset < start
                    }
                if header.is_control:
                    assert transactions is not None
                    transactions.on_control_batch_read(header, marker_kind(data, at, header))
                elif (
                    transactions is not None
                    and header.is_transactional
                    and transactions.on_batch_read(header)
                ):
                    pass  # aborted data supersedes nothing
                elif is_dirty:
                    payload, begin, after = decompressed_records(data, at, header)
                    offset_map.add(payload, begin, after, header.base_offset, header.records_count, start)
                    if offset_map.is_full:
                        return
                if is_dirty:
                    offset_map.latest_offset = header.last_offset
            # The segment may end with a gap in the offsets.
            offset_map.latest_offset = self._next_base[source[0]] - 1

    def _position_of(self, source: Source, offset: int) -> int:
        """Return a position at or before the batch with `offset`; 0 if there is no usable index."""
        try:
            return OffsetIndex(self._disk, self._path(source[0], INDEX_SUFFIX), source[0]).lookup(offset)
        except (FileMissing, CorruptIndex):
            return 0

    # --- transactions

    def _transactions(self, base_offset: int = 0) -> CleanedTransactionMetadata:
        """Return the aborted transactions in the indexes of all segments from `base_offset` on.

        A transaction that starts in the cleaned part has ended, but its marker may be in a later segment. So
        the indexes of later segments are read, too.
        """
        bases = (base for base, _ in self._job.segments if base >= base_offset)
        known = chain.from_iterable(map(self._aborted, bases))
        return CleanedTransactionMetadata(known, self._job.log_start_offset)

    def _aborted(self, base_offset: int) -> list[AbortedTxn]:
        """Return the transaction index of a segment, which is read once. Raises StorageError."""
        known = self._indexes.get(base_offset)
        if known is None:
            known = read_aborted_txns(self._disk, self._path(base_offset, TRANSACTION_INDEX_SUFFIX))
            self._indexes[base_offset] = known
        return known

    # --- segments

    def _group_segments_by_size(self, sources: list[Source]) -> Iterator[list[Source]]:
        """Yield groups of adjacent segments.

        By their current file sizes, each group fits into one segment.
        """
        job = self._job
        group: list[Source] = []
        used = [0, 0, 0]
        limits = (job.segment_bytes, job.segment_index_bytes, job.segment_index_bytes)
        for number, source in enumerate(sources):
            base_offset, size_bytes = source
            sizes = [
                size_bytes,
                self._size(self._path(base_offset, INDEX_SUFFIX)),
                self._size(self._path(base_offset, TIME_INDEX_SUFFIX)),
            ]
            after = sources[number + 1][0] if number + 1 < len(sources) else job.upper_bound_offset
            together = [before + size for before, size in zip(used, sizes, strict=True)]
            if group and (
                any(size > limit for size, limit in zip(together, limits, strict=True))
                or (size_bytes and after - 1 - group[0][0] > MAX_RELATIVE_OFFSET)
            ):
                yield group
                group, together = [], sizes
            group.append(source)
            used = together
        if group:
            yield group

    def _size(self, path: str) -> int:
        try:
            return self._disk.size(path)
        except FileMissing:
            return 0

    def _clean_group(
        self, group: list[Source], batches: BatchFilter
    ) -> tuple[Cleaned, Callable[[], None]] | None:
        """Write the remaining batches of a group of segments to one segment.

        Return the segment, and a function that waits until its files are durable. Return None if the group
        is a single segment that would not change.
        """
        target = _CleanedSegment(self._disk, self._job.directory, group[0][0], self._config, self._throttle)
        changed = len(group) > 1
        for source in group:
            chunk = b""
            begin = end = 0
            for data, at, header in self._batches(source):
                if data is not chunk:
                    target.copy(chunk, begin, end)
                    target.write()
                    chunk, begin, end = data, 0, 0
                left = batches.filter_batch(data, at, header)
                if left is None:
                    if at != end:
                        target.copy(chunk, begin, end)
                        begin = at
                    end = at + header.size_bytes
                    target.add(header, header.size_bytes, header.max_timestamp)
                else:
                    changed = True
                    target.copy(chunk, begin, end)
                    begin = end = at + header.size_bytes
                    if left is not REMOVED:
                        target.add_rewritten(left)
            target.copy(chunk, begin, end)
            target.write()
        target.transactions = batches.take_kept_transactions()
        # A transaction that ended before the log start may lose its index entry although its marker is kept.
        changed = changed or target.transactions != self._aborted(group[0][0])
        self.bytes_before += sum(size_bytes for _, size_bytes in group)
        self.bytes_kept += target.segment.size_bytes
        if not changed:
            target.remove()
            return None
        modified_ms = self._disk.modified_ms(self._path(group[-1][0], LOG_SUFFIX))
        files = target.finish()
        self._set_modified(target.segment.log_path, modified_ms)
        segment = target.segment
        max_timestamp, offset_of_max = segment.max_timestamp_entry()
        cleaned = Cleaned(
            segment.base_offset,
            [base_offset for base_offset, _ in group],
            segment.size_bytes,
            max_timestamp,
            offset_of_max,
        )
        return cleaned, self._sync(files)


class _CleanedSegment:
    """A `.cleaned` segment that is being written."""

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, config: LogConfig, throttle: Throttle
    ) -> None:
        self.segment = LogSegment(
            disk,
            directory,
            base_offset,
            config,
            size_bytes=0,
            created_ms=0,
            roll_jitter_ms=0,
            suffix=CLEANED_SUFFIX,
        )
        self.transactions: list[AbortedTxn] = []
        self._disk = disk
        self._throttle = throttle
        self._file = disk.open(self.segment.log_path, create=True)
        self._file.truncate(0)
        disk.remove(self._transaction_index_path)
        self._indexes = self.segment.begin_rebuild()
        self._position = 0
        self._buffers: list[Buffer] = []

    @property
    def _transaction_index_path(self) -> str:
        return self.segment.paths[-1]

    def add(self, header: BatchHeader, size_bytes: int, max_timestamp: int) -> None:
        """Add a batch to the indexes only. For an unchanged batch, `copy` adds its bytes."""
        self._indexes.add(
            BatchLocation(
                self._position,
                size_bytes,
                header.base_offset,
                header.last_offset,
                max_timestamp,
                header.leader_epoch,
            )
        )
        self._position += size_bytes

    def copy(self, data: bytes, begin: int, end: int) -> None:
        """Add a range of unchanged batches to the bytes to write."""
        if begin < end:
            self._buffers.append(memoryview(data)[begin:end])

    def add_rewritten(self, batch: Buffer) -> None:
        """Add a rebuilt batch to the indexes and to the bytes to write."""
        header = read_header(batch)
        self.add(header, len(batch), header.max_timestamp)
        self._buffers.append(batch)

    def write(self) -> None:
        """Write the collected bytes to the file."""
        if not self._buffers:
            return
        size_bytes = sum(map(len, self._buffers))
        self._file.write_at(self.segment.size_bytes, self._buffers)
        self.segment.size_bytes += size_bytes
        self._buffers = []
        self._throttle(size_bytes)

    def finish(self) -> list[DiskFile]:
        """Complete the files, and return those that the caller must sync."""
        assert self._position == self.segment.size_bytes
        self._indexes.finish()
        files = [self._file, *self.segment.index_files()]
        if self.transactions:
            content = b"".join(entry.encode() for entry in self.transactions)
            self._disk.write(self._transaction_index_path, content, sync=True)
        return files

    def remove(self) -> None:
        for path in self.segment.paths:
            self._disk.remove(path)
