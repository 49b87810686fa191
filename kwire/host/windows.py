"""Rates, averages and maxima of recent values, as in Kafka's metrics.

Kafka's metrics cover two windows of 30 seconds, of which the older one is complete. All times are monotonic
times in ms.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from kwire.wire.named_tuple import NamedTuple

WINDOW_MS: Final = 30_000
WINDOWS: Final = 2


class _Window(NamedTuple):
    """The values of one window."""

    start_ms: int
    values: int
    total: float
    largest: float


class Windows:
    """Values of the last 30 to 60 seconds: their rate per second, average and maximum."""

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque(maxlen=WINDOWS)

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        last = self._windows[-1] if self._windows else None
        if last is None or now_ms - last.start_ms >= WINDOW_MS:
            self._windows.append(_Window(now_ms, 1, value, value))
        else:
            largest = max(last.largest, value)
            self._windows[-1] = _Window(last.start_ms, last.values + 1, last.total + value, largest)

    def per_second(self, now_ms: int) -> float:
        """Return the sum of the values per second."""
        windows = self._recent(now_ms)
        if not windows:
            return 0.0
        elapsed_ms = now_ms - windows[0].start_ms
        # As in Kafka, a first window that is not complete counts as if one without values came before it.
        elapsed_ms += WINDOW_MS if elapsed_ms < WINDOW_MS else 0
        return sum(window.total for window in windows) * 1000 / elapsed_ms

    def average(self, now_ms: int) -> float:
        """Return the average of the values; NaN without values."""
        windows = self._recent(now_ms)
        count = sum(window.values for window in windows)
        return sum(window.total for window in windows) / count if count else math.nan

    def maximum(self, now_ms: int) -> float:
        """Return the largest value; NaN without values."""
        return max((window.largest for window in self._recent(now_ms)), default=math.nan)

    def _recent(self, now_ms: int) -> list[_Window]:
        return [window for window in self._windows if now_ms - window.start_ms < WINDOWS * WINDOW_MS]
