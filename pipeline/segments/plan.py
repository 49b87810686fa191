"""What to read: from options to ranges of offsets, each small enough for one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker.storage.transaction_index import Aborted
from pipeline.segments.files import Partition, Segment, SegmentsError
from pipeline.segments.options import EARLIEST, LATEST, Bound, Options
from pipeline.segments.scan import end_offset, scan_for_timestamp, stable_offset


class Range(NamedTuple):
    """Offsets of one partition, from `start` on and below `end`, that one task reads."""

    topic: str
    partition: int
    directory: str
    start: int
    end: int
    aborted: tuple[Aborted, ...] = ()
    """Transactions that a reader of committed data leaves out."""
    is_committed_only: bool = False

    @property
    def log(self) -> Partition:
        return Partition(self.topic, self.partition, Path(self.directory))


class Window(NamedTuple):
    """What filters leave of the offsets and timestamps of a table; both ends are in it."""

    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    least_offset: int | None = None
    most_offset: int | None = None
    least_timestamp_ms: int | None = None
    most_timestamp_ms: int | None = None


def readable_end(log: Partition, options: Options) -> int:
    """Where a reader stops: at the end of the log, or at its last stable offset. SegmentsError."""
    end = end_offset(log)
    return stable_offset(log, end) if options.read_committed else end


def resolve(options: Options, log: Partition, bound: Bound, *, is_start: bool) -> int:
    """The offset that a bound stands for. SegmentsError."""
    key = (log.topic, log.partition)
    asked = bound.otherwise
    if bound.timestamp_ms is not None or key in bound.timestamps_ms:
        timestamp_ms = bound.timestamp_ms if bound.timestamp_ms is not None else bound.timestamps_ms[key]
        found = offset_for_timestamp(log, timestamp_ms)
        if found is None:
            if is_start and not options.latest_if_no_timestamp:
                raise SegmentsError(
                    f"{log.name} has no record from {timestamp_ms} ms on: set "
                    f"startingOffsetsByTimestampStrategy to 'latest' to begin at its end"
                )
            return readable_end(log, options)
        return found
    asked = bound.offsets.get(key, asked)
    if asked is None:
        raise SegmentsError(f"the offsets that were given lack {log.name}, which is subscribed to")
    if asked == EARLIEST:
        return log.start_offset()
    if asked == LATEST:
        return readable_end(log, options)
    return asked


def offset_for_timestamp(log: Partition, timestamp_ms: int) -> int | None:
    """The first offset with a timestamp that late or later, None where there is none. KIP-79."""
    for segment in log.segments():
        index = segment.time_index()
        active = segment == log.segments()[-1]
        # The last entry of a segment that is not the active one is its latest timestamp.
        if not active and len(index) and index[-1, 0] < timestamp_ms:
            continue
        at = int(index[:, 0].searchsorted(timestamp_ms, side="left"))
        start = int(index[at - 1, 1]) if at else segment.base_offset
        found = scan_for_timestamp(log, max(start, log.start_offset()), timestamp_ms)
        if found is not None:
            return found
    return None


def plan(options: Options, window: Window) -> list[Range]:
    """The ranges of a batch query. SegmentsError."""
    found: list[Range] = []
    bounds = []
    for log in options.partitions():
        start = resolve(options, log, options.starting, is_start=True)
        end = resolve(options, log, options.ending, is_start=False)
        bounds.append((log, *checked(options, log, start, end)))
    for log, start, end in bounds:
        if window.topics is not None and log.topic not in window.topics:
            continue
        if window.partitions is not None and log.partition not in window.partitions:
            continue
        found += divided(options, log, *_within(log, window, start, end))
    return _more(found, options.min_partitions)


def checked(options: Options, log: Partition, start: int, end: int) -> tuple[int, int]:
    """The offsets that are there of those asked for. SegmentsError where some are lost, and that matters."""
    first, last = log.start_offset(), readable_end(log, options)
    if (start < first or start > last or end > last) and options.fail_on_data_loss:
        raise SegmentsError(
            f"{log.name} has the offsets from {first} to {last}, not those from {start} to {end}: they may "
            f"have been deleted by retention; set failOnDataLoss to false to read what there is"
        )
    return max(start, first), min(end, last)


def _within(log: Partition, window: Window, start: int, end: int) -> tuple[int, int]:
    """What a window may leave of the offsets from `start` to `end`."""
    if window.least_offset is not None:
        start = max(start, window.least_offset)
    if window.most_offset is not None:
        end = min(end, window.most_offset + 1)
    if start < end and window.least_timestamp_ms is not None:
        # Timestamps need not ascend, but nothing before the first that is late enough is.
        found = offset_for_timestamp(log, window.least_timestamp_ms)
        start = end if found is None else max(start, found)
    return start, end


def divided(options: Options, log: Partition, start: int, end: int) -> Iterator[Range]:
    """The offsets from `start` to `end`, divided at segments and at entries of their indexes."""
    if start >= end:
        return
    segments = log.segments()
    bases = [segment.base_offset for segment in segments]
    cuts = {start, end}
    for segment in segments:
        after = next((base for base in bases if base > segment.base_offset), end)
        if segment.base_offset >= end or after <= start:
            continue
        cuts.add(max(start, segment.base_offset))
        cuts.update(cut for cut in _cuts(segment, options.target_partition_bytes) if start < cut < end)
    ordered = sorted(cuts)
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
        )


def _cuts(segment: Segment, target_bytes: int) -> Iterator[int]:
    """Offsets that divide a segment into parts of about that size."""
    index = segment.offset_index()
    next_position = target_bytes
    for offset, position in index.tolist():
        if position >= next_position:
            yield offset
            next_position = position + target_bytes


def _aborted(segments: Sequence[Segment]) -> list[Aborted]:
    return [entry for segment in segments for entry in segment.aborted()]


def _more(ranges: list[Range], least: int) -> list[Range]:
    """At least so many ranges, if there are so many offsets: the longest are halved."""
    ranges = list(ranges)
    while 0 < len(ranges) < least:
        longest = max(range(len(ranges)), key=lambda number: ranges[number].end - ranges[number].start)
        one = ranges[longest]
        middle = (one.start + one.end) // 2
        if middle == one.start:
            break
        ranges[longest : longest + 1] = [one._replace(end=middle), one._replace(start=middle)]
    return ranges
