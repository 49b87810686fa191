"""Clocks, and the queue of timers on a clock.

A clock has wall time (`now_ms`), which jumps when the machine's clock is set, and monotonic time
(`monotonic_ms`), for timers and durations. `SystemClock` is the machine's clock plus an offset, so that tests
can advance the clock of a running broker. `ManualClock` moves only by `advance`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from time import time_ns
from typing import Protocol

from kwire.host.system_time import monotonic_ns


class Clock(Protocol):
    """A source of wall time and monotonic time."""

    on_jump: Callable[[], None] | None
    """Called after `advance`, in the same thread, so that the event loop checks its timers."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since a fixed moment. The value never decreases."""

    def advance(self, delay_ms: int) -> None:
        """Move the clock forward by `delay_ms`, as if that time had passed."""


class SystemClock:
    """The machine's clock, plus the time by which `advance` moved it."""

    def __init__(self, time_ns: Callable[[], int] = time_ns) -> None:
        """`time_ns` is the wall clock of the machine."""
        self._time_ns = time_ns
        self._offset_ms = 0
        self.on_jump: Callable[[], None] | None = None

    def now_ms(self) -> int:
        return self._time_ns() // 1_000_000 + self._offset_ms

    def monotonic_ms(self) -> int:
        return monotonic_ns() // 1_000_000 + self._offset_ms

    def advance(self, delay_ms: int) -> None:
        assert delay_ms >= 0
        self._offset_ms += delay_ms
        if self.on_jump is not None:
            self.on_jump()


class ManualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self.on_jump: Callable[[], None] | None = None

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, delay_ms: int) -> None:
        assert delay_ms >= 0
        self._now_ms += delay_ms
        self._monotonic_ms += delay_ms
        if self.on_jump is not None:
            self.on_jump()


class QueuedTimer:
    """A scheduled call in a `TimerQueue`."""

    __slots__ = ("callback", "deadline_after", "deadline_ms", "order", "queue")

    def __init__(
        self,
        queue: TimerQueue,
        deadline_ms: int,
        order: int,
        callback: Callable[[], None],
        deadline_after: Callable[[int], int] | None,
    ) -> None:
        self.queue = queue
        self.deadline_after = deadline_after
        """Converts a delay to a deadline, for a timer of a clock that can be paused. None for other timers.

        `TimerQueue.shift` moves timers with this function.
        """
        self.callback: Callable[[], None] | None = callback
        self.deadline_ms = deadline_ms
        self.order = order
        """The position among timers of the same deadline, from the time of scheduling or postponing."""

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.queue.timer_canceled()

    def postpone(self, delay_ms: int) -> bool:
        if self.callback is None:
            return False
        queue = self.queue
        deadline_after = self.deadline_after
        deadline_ms = queue.monotonic_ms() + delay_ms if deadline_after is None else deadline_after(delay_ms)
        if deadline_ms < self.deadline_ms:
            return False
        self.deadline_ms = deadline_ms
        queue.last_order += 1
        self.order = queue.last_order
        return True


class TimerQueue:
    """Timers by deadline. Timers of equal deadlines run in the order in which they were scheduled.

    Every heartbeat postpones a session timeout that rarely expires, so postponing must be cheap. A postponed
    timer keeps its old entry in the heap. The entry is moved to the new deadline when it reaches the front of
    the heap and is due. `next_deadline_ms` moves such entries as well; `wakeup_ms` does not.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        """`monotonic_ms` is the clock of all delays."""
        self.monotonic_ms = monotonic_ms
        # Tuples compare without calling Python code, since each `order` is unique.
        self._heap: list[tuple[int, int, QueuedTimer]] = []
        self.last_order = 0  # the greatest `order` so far
        self._canceled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._canceled

    def next_order(self) -> int:
        """Return the next `order`: the position of a new timer among equal deadlines."""
        self.last_order += 1
        return self.last_order

    def add(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        return self.add_at(self.monotonic_ms() + max(0, delay_ms), callback)

    def add_at(
        self,
        deadline_ms: int,
        callback: Callable[[], None],
        deadline_after: Callable[[int], int] | None = None,
    ) -> QueuedTimer:
        """Schedule `callback` for the time `deadline_ms`. For `deadline_after`, see `QueuedTimer`."""
        order = self.next_order()
        timer = QueuedTimer(self, deadline_ms, order, callback, deadline_after)
        heappush(self._heap, (deadline_ms, order, timer))
        return timer

    def shift(self, delay_ms: int) -> None:
        """Add `delay_ms` to the deadlines of all timers of clocks that can be paused."""
        moved = []
        for deadline_ms, order, timer in self._heap:
            if timer.deadline_after is not None:
                timer.deadline_ms += delay_ms
                deadline_ms += delay_ms
            moved.append((deadline_ms, order, timer))
        heapify(moved)
        self._heap = moved

    def timer_canceled(self) -> None:
        """Count a canceled entry.

        Canceled entries are removed in bulk, so that entries with distant deadlines do not use memory for
        long.
        """
        self._canceled += 1
        if self._canceled > 64 and self._canceled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._canceled = 0

    def wakeup_ms(self) -> int | None:
        """Return a time before which no timer is due, or None if there is none.

        The time may be earlier than the next deadline. The call costs less than `next_deadline_ms`.
        """
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heappop(heap)
            self._canceled -= 1
        return heap[0][0] if heap else None

    def next_deadline_ms(self) -> int | None:
        """Return the exact earliest deadline, or None if there is no timer."""
        while (deadline_ms := self.wakeup_ms()) is not None and self._move_postponed():
            pass
        return deadline_ms

    def pop_due(self, now_ms: int) -> Callable[[], None] | None:
        """Remove the earliest timer that is due and return its callback, or None if none is due.

        Callers must run a callback before they pop the next timer, since the callback may cancel that timer.
        """
        while (deadline_ms := self.wakeup_ms()) is not None and deadline_ms <= now_ms:
            if not self._move_postponed():
                timer = heappop(self._heap)[2]
                callback, timer.callback = timer.callback, None
                return callback
        return None

    def _move_postponed(self) -> bool:
        """Move the first entry to its timer's deadline. Returns False if the entry is there already."""
        _, order, timer = self._heap[0]
        if timer.order == order:
            return False
        heapreplace(self._heap, (timer.deadline_ms, timer.order, timer))
        return True
