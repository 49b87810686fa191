"""Offset ranges of a stream's micro-batches, over logs that appear, grow and disappear meanwhile."""

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
"""Offsets as Spark's Kafka source writes them: topic, then partition, then offset."""
Offsets = dict[str, dict[str, int]]
"""Offsets like `OffsetsByTopic`, as a mutable type."""

_PartitionKey = tuple[str, int]
"""A topic and a partition."""
_Result = TypeVar("_Result")


def initial_offsets(options: Options, logs: Sequence[PartitionLog]) -> Offsets:
    """Return the offsets at which a new stream begins to read these logs.

    As in Spark's Kafka source, a start offset that does not exist is an error if failOnDataLoss is set. If it
    is false, the stream begins at the nearest offset that exists. Raises SegmentsError.
    """
    found: Offsets = {}
    for log in logs:
        start = resolve(options, log, options.starting, is_start=True)
        first, end = log.start_offset(), readable_end(log, options)
        if not first <= start <= end and options.fail_on_data_loss:
            raise SegmentsError(
                f"{log.name} has the offsets {first} to {end}, not the start offset {start}: choose another "
                f"one, or set failOnDataLoss to false to start at the nearest offset"
            )
        found.setdefault(log.topic, {})[str(log.partition)] = min(max(start, first), end)
    return found


def latest_offsets(options: Options, *, sleep: Sleep = time.sleep) -> Offsets:
    """Return the offset at which a reader currently stops in each partition. Raises SegmentsError."""
    found: Offsets = {}
    by_partition = _read_each(options, None, lambda log: readable_end(log, options), sleep)
    for (topic, partition), end in by_partition.items():
        found.setdefault(topic, {})[str(partition)] = end
    return found


def micro_batch_starts(
    options: Options, start: OffsetsByTopic, ends: OffsetsByTopic, *, sleep: Sleep = time.sleep
) -> Offsets:
    """Return the offsets at which a micro-batch starts in the partitions of `ends`.

    A partition that is not in `start` is new, and starts at its log start offset. Raises SegmentsError.
    """
    new = [
        (topic, int(partition))
        for topic, offsets in ends.items()
        for partition in offsets
        if partition not in start.get(topic, {})
    ]
    begins = {topic: dict(start.get(topic, {})) for topic in ends}
    by_partition = _read_each(options, new, PartitionLog.start_offset, sleep) if new else {}
    for topic, partition in new:
        # A log that has disappeared meanwhile has no records to read.
        begins[topic][str(partition)] = by_partition.get((topic, partition), ends[topic][str(partition)])
    return begins


def limit_offsets(begins: OffsetsByTopic, ends: Offsets, most: int) -> Offsets:
    """Lower the end offsets so that a micro-batch has about `most` offsets.

    Each partition gets a share in proportion to its lag. But every partition with new records gets at least
    one offset, even if the sum then exceeds `most`. Otherwise a small partition would never be read beside a
    few busy partitions.
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


def micro_batch_tasks(
    options: Options, start: OffsetsByTopic, end: OffsetsByTopic, *, sleep: Sleep = time.sleep
) -> list[list[Range]]:
    """Return the tasks of a micro-batch. Raises SegmentsError if data is lost and failOnDataLoss is set."""

    def bounds(log: PartitionLog) -> tuple[PartitionLog, int, int]:
        partition = str(log.partition)
        return _bounds(options, log, start.get(log.topic, {}).get(partition), end[log.topic][partition])

    planned = [
        (topic, int(partition))
        for topic, offsets in end.items()
        for partition, stop in offsets.items()
        # The end offsets still have deleted partitions. Without this check, each micro-batch would wait for
        # their logs to appear again.
        if options.fail_on_data_loss or start.get(topic, {}).get(partition) != stop
    ]
    found = _read_each(options, planned, bounds, sleep)
    return tasks(options, split_ranges(options, [found[key] for key in planned if key in found]))


def _bounds(
    options: Options, log: PartitionLog, begin: int | None, stop: int
) -> tuple[PartitionLog, int, int]:
    # A partition that appeared while the stream ran is read from its log start offset.
    begin = log.start_offset() if begin is None else begin
    if begin > stop and options.fail_on_data_loss:
        raise SegmentsError(
            f"{log.name} ended at offset {begin} before and ends at {stop} now: was the topic deleted "
            f"and recreated? Set failOnDataLoss to false to continue"
        )
    return log, *check_bounds(options, log, min(begin, stop), stop)


def _read_each(
    options: Options,
    keys: Iterable[_PartitionKey] | None,
    read: Callable[[PartitionLog], _Result],
    sleep: Sleep,
) -> dict[_PartitionKey, _Result]:
    """Apply `read` to the logs of the partitions `keys`, or of all partitions, and return the results.

    Apache Kafka moves logs between log directories by renaming, so a log may be missing for a moment. If a
    log is still missing after several listings, this raises SegmentsError, or omits the partition if
    failOnDataLoss is false.
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
        raise SegmentsError(f"{topic}-{partition} does not exist any more: was the topic deleted?")
    return results
