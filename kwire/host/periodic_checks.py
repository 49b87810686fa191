"""Periodic checks, whose interval grows while a test advances the clock.

A broker finds much of its work by checking at an interval: segments past their retention, transactions past
their timeout, logs to compact. Advancing a test's clock by a week would run millions of checks, nearly all
without effect. So each check runs at most `MAX_CHECKS_PER_ADVANCE` times during one advance. At the end of
the advance, every check that would have been due by then runs once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kwire.host.clock import QueuedTimer, TimerQueue

MAX_CHECKS_PER_ADVANCE: Final = 200
"""The maximum number of runs of one check while the clock is advanced once."""


class DelayedCheck:
    """A `kwire.host.host.Timer` of a check that runs later than scheduled, since the clock is advancing."""

    __slots__ = ("callback", "checks", "due_ms", "timer")

    def __init__(
        self, checks: PeriodicChecks, due_ms: int, timer: QueuedTimer, callback: Callable[[], None]
    ) -> None:
        self.checks = checks
        self.due_ms = due_ms
        """The time for which the check was scheduled."""
        self.timer = timer
        self.callback = callback

    def cancel(self) -> None:
        self.timer.cancel()
        self.checks.delayed.pop(self, None)

    def postpone(self, delay_ms: int) -> bool:
        return False  # a check schedules its next run when it has run


class PeriodicChecks:
    """The periodic checks of one event loop."""

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._min_interval_ms = 0
        """The minimum interval between runs of a check, in ms. Zero unless the clock is advancing."""
        self.delayed: dict[DelayedCheck, None] = {}

    def add(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer | DelayedCheck:
        """Call `callback` after `delay_ms`, or somewhat later while the clock is advancing."""
        if delay_ms >= self._min_interval_ms:
            return self._timers.add(delay_ms, callback)
        due_ms = self._timers.monotonic_ms() + delay_ms
        check = DelayedCheck(
            self, due_ms, self._timers.add(self._min_interval_ms, lambda: self._run(check)), callback
        )
        self.delayed[check] = None
        return check

    def begin_advance(self, delay_ms: int) -> None:
        """Prepare for the clock to be advanced by `delay_ms`."""
        self._min_interval_ms = delay_ms // MAX_CHECKS_PER_ADVANCE

    def end_advance(self) -> bool:
        """Schedule the delayed checks for their original times, and return whether there are any.

        The clock has been advanced, so checks whose time has passed are due now.
        """
        self._min_interval_ms = 0
        now_ms = self._timers.monotonic_ms()
        delayed, self.delayed = self.delayed, {}
        for check in delayed:
            check.timer.cancel()
            check.timer = self._timers.add(check.due_ms - now_ms, check.callback)
        return bool(delayed)

    def _run(self, check: DelayedCheck) -> None:
        del self.delayed[check]
        check.callback()
