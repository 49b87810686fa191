"""Planning of a read: from options to offset ranges that are small enough for one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from kwire.broker.storage.log.transaction_index import AbortedTxn
from kwire.pipeline.segments.damage import SkipDamage
from kwire.pipeline.segments.files import Index, PartitionLog, Segment, SegmentsError
from kwire.pipeline.segments.options import Bound, Options
from kwire.pipeline.segments.scan import end_offset, scan_for_timestamp, stable_offset
from kwire.wire.messages.list_offsets import EARLIEST, LATEST

MIN_TASK_BYTES: Final = 16 << 20
"""The minimum size of a task. Spark needs more time to start a task than to read fewer bytes."""
MAX_TASK_BYTES: Final = 128 << 20
"""The maximum size of a task, which is the default of Spark's own file sources."""
_TASKS: Final = 8
"""The minimum number of tasks for a large table, so that a few large partitions keep all cores busy. It is
fixed, because a data source cannot find out Spark's number of cores. minPartitions can increase it."""


class Range(NamedTuple):
    """A range of one partition's offsets, from `start` to before `end`, that one task reads."""

    topic: str
    partition: int
    directory: str
    start: int
    end: int
    aborted: tuple[AbortedTxn, ...] = ()
    """Aborted transactions in the range, which a read_committed reader skips."""
    is_committed_only: bool = False
    skipping: SkipDamage | None = None
    size_bytes: int = 0
    """An estimate of the bytes to read."""

    @property
    def log(self) -> PartitionLog:
        return PartitionLog(self.topic, self.partition, Path(self.directory), self.skipping)


def readable_end(log: PartitionLog, options: Options) -> int:
    """Return the offset at which a reader stops.

    This is the log end offset, or the last stable offset for a read_committed reader.
    """
    end = end_offset(log)
    return stable_offset(log, end) if options.read_committed else end


def resolve(options: Options, log: PartitionLog, bound: Bound, *, is_start: bool) -> int:
    """Return the offset of a bound in this partition.

    Raises SegmentsError if the bound has no offset for the partition, or if the bound is a start timestamp
    after the last record.
    """
    key = (log.topic, log.partition)
    offset = bound.default
    if bound.timestamp_ms is not None or key in bound.timestamps_ms:
        timestamp_ms = bound.timestamp_ms if bound.timestamp_ms is not None else bound.timestamps_ms[key]
        found, end = offset_for_timestamp(log, timestamp_ms), readable_end(log, options)
        if found is None or found >= end:
            if is_start and not options.latest_if_no_timestamp:
                raise SegmentsError(
                    f"{log.name} has no record with timestamp {timestamp_ms} ms or later: set "
                    f"startingOffsetsByTimestampStrategy to 'latest' to start at its end"
                )
            return end
        return found
    offset = bound.offsets.get(key, offset)
    if offset is None:
        option = "startingOffsets" if is_start else "endingOffsets"
        raise SegmentsError(f"{option!r} has no offset for {log.name}")
    if offset == EARLIEST:
        return log.start_offset()
    if offset == LATEST:
        return readable_end(log, options)
    return offset


def offset_for_timestamp(log: PartitionLog, timestamp_ms: int) -> int | None:
    """Return the first offset with a timestamp of at least `timestamp_ms`, or None (KIP-79)."""
    for segment in log.segments():
        index = segment.time_index()
        active = segment == log.segments()[-1]
        # The last entry of an inactive segment's time index has the segment's maximum timestamp.
        if not active and len(index) and index[-1, 0] < timestamp_ms:
            continue
        at = int(index[:, 0].searchsorted(timestamp_ms, side="left"))
        start = int(index[at - 1, 1]) if at else segment.base_offset
        found = scan_for_timestamp(log, max(start, log.start_offset()), timestamp_ms)
        if found is not None:
            return found
    return None


def plan(options: Options) -> list[Range]:
    """Return the offset ranges of a batch query. Raises SegmentsError."""
    bounds = []
    for log in options.partitions():
        start = resolve(options, log, options.starting, is_start=True)
        end = resolve(options, log, options.ending, is_start=False)
        if start > end:
            # As in Spark's Kafka source, this is an error whatever failOnDataLoss is.
            raise SegmentsError(f"{log.name}: the start offset {start} is after the end offset {end}")
        bounds.append((log, *check_bounds(options, log, start, end)))
    return split_ranges(options, bounds)


def check_bounds(options: Options, log: PartitionLog, start: int, end: int) -> tuple[int, int]:
    """Limit a range to the offsets that exist.

    Raises SegmentsError if offsets of the range are lost and failOnDataLoss is set.
    """
    first, last = log.start_offset(), readable_end(log, options)
    if (start < first or start > last or end > last) and options.fail_on_data_loss:
        raise SegmentsError(
            f"{log.name} has the offsets {first} to {last}, not {start} to {end}: retention may have "
            f"deleted records; set failOnDataLoss to false to read the remaining ones"
        )
    return max(start, first), min(end, last)


