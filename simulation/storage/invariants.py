"""Conditions that a log must meet after every operation.

This module parses the log's files without the storage code, and compares the results of the storage code with
the parsed content.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.segment import LogSegment
from kwire.testing.disk import MemoryDisk
from kwire.testing.simulated.violation import Violation
from kwire.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    batches,
    crc_is_valid,
    read_header,
    records,
)
from kwire.wire.plural import plural
from simulation.storage.expected_log import ExpectedLog, RecordContent

LOOKUPS = 3
"""The number of offsets, and of timestamps, to look up in each check."""


class ScannedBatch(NamedTuple):
    """A batch as parsed from a segment file."""

    segment_base: int
    position: int
    header: BatchHeader
    records: dict[int, RecordContent]


class LogScan:
    """The parsed content of a log's files."""

    def __init__(self, disk: MemoryDisk, log: Log) -> None:
        """Scan the files. Raises Violation if a segment is not a sequence of valid batches."""
        self.batches: list[ScannedBatch] = []
        self.segment_content: dict[int, bytes] = {}
        for segment in log.segments:
            content = disk.read(segment.log_path)
            if segment.size_bytes > len(content):
                raise Violation(f"{segment!r} has only {plural(len(content), 'byte')} in its file")
            data = self.segment_content[segment.base_offset] = content[: segment.size_bytes]
            self.batches += _parse(segment, data)
        start = log.log_start_offset
        self.records = {
            offset: record
            for batch in self.batches
            for offset, record in batch.records.items()
            if offset >= start
        }

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return ranges of missing offsets up to `end`, as (first offset, next existing offset).

        Ranges within a segment are not included.
        """
        found = []
        for before, after in pairwise(self.batches):
            if (
                before.segment_base != after.segment_base
                and before.header.next_offset < after.header.base_offset
            ):
                found.append((before.header.next_offset, after.header.base_offset))
        bases = sorted(self.segment_content)
        first = self.batches[0].header.base_offset if self.batches else end
        last = self.batches[-1].header.next_offset if self.batches else bases[0]
        if bases[0] < first:
            found.append((bases[0], first))
        if self.batches and last < end:
            found.append((last, end))
        return found

    def batches_of(self, segment: LogSegment) -> list[ScannedBatch]:
        return [batch for batch in self.batches if batch.segment_base == segment.base_offset]


def _parse(segment: LogSegment, data: bytes) -> list[ScannedBatch]:
    found: list[ScannedBatch] = []
    position = 0
    try:
        for position, header in batches(data):
            if not crc_is_valid(data, position, header):
                raise Violation(f"{segment!r} has a batch with a wrong CRC at byte {position}")
            contents = {
                record.offset: RecordContent(record.timestamp, record.key, record.value)
                for record in records(data, position, header)
            }
            found.append(ScannedBatch(segment.base_offset, position, header, contents))
    except CorruptBatch as error:
        raise Violation(f"{segment!r} has no valid batch at byte {position}: {error}") from error
    end = found[-1].position + found[-1].header.size_bytes if found else 0
    if end != len(data):
        raise Violation(f"{segment!r} has {plural(len(data) - end, 'byte')} after its last batch")
    return found


def check_log(disk: MemoryDisk, log: Log, expected: ExpectedLog, rng: random.Random) -> LogScan:
    """Check all invariants except the expected content. Returns the scan of the log. Raises Violation."""
    scan = LogScan(disk, log)
    _check_offsets(log, expected, scan)
    _check_epochs(log, expected, scan)
    for segment in log.segments:
        _check_indexes(segment, scan.batches_of(segment))
    _check_reads(log, scan, rng)
    _check_lookups(log, scan, rng)
    if not log.staged:
        _check_producers(log, expected, scan)
    return scan


def _check_offsets(log: Log, expected: ExpectedLog, scan: LogScan) -> None:
    bases = log.segment_base_offsets
    if bases != sorted(set(bases)) or bases != [segment.base_offset for segment in log.segments]:
        raise Violation(f"segments start at {bases}")
    if not bases[0] <= log.log_start_offset <= log.log_end_offset:
        raise Violation(f"{log!r} has segments from offset {bases[0]}")
    if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
        raise Violation(f"{log!r} has the high watermark {log.high_watermark}")
    if log.recovery_point > log.written_end_offset:
        raise Violation(f"{log!r} has the recovery point {log.recovery_point}")
    next_offset, epoch = bases[0], -1
    for batch in scan.batches:
        header = batch.header
        if header.base_offset < max(next_offset, batch.segment_base):
            raise Violation(f"offset {header.base_offset} follows, expected {next_offset}: {batch}")
        is_gap = (next_offset, header.base_offset) in expected.gaps
        if header.base_offset > next_offset and not expected.is_compacted and not is_gap:
            raise Violation(f"offsets {next_offset} to {header.base_offset - 1} are missing")
        if header.leader_epoch < epoch:
            raise Violation(
                f"leader epoch {header.leader_epoch} at {header.base_offset} follows epoch {epoch}"
            )
        next_offset, epoch = header.next_offset, header.leader_epoch
        after = bisect_right(bases, batch.segment_base)
        if after < len(bases) and header.last_offset >= bases[after]:
            raise Violation(f"offset {header.last_offset} is in the segment before {bases[after]}")
    end = log.written_end_offset
    is_gap = not scan.batches or (next_offset, end) in expected.gaps
    if next_offset > end or (next_offset < end and not expected.is_compacted and not is_gap):
        raise Violation(f"the last batch ends at {next_offset}, the log at {log.written_end_offset}")


def _check_epochs(log: Log, expected: ExpectedLog, scan: LogScan) -> None:
    epochs = log.leader_epochs
    starts = [start for _, start in epochs]
    if starts != sorted(set(starts)) or [epoch for epoch, _ in epochs] != sorted(
        {each for each, _ in epochs}
    ):
        raise Violation(f"the leader epochs do not increase: {epochs}")
    for batch in scan.batches:
        header = batch.header
        # Increasing the log start offset removes leader epochs. After a crash before the checkpoint, the log
        # has its old start offset but not these epochs, as in Kafka.
        start = max(log.log_start_offset, expected.allowed_start)
        if header.last_offset < start:
            continue
        after = bisect_right(starts, max(header.base_offset, start))
        if not after or epochs[after - 1][0] != header.leader_epoch:
            raise Violation(
                f"the batch at {header.base_offset} has leader epoch {header.leader_epoch}, unlike {epochs}"
            )


def _check_indexes(segment: LogSegment, found: list[ScannedBatch]) -> None:
    base = segment.base_offset
    at_position = {batch.position: batch.header for batch in found}
    last_offsets = {batch.header.last_offset for batch in found}
    previous = -1
    for number in range(segment.index.entries):
        relative, position = segment.index.entry(number)
        offset, header = base + relative, at_position.get(position)
        if header is None or offset <= previous or offset not in last_offsets or header.base_offset > offset:
            raise Violation(
                f"{segment.index.path} has an entry for offset {offset} at byte {position}: {header}"
            )
        previous = offset
    entries = [segment.time_index.entry(number) for number in range(segment.time_index.entries)]
    previous_timestamp = -1
    for timestamp, relative in entries:
        offset = base + relative
        largest = max(
            (batch.header.max_timestamp for batch in found if batch.header.last_offset <= offset), default=-1
        )
        if timestamp <= previous_timestamp or largest > timestamp or offset not in last_offsets:
            raise Violation(
                f"{segment.time_index.path} has timestamp {timestamp} at {offset}; the largest is {largest}"
            )
        previous_timestamp = timestamp
    largest = max((batch.header.max_timestamp for batch in found), default=-1)
    if segment.max_timestamp_entry()[0] != largest:
        raise Violation(
            f"{segment!r} has {segment.max_timestamp_entry()}, its largest timestamp is {largest}"
        )


def _check_reads(log: Log, scan: LogScan, rng: random.Random) -> None:
    """Read the log as a consumer does, and compare the result with the bytes of the files."""
    offset, end = log.log_start_offset, log.written_end_offset
    expected = [batch for batch in scan.batches if batch.header.last_offset >= offset]
    max_bytes = rng.choice((1, 300, 1 << 20))
    number = 0
    while True:
        region = log.read(offset, max_bytes=max_bytes, up_to_offset=end)
        data = region.read()
        if not data:
            break
        position = 0
        while position + HEADER_BYTES <= len(data):
            header = read_header(data, position)
            if position + header.size_bytes > len(data):
                break  # The last batch may be incomplete.
            batch = expected[number] if number < len(expected) else None
            if batch is None or data[position : position + header.size_bytes] != _bytes(scan, batch):
                raise Violation(f"reading at {offset} returns {header}, expected {batch}")
            number += 1
            offset = header.next_offset
            position += header.size_bytes
        if not position:
            raise Violation(f"reading at {offset} returns less than a batch: {plural(len(data), 'byte')}")
    if number != len(expected):
        raise Violation(f"reading ends at {offset}, before {expected[number]}")


def _bytes(scan: LogScan, batch: ScannedBatch) -> bytes:
    return scan.segment_content[batch.segment_base][batch.position : batch.position + batch.header.size_bytes]


def _check_lookups(log: Log, scan: LogScan, rng: random.Random) -> None:
    """Compare lookups by offset and timestamp with a linear scan."""
    start, end = log.log_start_offset, log.written_end_offset
    for _ in range(LOOKUPS if end > start else 0):
        offset = rng.randrange(start, end)
        first = next((batch for batch in scan.batches if batch.header.last_offset >= offset), None)
        data = log.read(offset, max_bytes=1, up_to_offset=end).read()
        if (data or None) != (_bytes(scan, first) if first is not None else None):
            raise Violation(f"reading at {offset} does not return {first}")
    timestamps = [record.timestamp for record in scan.records.values()]
    for _ in range(LOOKUPS):
        timestamp = rng.choice(timestamps or [0]) + rng.choice((-1, 0, 0, 1))
        found = log.offset_for_timestamp(timestamp)
        linear = _at_timestamp(scan, timestamp)
        if (found.offset if found is not None else None) != linear:
            raise Violation(f"a lookup of timestamp {timestamp} returns {found}, not {linear}")
    # As in Kafka, the lookup uses batch headers. The batch that it finds may be empty after compaction, or
    # its record may be before the log start offset.
    greatest = max((batch.header.max_timestamp for batch in scan.batches), default=-1)
    holding = [batch for batch in scan.batches if batch.header.max_timestamp == greatest]
    if timestamps and max(timestamps) == greatest and all(batch.records for batch in holding):
        largest = log.max_timestamp()
        if largest is None or largest.timestamp != greatest:
            raise Violation(f"the largest timestamp is {greatest}, not {largest}")


def _at_timestamp(scan: LogScan, timestamp: int) -> int | None:
    """Return the first offset with a timestamp of at least `timestamp`, or None.

    Only the first segment with such a batch counts.
    """
    base = next((each.segment_base for each in scan.batches if each.header.max_timestamp >= timestamp), None)
    return next(
        (
            offset
            for batch in scan.batches
            if batch.segment_base == base
            for offset, record in batch.records.items()
            if offset in scan.records and record.timestamp >= timestamp
        ),
        None,
    )


def _check_producers(log: Log, expected: ExpectedLog, scan: LogScan) -> None:
    """Check that the producer state has the last batch of each producer.

    Deleted batches that exist again after a power loss do not count, because their state may have expired.
    """
    last: dict[int, BatchHeader] = {}
    for batch in scan.batches:
        if batch.header.has_producer_id and batch.header.last_offset >= log.log_start_offset:
            last[batch.header.producer_id] = batch.header
    for producer_id, header in last.items():
        if header.last_offset < expected.allowed_start:
            continue
        state = log.producers.producers.get(producer_id)
        if state is None or not state.batches:
            raise Violation(f"producer {producer_id} has no state, but wrote {header}")
        remembered = state.batches[-1]
        if expected.is_compacted and remembered.last_offset > header.last_offset:
            # Compaction has removed the producer's earlier batch, and a power loss the later batch.
            continue
        actual = (state.epoch, remembered.last_sequence, remembered.last_offset, remembered.offset_delta)
        if actual != (
            header.producer_epoch,
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
        ):
            raise Violation(f"producer {producer_id} has the state {actual}; its last batch is {header}")
        if not expected.is_compacted and remembered.timestamp != header.max_timestamp:
            raise Violation(f"producer {producer_id} has the state {remembered}; its last batch is {header}")
    for producer_id, state in log.producers.producers.items():
        newest = state.batches[-1].last_offset if state.batches else -1
        if newest >= log.log_end_offset:
            raise Violation(f"producer {producer_id} has state up to {newest}, beyond the end of {log!r}")
        if producer_id not in last and newest >= log.log_start_offset and not expected.is_compacted:
            raise Violation(f"producer {producer_id} has state at {newest}, where it wrote nothing")
