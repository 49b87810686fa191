"""The segments of one log in offset order, and lookups across them. Kafka's LogSegments.

The last segment is active. Most reads start or end at a recent append. So the positions of the last few
writes are remembered, and these reads need no search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from kwire.broker.storage.disk import DiskFile
from kwire.broker.storage.file_region import NO_FILE, FileRegion
from kwire.broker.storage.log.segment import LogSegment, TimestampOffset
from kwire.broker.storage.log.transaction_index import AbortedTxn, collect_aborted_txns
from kwire.broker.storage.log.worker_reads import WorkerReads

_REMEMBERED_WRITES = 16
"""The maximum number of remembered write positions."""
_LENGTH_FIELD_POSITION = 8
_BYTES_BEFORE_LENGTH_COUNTS = 12


EMPTY = FileRegion(NO_FILE, 0, 0)
INCOMPLETE = FileRegion(NO_FILE, 0, 0)
"""The region that a read returns instead of a batch that exceeds the size limit."""


class LogSegments:
    """The segments of one log, at least one. They do not contain staged appends.

    Lookups raise StorageError or InvalidBatch.
    """

    __slots__ = ("_largest_rolled", "_segments", "_write_positions", "active", "bases", "end_offset")

    def __init__(self, segments: Iterable[LogSegment], end_offset: int) -> None:
        self._segments = list(segments)
        self.bases = [segment.base_offset for segment in self._segments]
        """The base offsets of the segments. Callers must not modify the list."""
        self.active = self._segments[-1]
        self.end_offset = end_offset
        """The offset after the last batch in the files."""
        self._write_positions: dict[int, tuple[LogSegment, int]] = {}
        self._largest_rolled: LogSegment | None = None

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """The size of all segments in bytes, without their indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    # --- adding and removing segments

    def add(self, segment: LogSegment) -> None:
        """Add a segment and make it the active one."""
        self._segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._largest_rolled = None

    def remove(self, removed: Iterable[LogSegment]) -> None:
        """Remove segments. The caller must delete their files, and `add` a segment if none is left."""
        bases = {segment.base_offset for segment in removed}
        self._segments = [segment for segment in self._segments if segment.base_offset not in bases]
        self.bases = [segment.base_offset for segment in self._segments]
        if self._segments:
            self.active = self._segments[-1]
        self.forget_positions()

    def replace(self, removed: Iterable[LogSegment], new: LogSegment) -> None:
        """Replace adjacent inactive segments by a segment that has the base offset of the first of them."""
        bases = {segment.base_offset for segment in removed}
        kept = [segment for segment in self._segments if segment.base_offset not in bases]
        kept.insert(bisect_left(kept, new.base_offset, key=lambda segment: segment.base_offset), new)
        self._segments = kept
        self.bases = [segment.base_offset for segment in kept]
        self.forget_positions()

    def forget_positions(self) -> None:
        """Forget the remembered positions after a truncation or a change of the log start offset."""
        self._write_positions.clear()
        self._largest_rolled = None

    def forget_lookups(self) -> None:
        """Free the cached blocks of the indexes, up to 1.5 KiB each."""
        for segment in self._segments:
            segment.index.forget_lookup()
            segment.time_index.forget_lookup()

    def remember_write_position(self) -> None:
        """Remember the end of the active segment as the position of the next batch."""
        positions = self._write_positions
        positions[self.end_offset] = (self.active, self.active.size_bytes)
        if len(positions) > _REMEMBERED_WRITES:
            del positions[next(iter(positions))]

    # --- lookups

    def segments_from(self, offset: int) -> list[LogSegment]:
        """Return the segments that may have records at or after `offset`, at least the last segment."""
        return self._segments[max(0, bisect_right(self.bases, offset) - 1) :]

    def unsynced_from(self, recovery_point: int) -> list[LogSegment]:
        """Return the segments with records after the recovery point, and the segment that ends at it."""
        return self._segments[max(0, bisect_left(self.bases, recovery_point) - 1) :]

    def warm(self, offset: int, reads: WorkerReads) -> None:
        """Raise ReadPending if a worker has to read ahead what the `region` of an offset needs."""
        segment = self.segments_from(offset)[0]
        segment.warm_index(segment.index, reads)
        segment.warm_batches(segment.position_before(offset), reads)

    def region(self, offset: int, up_to_offset: int, max_bytes: int, *, at_least_one: bool) -> FileRegion:
        """Return the bytes from the batch that contains `offset`. See `ReadableLog.read`."""
        if offset >= min(up_to_offset, self.end_offset):
            return EMPTY
        found = self._locate(offset)
        if found is None:
            return EMPTY
        segment, position = found
        size_bytes = self._position_within(segment, up_to_offset) - position
        if size_bytes <= 0:
            return EMPTY
        file = segment.file
        if size_bytes > max_bytes:
            least_bytes = _batch_bytes(file, position)
            if not at_least_one and max_bytes < least_bytes:
                return INCOMPLETE if max_bytes else EMPTY
            size_bytes = min(size_bytes, max(max_bytes, least_bytes))
        return FileRegion(file, position, size_bytes)

    def aborted(self, offset: int, region: FileRegion, stable_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions for a read_committed consumer of a region that starts at `offset`.

        `stable_offset` is the last stable offset. As in Kafka, an empty region also has aborted transactions
        if `offset` is below it. The end of the region is looked up in the index, as in Kafka. So the result
        may include transactions that start after the region.
        """
        if offset >= stable_offset or not any(segment.aborted() for segment in self.segments_from(offset)):
            return []
        found = self._locate(offset)
        if found is None:
            return []
        segment, position = found
        number = bisect_right(self.bases, segment.base_offset)
        upper_bound = segment.index.offset_at(position + region.size_bytes)
        if upper_bound is None:
            upper_bound = self.bases[number] if number < len(self.bases) else self.end_offset
        aborted: list[AbortedTxn] = []
        for later in self._segments[number - 1 :]:
            entries, is_all = collect_aborted_txns(later.aborted(), offset, upper_bound)
            aborted += entries
            if is_all:
                break
        return aborted

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """Return the size in bytes of the batches between two offsets."""
        up_to_offset = min(up_to_offset, self.end_offset)
        found = self._locate(offset) if offset < up_to_offset else None
        if found is None:
            return 0
        segment, position = found
        if up_to_offset <= segment.base_offset:
            return 0
        first = bisect_right(self.bases, segment.base_offset)
        last = bisect_right(self.bases, up_to_offset - 1)
        if last <= first:
            return max(0, self._position_within(segment, up_to_offset) - position)
        between = self._segments[first : last - 1]
        return (
            segment.size_bytes
            - position
            + sum(later.size_bytes for later in between)
            + self._position_within(self._segments[last - 1], up_to_offset)
        )

    def known_position(self, region: FileRegion, offset: int) -> tuple[int, int] | None:
        """Return the result of `find_position`, or None if that takes a search.

        `region` is the result of a read of `offset`. Only positions in the active segment are returned.
        """
        active = self.active
        if offset < active.base_offset:
            return None
        if region.size_bytes:
            return active.base_offset, region.position
        return (active.base_offset, active.size_bytes) if offset >= self.end_offset else None

    def find_position(self, offset: int) -> tuple[int, int]:
        """Return where a read of `offset` starts: the segment's base offset, and the position in its file.

        In a compacted log, this may be in a later segment than `offset`.
        """
        if offset < self.end_offset:
            found = self._locate(offset)
            segment, position = (self.active, self.active.size_bytes) if found is None else found
        else:
            segment = self._segments[max(0, bisect_right(self.bases, offset) - 1)]
            position = segment.size_bytes
        return segment.base_offset, position

    def bytes_from_position(self, base: int, position: int, up_to_offset: int) -> int | None:
        """Return the number of bytes from a position in the segment with base offset `base` to an offset.

        Return None if the offset is in another segment.
        """
        number = bisect_right(self.bases, up_to_offset) - 1
        if number < 0 or self.bases[number] != base:
            return None
        return self._position_within(self._segments[number], up_to_offset) - position

    def batch_base_offset(self, offset: int) -> int:
        """Return the base offset of the batch with `offset` or of the next batch, or else `offset`."""
        for segment in self.segments_from(offset):
            found = segment.find(offset)
            if found is not None:
                return found.base_offset
        return offset

    def _locate(self, offset: int) -> tuple[LogSegment, int] | None:
        """Return the segment and position of the batch with `offset` or the first batch after it, or None."""
        known = self._write_positions.get(offset)
        if known is not None and known[1] < known[0].size_bytes:
            return known
        # In a compacted log, a segment may lack its last offsets. The next segment then has the batch.
        for segment in self.segments_from(offset):
            found = segment.find(offset)
            if found is not None:
                return segment, found.position
        return None

    def _position_within(self, segment: LogSegment, up_to_offset: int) -> int:
        """Return the position in this segment at which its batches before `up_to_offset` end."""
        if up_to_offset >= self.end_offset:
            return segment.size_bytes
        known = self._write_positions.get(up_to_offset)
        if known is not None and known[0] is segment:
            return known[1]
        found = segment.find(up_to_offset)
        return segment.size_bytes if found is None else found.position

    def find_timestamp(
        self, timestamp: int, start_offset: int, reads: WorkerReads | None
    ) -> TimestampOffset | None:
        """Return the first record from `start_offset` on with this timestamp or a later one, or None.

        As in Kafka, only the first segment with such a timestamp is searched. So the result is None if all
        its matching records are before `start_offset`. Also raises CorruptBatch.
        """
        for segment in self._segments:
            if segment.size_bytes and segment.largest_timestamp() >= timestamp:
                if reads is not None and segment is not self.active:
                    segment.warm_index(segment.time_index, reads)
                    segment.warm_index(segment.index, reads)
                    segment.warm_batches(segment.timestamp_position(timestamp, start_offset), reads)
                return segment.find_timestamp(timestamp, start_offset)
        return None

    def find_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the greatest timestamp, or None if the log is empty.

        As in Kafka, the record may be before the log start offset if its segment still exists. Also raises
        CorruptBatch.
        """
        active = self.active
        largest = self._largest_rolled
        if largest is None:
            # Cache the result for the inactive segments.
            largest = max(self._segments, key=_max_timestamp)
            if largest is not active:
                self._largest_rolled = largest
        elif active.max_timestamp_entry()[0] > largest.max_timestamp_entry()[0]:
            largest = active
        return largest.find_max_timestamp() if largest.size_bytes else None


def _batch_bytes(file: DiskFile, position: int) -> int:
    """Return the size of the batch at this position."""
    length = file.read_at(position + _LENGTH_FIELD_POSITION, 4)
    return _BYTES_BEFORE_LENGTH_COUNTS + int.from_bytes(length, "big")


def _max_timestamp(segment: LogSegment) -> int:
    return segment.max_timestamp_entry()[0]
