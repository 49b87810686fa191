"""A clock for timeouts between nodes, which tests can pause while they advance all other time.

Timeouts between nodes (fetch long polls, heartbeats, broker sessions, replica lag, retries) use this clock.
It runs with the host's monotonic clock. Tests pause it to advance the time of a cluster, for example by a
week. The nodes exchange no messages during that week, so without the pause each node would time out all other
nodes (docs/decisions/0026).
"""

from __future__ import annotations

from collections.abc import Callable

from kwire.host.clock import QueuedTimer, TimerQueue
from kwire.host.host import InternodeTime


class InternodeClock:
    """The internode clock of one event loop, a `kwire.host.host.InternodeTimerClock`."""

    def __init__(self, timers: TimerQueue, on_scheduled: Callable[[], None]) -> None:
        self._timers = timers
        self._clock_ms = timers.monotonic_ms
        self._on_scheduled = on_scheduled
        self._lag_ms = 0
        """The difference to the host's clock: the total time for which this clock was paused."""
        self._paused_at_ms = 0
        """The time at the last pause. The clock never shows less, so it cannot go back."""

    def monotonic_ms(self) -> InternodeTime:
        now_ms = self._clock_ms() - self._lag_ms
        return InternodeTime(now_ms if now_ms > self._paused_at_ms else self._paused_at_ms)

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        timer = self._timers.add_at(self.host_deadline_ms(max(0, delay_ms)), callback, self.host_deadline_ms)
        self._on_scheduled()
        return timer

    def host_deadline_ms(self, delay_ms: int) -> int:
        """Return the time on the host's clock at which `delay_ms` will have passed on this clock."""
        return int(self.monotonic_ms()) + self._lag_ms + delay_ms

    def pause(self, delay_ms: int) -> None:
        """Stop this clock while the caller advances the host's clock by `delay_ms`."""
        self._paused_at_ms = int(self.monotonic_ms())
        self._add_lag(delay_ms)

    def resume(self, remaining_ms: int) -> None:
        """Continue this clock. `remaining_ms` is the part of the delay by which the host did not advance."""
        self._add_lag(-remaining_ms)

    def _add_lag(self, delay_ms: int) -> None:
        self._lag_ms += delay_ms
        self._timers.shift(delay_ms)
