"""Retention: the segments to delete by local log start offset, size and time, oldest first, as in Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from kwire.broker.storage.log.log_config import LogConfig
from kwire.broker.storage.log.segment import LogSegment


def deletable_segments(
    segments: Sequence[LogSegment],
    config: LogConfig,
    *,
    local_log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> list[LogSegment]:
    """Return the oldest segments that may be deleted. All of them are below the high watermark.

    A topic with only the compact policy has no retention by size or time. Raises StorageError.
    """
    excess_bytes = None
    if config.delete and config.retention_bytes >= 0:
        excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    deletable: list[LogSegment] = []
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        end_offset = log_end_offset if is_last else segments[number + 1].base_offset
        if high_watermark < end_offset or (is_last and not segment.size_bytes):
            break
        is_before_start = not is_last and end_offset <= local_log_start_offset
        is_excess = excess_bytes is not None and excess_bytes - segment.size_bytes >= 0
        is_expired = (
            config.delete
            and config.retention_ms >= 0
            and now_ms - segment.largest_timestamp() > config.retention_ms
        )
        if not (is_before_start or is_excess or is_expired):
            break
        if excess_bytes is not None:
            excess_bytes -= segment.size_bytes
        deletable.append(segment)
    return deletable
