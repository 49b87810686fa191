"""Looks at whether something is due, which are rarer while a test moves the time.

Much of a broker is found by looking again and again: what retention deletes, transactions that have taken too
long, logs to be compacted. A week is a million of such looks, of which nearly all find nothing. Where a week
is to pass in a moment they have a longest number instead, and none is missing at the end of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kwire.host.clock import QueuedTimer, TimerQueue

IN_A_MOVE: Final = 200
"""How often the same is looked at, at most, while time is moved on once."""


class Look:
    """A `broker.host.Timer` of something that is looked at."""

    __slots__ = ("callback", "due_ms", "looks", "timer")

    def __init__(self, looks: Looks, due_ms: int, timer: QueuedTimer, callback: Callable[[], None]) -> None:
        self.looks = looks
        self.due_ms = due_ms
        """When it would be, were no time moved."""
        self.timer = timer
        self.callback = callback

    def cancel(self) -> None:
        self.timer.cancel()
        self.looks.late.pop(self, None)

    def postpone(self, delay_ms: int) -> bool:
        return False  # whoever looks asks for the next look when this one is over


class Looks:
    """The looks of one loop."""

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._pause_ms = 0
        """The least time between two looks; zero unless time is moved."""
        self.late: dict[Look, None] = {}
        """Those that are later than was asked for."""

    def add(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer | Look:
        """Have `callback` called when the time has passed, or somewhat later while time is moved."""
        if delay_ms >= self._pause_ms:
            return self._timers.add(delay_ms, callback)
        due_ms = self._timers.monotonic_ms() + delay_ms
        look = Look(self, due_ms, self._timers.add(self._pause_ms, lambda: self._due(look)), callback)
        self.late[look] = None
        return look

    def begin_move(self, delay_ms: int) -> None:
        """Time is to be moved by so much."""
        self._pause_ms = delay_ms // IN_A_MOVE

    def end_move(self) -> bool:
        """Time was moved: whatever would have been looked at by now is, next; the rest when it was to be.

        Whether there is any of it.
        """
        self._pause_ms = 0
        now_ms = self._timers.monotonic_ms()
        late, self.late = self.late, {}
        for look in late:
            look.timer.cancel()
            look.timer = self._timers.add(look.due_ms - now_ms, look.callback)
        return bool(late)

    def _due(self, look: Look) -> None:
        del self.late[look]
        look.callback()
