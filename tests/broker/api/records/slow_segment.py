"""A remote segment whose reads take 50 ms."""

from __future__ import annotations

import time

from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.remote_segment import RemoteRegion
from kwire.broker.storage.log.segment import LogSegment, TimestampOffset
from kwire.wire.batch import batches

READ_SECONDS = 0.05


class SlowSegment:
    """A segment in remote storage. Each read takes 50 ms."""

    def __init__(self, segment: LogSegment, end_offset: int) -> None:
        self.data = segment.file.read_at(0, segment.size_bytes)
        self.end_offset = end_offset
        self.max_timestamp = segment.max_timestamp_entry()[0]
        self.reads = 0
        self.fails = False

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> RemoteRegion:
        self._begin_read()
        position, first = next(
            (at, header) for at, header in batches(self.data) if header.last_offset >= offset
        )
        size_bytes = max(max_bytes, first.size_bytes) if at_least_one else max_bytes
        return RemoteRegion(self.data[position : position + size_bytes])

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        self._begin_read()
        for _, header in batches(self.data):
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                return TimestampOffset(header.max_timestamp, header.base_offset, header.leader_epoch)
        return None

    def _begin_read(self) -> None:
        self.reads += 1
        self.wait()
        if self.fails:
            raise StorageError("the remote storage does not respond")

    def wait(self) -> None:
        time.sleep(READ_SECONDS)


def move_first_segment(log: Log, now_ms: int) -> SlowSegment:
    """Roll the log, and move its first segment to remote storage."""
    log.roll(now_ms)
    first, second = log.segments[:2]
    moved = SlowSegment(first, second.base_offset)
    log._drop_segments([first])
    log.remote_segments = [*log.remote_segments, moved]
    log.local_log_start_offset = second.base_offset
    return moved
