"""The rates that quotas limit, computed as in Apache Kafka's `Rate` and `TokenBucket`.

A rate is the sum of the values in a number of windows, divided by the time that these windows cover. All
times are in ms since an arbitrary moment, which must not be later than the first use.
"""

from __future__ import annotations

from collections import deque
from typing import Final

MS_PER_SECOND: Final = 1000


class _Sample:
    """The values of one window."""

    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = self.last_ms = start_ms
        self.total = 0.0


class SampledRate:
    """A rate per second over the last windows (Kafka's `Rate` over a `WindowedSum`)."""

    __slots__ = ("_count", "_samples", "_window_ms")

    def __init__(self, count: int, window_ms: int) -> None:
        """`count` is the number of windows, including the current one."""
        self._count = count
        self._window_ms = window_ms
        # A sample that began before the windows, and ends in them, is kept.
        self._samples: deque[_Sample] = deque(maxlen=count + 1)

    def record(self, value: float, now_ms: int) -> None:
        """Add a value. A negative value takes back an earlier one."""
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._window_ms:
            samples.append(_Sample(now_ms))
        samples[-1].total += value
        samples[-1].last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        """Return the rate."""
        elapsed_ms = self.elapsed_ms(now_ms)
        return sum(sample.total for sample in self._samples) * MS_PER_SECOND / elapsed_ms

    def elapsed_ms(self, now_ms: int) -> int:
        """Return the time that the rate covers, at least 1. Windows that have not begun count as complete."""
        expired_ms = now_ms - self._count * self._window_ms
        while self._samples and self._samples[0].last_ms <= expired_ms:
            self._samples.popleft()
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = self._count - 1 - elapsed_ms // self._window_ms
        return max(1, elapsed_ms + max(0, missing) * self._window_ms)

    def throttle_time_ms(self, limit: float, now_ms: int) -> int:
        """Return the time without further values after which the rate is at most `limit`, or 0."""
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return round_half_up((rate - limit) / limit * self.elapsed_ms(now_ms))


class TokenBucket:
    """Tokens that arrive at a rate, and can be saved for some time (Kafka's `TokenBucket`)."""

    __slots__ = ("_burst_s", "_tokens", "_updated_ms")

    def __init__(self, count: int, window_ms: int) -> None:
        """Create a full bucket, which holds the tokens of `count` windows."""
        self._burst_s = count * window_ms / MS_PER_SECOND
        self._tokens = 0.0
        self._updated_ms: int | None = None

    def tokens(self, limit: float, now_ms: int) -> float:
        """Return the tokens at a rate of `limit` per second. Fewer than 0 if the limit is exceeded."""
        burst = self._burst_s * limit
        if self._updated_ms is None:
            self._tokens = burst
        else:
            elapsed_s = (now_ms - self._updated_ms) / MS_PER_SECOND
            self._tokens = min(burst, self._tokens + limit * elapsed_s)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, limit: float, now_ms: int) -> None:
        """Take tokens, possibly more than there are."""
        self._tokens = min(self._burst_s * limit, self.tokens(limit, now_ms) - count)

    def throttle_time_ms(self, limit: float, now_ms: int) -> int:
        """Return the time after which the bucket has at least 0 tokens, or 0."""
        tokens = self.tokens(limit, now_ms)
        return round_half_up(-tokens / limit * MS_PER_SECOND) if tokens < 0 else 0


def round_half_up(value: float) -> int:
    """Round as Java's `Math.round` does for positive values."""
    return int(value + 0.5)
