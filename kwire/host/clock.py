"""Clocks, and the queue of calls that wait for one.

A clock gives wall time (`now_ms`), which may jump when the machine's clock is set, and monotonic time
(`monotonic_ms`), which timers are measured with. `SystemClock` is the machine's, with an offset: a running
broker can be told to move its clock forward. `ManualClock` moves only when told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    on_jump: Callable[[], None] | None
    """Called after `advance`, from the thread that advanced: whoever waits must look at the time again."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""

    def advance(self, delay_ms: int) -> None:
        """Move forward by `delay_ms`, as if that time had passed."""


class SystemClock:
    """The machine's clock, plus what it was advanced by."""

    def __init__(self) -> None:
        self._offset_ms = 0
        self.on_jump: Callable[[], None] | None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._offset_ms

    def advance(self, delay_ms: int) -> None:
        assert delay_ms >= 0
        self._offset_ms += delay_ms
        if self.on_jump is not None:
            self.on_jump()


class ManualClock:
    """A clock that stands still between calls of `advance`."""

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
    """A call in a `TimerQueue`."""

    __slots__ = ("callback", "deadline_in", "deadline_ms", "order", "queue")

    def __init__(
        self,
        queue: TimerQueue,
        deadline_ms: int,
        order: int,
        callback: Callable[[], None],
        deadline_in: Callable[[int], int] | None,
    ) -> None:
        self.queue = queue
        self.deadline_in = deadline_in
        """What the clock shows in so many milliseconds, where that is not so much later; it can be moved."""
        self.callback: Callable[[], None] | None = callback
        self.deadline_ms = deadline_ms
        self.order = order
        """Its place among those of the same deadline: when it was scheduled, or postponed."""

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.queue.timer_cancelled()

    def postpone(self, delay_ms: int) -> bool:
        if self.callback is None:
            return False
        queue = self.queue
        deadline_in = self.deadline_in
        deadline_ms = queue.monotonic_ms() + delay_ms if deadline_in is None else deadline_in(delay_ms)
        if deadline_ms < self.deadline_ms:
            return False
        self.deadline_ms = deadline_ms
        queue.last_order += 1
        self.order = queue.last_order
        return True


class TimerQueue:
    """Calls by deadline; equal deadlines in the order in which they were scheduled.

    Each heartbeat postpones the end of a session, which hardly ever comes. So a timer that is postponed
    leaves its entry where it is, and goes to its true place once that entry is the first and due. Asking for
    the exact next deadline moves it as well; `look_at_ms` does not.
    """

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        """`monotonic_ms` is the clock that delays count by."""
        self.monotonic_ms = monotonic_ms
        # Tuples, which compare without a call of Python: the orders are all different.
        self._heap: list[tuple[int, int, QueuedTimer]] = []
        self.last_order = 0  # the greatest `order` so far
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    @property
    def heap_size(self) -> int:
        """Entries in memory, cancelled ones among them."""
        return len(self._heap)

    def next_order(self) -> int:
        """The next place among equal deadlines."""
        self.last_order += 1
        return self.last_order

    def add(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        """Have `callback` called when the time has passed."""
        return self.add_at(self.monotonic_ms() + max(0, delay_ms), callback)

    def add_at(
        self,
        deadline_ms: int,
        callback: Callable[[], None],
        deadline_in: Callable[[int], int] | None = None,
    ) -> QueuedTimer:
        """Have `callback` called at that time. With `deadline_in`, `shift` may move it."""
        order = self.next_order()
        timer = QueuedTimer(self, deadline_ms, order, callback, deadline_in)
        heappush(self._heap, (deadline_ms, order, timer))
        return timer

    def shift(self, delay_ms: int) -> None:
        """Have all come so much later that say themselves when they are due."""
        moved = []
        for deadline_ms, order, timer in self._heap:
            if timer.deadline_in is not None:
                timer.deadline_ms += delay_ms
                deadline_ms += delay_ms
            moved.append((deadline_ms, order, timer))
        heapify(moved)
        self._heap = moved

    def timer_cancelled(self) -> None:
        """Count a cancelled entry. They leave in bulk, so that long deadlines do not gather dead timers."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0

    def look_at_ms(self) -> int | None:
        """Nothing is due before this; None while there is nothing. Cheaper than `next_deadline_ms`."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def next_deadline_ms(self) -> int | None:
        """When the earliest call is due, or None when there is none."""
        while (deadline_ms := self.look_at_ms()) is not None and self._move_postponed():
            pass
        return deadline_ms

    def pop_due(self, now_ms: int) -> Callable[[], None] | None:
        """Take the earliest call whose time has come. One at a time: a call may cancel the next."""
        while (deadline_ms := self.look_at_ms()) is not None and deadline_ms <= now_ms:
            if not self._move_postponed():
                timer = heappop(self._heap)[2]
                callback, timer.callback = timer.callback, None
                return callback
        return None

    def _move_postponed(self) -> bool:
        """Put the first timer where it belongs; False where it is there."""
        _, order, timer = self._heap[0]
        if timer.order == order:
            return False
        heapreplace(self._heap, (timer.deadline_ms, timer.order, timer))
        return True
