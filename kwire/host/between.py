"""The time between nodes, which may stand still while a test moves all other time.

How long a node waits for another, and when it misses it, is counted by a clock of its own. It goes as the
host's does, until all nodes of a test's cluster are to be a week older at once: none of them is to miss
another in a week that none has lived through (decisions/0026).
"""

from __future__ import annotations

from collections.abc import Callable

from kwire.host.clock import QueuedTimer, TimerQueue


class BetweenNodes:
    """A `broker.host.Timing` of one loop."""

    def __init__(self, timers: TimerQueue, on_scheduled: Callable[[], None]) -> None:
        self._timers = timers
        self._clock_ms = timers.monotonic_ms
        self._on_scheduled = on_scheduled
        self._behind_ms = 0
        """How far it is behind the clock, once that has been moved."""
        self._stands_at_ms = 0
        """Where it stands while the clock is moved: never before what it has told."""

    def monotonic_ms(self) -> int:
        now_ms = self._clock_ms() - self._behind_ms
        return now_ms if now_ms > self._stands_at_ms else self._stands_at_ms

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        timer = self._timers.add_at(self.deadline_ms(max(0, delay_ms)), callback, self.deadline_ms)
        self._on_scheduled()
        return timer

    def deadline_ms(self, delay_ms: int) -> int:
        """What the host's clock will show when so much has passed between nodes."""
        return self.monotonic_ms() + self._behind_ms + delay_ms

    def stand(self, delay_ms: int) -> None:
        """The clock is moved by so much, in which no time passes between nodes."""
        self._stands_at_ms = self.monotonic_ms()
        self._fall_back(delay_ms)

    def go_on(self, left_ms: int) -> None:
        """The clock was moved, but for so much of what was said."""
        self._fall_back(-left_ms)

    def _fall_back(self, delay_ms: int) -> None:
        self._behind_ms += delay_ms
        self._timers.shift(delay_ms)
