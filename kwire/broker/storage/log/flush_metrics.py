"""The number and durations of flushes, as in Kafka's LogFlushStats."""

from __future__ import annotations

from collections import deque
from typing import Final

RECENT_FLUSHES: Final = 1_000


class FlushMetrics:
    """The flushes of all logs of a node since it started. Only the event loop's thread may use this."""

    __slots__ = ("count", "recent_ms")

    def __init__(self) -> None:
        self.count = 0
        self.recent_ms: deque[float] = deque(maxlen=RECENT_FLUSHES)
        """The durations of the last flushes in ms."""

    def record(self, duration_s: float) -> None:
        """Count a flush of a log, whose files were synced in `duration_s`."""
        self.count += 1
        self.recent_ms.append(duration_s * 1_000)


class FlushTimer:
    """The time that one flush has needed to sync files, in seconds. The flush's worker thread adds to it."""

    __slots__ = ("duration_s",)

    def __init__(self) -> None:
        self.duration_s = 0.0
