"""The steps of a stream: from which offsets to which, of logs that come, grow and go meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from kwire.pipeline.segments.files import (
    RETRY_DELAYS_SECONDS,
    PartitionLog,
    SegmentsError,
    Sleep,
    partitions_in,
)
from kwire.pipeline.segments.options import Options
from kwire.pipeline.segments.plan import Range, check_bounds, readable_end, resolve, split_ranges, tasks

OffsetsByTopic = Mapping[str, Mapping[str, int]]
"""As Spark's Kafka source writes offsets: topic, then partition, then offset."""
Offsets = dict[str, dict[str, int]]
"""The same, to be made."""

_PartitionKey = tuple[str, int]
"""A topic's partition."""
_Result = TypeVar("_Result")


def initial_offsets(options: Options, logs: Sequence[PartitionLog]) -> Offsets:
    """Where a new stream of those logs begins. SegmentsError."""
    found: Offsets = {}
    for log in logs:
        start = resolve(options, log, options.starting, is_start=True)
        first, end = log.start_offset(), readable_end(log, options)
        if not first <= start <= end:
            raise SegmentsError(f"{log.name} has the offsets from {first} to {end}, not {start}")
        found.setdefault(log.topic, {})[str(log.partition)] = start
    return found


def latest_offsets(options: Options, *, sleep: Sleep = time.sleep) -> Offsets:
    """How far a stream may read now. SegmentsError."""
    found: Offsets = {}
    by_partition = _read_each(options, None, lambda log: readable_end(log, options), sleep)
    for (topic, partition), end in by_partition.items():
        found.setdefault(topic, {})[str(partition)] = end
    return found


def step_starts(
    options: Options, start: OffsetsByTopic, ends: OffsetsByTopic, *, sleep: Sleep = time.sleep
) -> Offsets:
    """Where each partition goes on; what came while the stream ran begins where its log does."""
    new = [
        (topic, int(partition))
        for topic, offsets in ends.items()
        for partition in offsets
        if partition not in start.get(topic, {})
    ]
    begins = {topic: dict(start.get(topic, {})) for topic in ends}
    by_partition = _read_each(options, new, PartitionLog.start_offset, sleep) if new else {}
    for topic, partition in new:
        # What is gone again has nothing.
        begins[topic][str(partition)] = by_partition.get((topic, partition), ends[topic][str(partition)])
    return begins


def limit_offsets(begins: OffsetsByTopic, ends: Offsets, most: int) -> Offsets:
    """The ends, drawn nearer so that about `most` offsets are between: each by its share, as Spark has it.

    Each partition that has something gets at least one offset, also where that is more than `most` together:
    or those behind a few busy ones would never have their turn.
    """
    lags = {
        (topic, partition): max(0, end - begins[topic][partition])
        for topic, offsets in ends.items()
        for partition, end in offsets.items()
    }
    total = sum(lags.values())
    if total <= most:
        return ends
    found: Offsets = {}
    for (topic, partition), lag in lags.items():
        end = begins[topic][partition] + max(1, lag * most // total) if lag else ends[topic][partition]
        found.setdefault(topic, {})[partition] = end
    return found


def step_tasks(
    options: Options, start: OffsetsByTopic, end: OffsetsByTopic, *, sleep: Sleep = time.sleep
) -> list[list[Range]]:
    """What a step from one set of offsets to another reads. SegmentsError where that is gone, and matters."""

    def bounds(log: PartitionLog) -> tuple[PartitionLog, int, int]:
        partition = str(log.partition)
        return _bounds(options, log, start.get(log.topic, {}).get(partition), end[log.topic][partition])

    planned = [
        (topic, int(partition))
        for topic, offsets in end.items()
        for partition, stop in offsets.items()
        # What is gone for good stays in the ends of a query, and would be waited for in each of its steps.
        if options.fail_on_data_loss or start.get(topic, {}).get(partition) != stop
    ]
    found = _read_each(options, planned, bounds, sleep)
    return tasks(options, split_ranges(options, [found[key] for key in planned if key in found]))


def _bounds(
    options: Options, log: PartitionLog, begin: int | None, stop: int
) -> tuple[PartitionLog, int, int]:
    # A partition that came while the stream ran is read from its beginning.
    begin = log.start_offset() if begin is None else begin
    if begin > stop and options.fail_on_data_loss:
        raise SegmentsError(
            f"{log.name} ended at offset {begin} before, and at {stop} now: has the topic been "
            f"deleted and created anew? Set failOnDataLoss to false to go on"
        )
    return log, *check_bounds(options, log, min(begin, stop), stop)


def _read_each(
    options: Options,
    keys: Iterable[_PartitionKey] | None,
    read: Callable[[PartitionLog], _Result],
    sleep: Sleep,
) -> dict[_PartitionKey, _Result]:
    """What the logs of some partitions answer, or all. SegmentsError where one is gone, and that matters.

    Who moves a log to another directory, as Apache Kafka does, may be seen in between: so whether one is gone
    is said of all of them together, and only after looking again for a while.
    """
    current = options.current_partitions()
    pending = [(log.topic, log.partition) for log in current] if keys is None else list(keys)
    results: dict[_PartitionKey, _Result] = {}
    for pause_seconds in (None, *RETRY_DELAYS_SECONDS):
        if pause_seconds is not None:
            sleep(pause_seconds)
            current = partitions_in(options.directories, sleep=sleep)
        logs = {(log.topic, log.partition): log for log in current}
        gone = []
        for key in pending:
            log = logs.get(key)
            try:
                if log is not None:
                    results[key] = read(log)
                    continue
            except (SegmentsError, FileNotFoundError):
                if log is None or log.directory.exists():
                    raise
            gone.append(key)
        pending = gone
        if not pending:
            return results
    if options.fail_on_data_loss:
        topic, partition = pending[0]
        raise SegmentsError(f"{topic}-{partition} is gone: has the topic been deleted?")
    return results