def split_ranges(options: Options, bounds: Sequence[tuple[PartitionLog, int, int]]) -> list[Range]:
    """Split offset ranges by size into ranges for one task, at segments and at entries of offset indexes.

    The number of ranges for a partition depends on its share of the data. minPartitions and
    maxRecordsPerPartition can increase it. Raises SegmentsError.
    """
    logs = []
    total_bytes = 0
    for log, start, end in bounds:
        if start < end:
            parts = _parts(log, start, end)
            total_bytes += sum(part.end_position - part.position for part in parts)
            logs.append((log, start, end, parts))
    target_bytes = _target_bytes(options, total_bytes)
    ranges = [
        range_
        for log, start, end, parts in logs
        for range_ in _split_log(options, log, start, end, parts, target_bytes)
    ]
    most = options.max_records_per_partition
    if most is not None:
        ranges = [part for range_ in ranges for part in _split_evenly(range_, most)]
    return _split_further(ranges, options.min_partitions)


def _target_bytes(options: Options, total_bytes: int) -> int:
    """Return the number of bytes that one task should read."""
    if options.target_partition_bytes is not None:
        return options.target_partition_bytes
    return min(max(total_bytes // _TASKS, MIN_TASK_BYTES), MAX_TASK_BYTES)


def tasks(options: Options, ranges: Sequence[Range]) -> list[list[Range]]:
    """Group the ranges into tasks. Small neighboring ranges share a task.

    If minPartitions or maxRecordsPerPartition is set, each range is a task.

    A task takes a tenth of a second in addition to its reads, and there may be many partitions or segments.
    """
    if options.min_partitions > 1 or options.max_records_per_partition is not None:
        return [[range_] for range_ in ranges]
    target_bytes = _target_bytes(options, sum(range_.size_bytes for range_ in ranges))
    found: list[list[Range]] = []
    left_bytes = 0
    for range_ in ranges:
        if not found or range_.size_bytes > left_bytes:
            found.append([])
            left_bytes = target_bytes
        found[-1].append(range_)
        left_bytes -= range_.size_bytes
    return found


class _SegmentPart(NamedTuple):
    """The part of one segment file that has the records of an offset range."""

    segment: Segment
    entries: Index
    """The offset index of the segment."""
    position: int
    end_position: int


def _parts(log: PartitionLog, start: int, end: int) -> list[_SegmentPart]:
    segments = log.segments()
    bases = [segment.base_offset for segment in segments]
    found = []
    for segment, after in zip(segments, [*bases[1:], None], strict=True):
        if segment.base_offset >= end or (after is not None and after <= start):
            continue
        index = segment.offset_index()
        try:
            size_bytes = segment.size_bytes()
        except FileNotFoundError:
            continue  # The segment was deleted meanwhile. The reader will report lost data.
        first, last = index[:, 0].searchsorted([start, end], side="right").tolist()
        position = int(index[first - 1, 1]) if first else 0
        behind = int(index[last, 1]) if last < len(index) else size_bytes
        found.append(_SegmentPart(segment, index, position, behind))
    return found


def _split_log(
    options: Options,
    log: PartitionLog,
    start: int,
    end: int,
    parts: Sequence[_SegmentPart],
    target_bytes: int,
) -> Iterator[Range]:
    boundaries = {start, end}
    for part in parts:
        boundaries.add(max(start, part.segment.base_offset))
        boundaries.update(
            boundary for boundary in _split_offsets(part, target_bytes) if start < boundary < end
        )
    ordered = sorted(boundaries)
    size_bytes = sum(part.end_position - part.position for part in parts) // max(1, len(ordered) - 1)
    segments = log.segments()
    aborted = _aborted(segments) if options.read_committed else []
    for begin, stop in pairwise(ordered):
        yield Range(
            log.topic,
            log.partition,
            str(log.directory),
            begin,
            stop,
            tuple(entry for entry in aborted if entry.first_offset < stop and entry.last_offset >= begin),
            options.read_committed,
            options.skipping,
            size_bytes,
        )


def _split_offsets(part: _SegmentPart, target_bytes: int) -> list[int]:
    """Return the offsets at which to divide a segment's part into ranges of about `target_bytes`."""
    size_bytes = part.end_position - part.position
    pieces = max(1, (size_bytes + target_bytes // 2) // target_bytes)
    wanted = [part.position + size_bytes * number // pieces for number in range(1, pieces)]
    at = part.entries[:, 1].searchsorted(wanted, side="left")
    offsets: list[int] = part.entries[at[at < len(part.entries)], 0].tolist()
    return offsets


def _aborted(segments: Sequence[Segment]) -> list[AbortedTxn]:
    return [entry for segment in segments for entry in segment.aborted()]


def _split_evenly(range_: Range, most: int) -> Iterator[Range]:
    """Yield the parts of a range, with at most `most` offsets each."""
    offsets = range_.end - range_.start
    count = -(-offsets // most)
    ends = [range_.start + offsets * number // count for number in range(count + 1)]
    for start, end in pairwise(ends):
        yield range_._replace(start=start, end=end, size_bytes=range_.size_bytes // count)


def _split_further(ranges: list[Range], least: int) -> list[Range]:
    """Halve the longest ranges until there are at least `least` ranges or no range can be halved."""
    ranges = list(ranges)
    while 0 < len(ranges) < least:
        longest = max(range(len(ranges)), key=lambda number: ranges[number].end - ranges[number].start)
        one = ranges[longest]
        middle = (one.start + one.end) // 2
        if middle == one.start:
            break
        half = one._replace(size_bytes=one.size_bytes // 2)
        ranges[longest : longest + 1] = [half._replace(end=middle), half._replace(start=middle)]
    return ranges
