"""The offsets that can be cleaned in a log, and whether the log is due for cleaning. KIP-58, KIP-354."""

from __future__ import annotations

from typing import Final

from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.segment import LogSegment
from kwire.wire.named_tuple import NamedTuple

_NEVER: Final = (1 << 63) - 1


class LogToClean(NamedTuple):
    """A log with segments to clean. Kafka's LogToClean."""

    log: Log
    first_dirty_offset: int
    upper_bound_offset: int
    """The base offset of the first segment that must not be cleaned yet."""
    cleanable_bytes: int
    dirty_ratio: float
    """The share of `cleanable_bytes` in all bytes before `upper_bound_offset`, computed as in Kafka."""
    is_overdue: bool
    """Whether max.compaction.lag.ms requires a cleaning, whatever the dirty ratio is."""

    @property
    def is_due(self) -> bool:
        if self.is_overdue and self.cleanable_bytes:
            return True
        return self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def assess(log: Log, cleaned_offset: int | None, now_ms: int) -> LogToClean | None:
    """Return what can be cleaned in a log, or None if nothing can be cleaned.

    `cleaned_offset` is the end of the last cleaning, or None if the log was never cleaned. Raises
    StorageError or InvalidBatch.
    """
    segments = log.segments
    rolled = segments[:-1]
    if not rolled:
        return None
    first_dirty = log.log_start_offset if cleaned_offset is None else cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        # The log was truncated, or its log start offset was raised.
        first_dirty = log.log_start_offset
    dirty = _from(rolled, first_dirty)
    uncleanable = max(first_dirty, _first_uncleanable(log, segments, dirty, now_ms))
    # Clean complete segments only.
    upper_bound = max(
        (segment.base_offset for segment in segments if segment.base_offset <= uncleanable),
        default=segments[0].base_offset,
    )
    clean_bytes = sum(segment.size_bytes for segment in segments if segment.base_offset < first_dirty)
    cleanable_bytes = sum(
        segment.size_bytes
        for segment in _from(rolled, min(first_dirty, upper_bound))
        if segment.base_offset < upper_bound
    )
    total_bytes = clean_bytes + cleanable_bytes
    if not total_bytes or upper_bound <= first_dirty:
        return None
    return LogToClean(
        log,
        first_dirty,
        upper_bound,
        cleanable_bytes,
        cleanable_bytes / total_bytes,
        _is_overdue(log, dirty, now_ms),
    )


def _from(segments: list[LogSegment], offset: int) -> list[LogSegment]:
    """Return the segments that may have records at or after `offset`."""
    first = 0
    for number, segment in enumerate(segments):
        if segment.base_offset <= offset:
            first = number
    return segments[first:]


def _first_uncleanable(log: Log, segments: list[LogSegment], dirty: list[LogSegment], now_ms: int) -> int:
    """Return the first offset that cannot be cleaned: active, unstable or within min.compaction.lag.ms."""
    bounds = [log.last_stable_offset, segments[-1].base_offset]
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        bounds += [segment.base_offset for segment in dirty if segment.largest_timestamp() > now_ms - lag_ms][
            :1
        ]
    return min(bounds)


def _is_overdue(log: Log, dirty: list[LogSegment], now_ms: int) -> bool:
    """Return whether the oldest dirty record is older than max.compaction.lag.ms."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= _NEVER:
        return False
    timestamps = [segment.first_timestamp() for segment in dirty]
    return min((timestamp for timestamp in timestamps if timestamp > 0), default=_NEVER) < now_ms - lag_ms
