"""The steps of a stream: from which offsets to which, of logs that come, grow and go meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pipeline.segments.files import Partition, SegmentsError
from pipeline.segments.options import Options
from pipeline.segments.plan import Range, checked, divided, readable_end, resolve, tasks

Told = Mapping[str, Mapping[str, int]]
"""As Spark's Kafka source writes offsets: topic, then partition, then offset."""
Offsets = dict[str, dict[str, int]]
"""The same, to be made."""


def beginnings(options: Options, logs: Sequence[Partition]) -> Offsets:
    """Where a new stream of those logs begins. SegmentsError."""
    found: Offsets = {}
    for log in logs:
        start = resolve(options, log, options.starting, is_start=True)
        first, end = log.start_offset(), readable_end(log, options)
        if not first <= start <= end:
            raise SegmentsError(f"{log.name} has the offsets from {first} to {end}, not {start}")
        found.setdefault(log.topic, {})[str(log.partition)] = start
    return found


def ends(options: Options) -> Offsets:
    """How far a stream may read now. SegmentsError."""
    found: Offsets = {}
    for log in options.left():
        with _unless_gone(options, log):
            found.setdefault(log.topic, {})[str(log.partition)] = readable_end(log, options)
    return found


def goes_on(options: Options, start: Told, ends: Told) -> Offsets:
    """Where each partition goes on; what came while the stream ran begins where its log does."""
    new = {
        (topic, partition)
        for topic, offsets in ends.items()
        for partition in offsets
        if partition not in start.get(topic, {})
    }
    begins = {topic: dict(start.get(topic, {})) for topic in ends}
    for topic, partition in new:
        begins[topic][partition] = ends[topic][partition]  # what is gone again has nothing
    for log in options.left() if new else ():
        if (log.topic, str(log.partition)) in new:
            with _unless_gone(options, log):
                begins[log.topic][str(log.partition)] = log.start_offset()
    return begins


def limited(begins: Told, ends: Offsets, most: int) -> Offsets:
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


def step_tasks(options: Options, start: Told, end: Told) -> list[list[Range]]:
    """What a step from one set of offsets to another reads. SegmentsError where that is gone, and matters."""
    logs = {(log.topic, str(log.partition)): log for log in options.left()}
    bounds: list[tuple[Partition, int, int]] = []
    for topic, offsets in end.items():
        for partition, stop in offsets.items():
            log = logs.get((topic, partition))
            if log is not None:
                with _unless_gone(options, log):
                    bounds.append(_bounds(options, log, start.get(topic, {}).get(partition), stop))
            elif options.fail_on_data_loss:
                raise SegmentsError(f"{topic}-{partition} is gone: has the topic been deleted?")
    return tasks(options, divided(options, bounds))


def _bounds(options: Options, log: Partition, begin: int | None, stop: int) -> tuple[Partition, int, int]:
    # A partition that came while the stream ran is read from its beginning.
    begin = log.start_offset() if begin is None else begin
    if begin > stop and options.fail_on_data_loss:
        raise SegmentsError(
            f"{log.name} ended at offset {begin} before, and at {stop} now: has the topic been "
            f"deleted and created anew? Set failOnDataLoss to false to go on"
        )
    return log, *checked(options, log, min(begin, stop), stop)


@contextmanager
def _unless_gone(options: Options, log: Partition) -> Iterator[None]:
    """Leave out a partition that is deleted at this moment, where lost data does not matter."""
    try:
        yield
    except SegmentsError:
        if options.fail_on_data_loss or log.directory.exists():
            raise
