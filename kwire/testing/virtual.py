"""A host on virtual time: nothing happens unless a test makes it happen.

host = VirtualHost(seed=1)
host.schedule(3_000, lambda: print("due"))
host.advance(2_999)   # nothing
host.advance(1)       # due
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kwire.broker.host.clock import ManualClock, QueuedTimer, TimerQueue
from kwire.broker.host.loggers import NodeLogger
from kwire.broker.host.streams import RandomStreams

T = TypeVar("T")


class VirtualHost:
    """A `broker.host.Host` whose clock a test moves.

    `end_turn`, where set (usually to a node's `end_turn`), is called after each callback that the host makes,
    as the shell does after each turn of its loop.
    """

    def __init__(self, *, seed: int = 0, now_ms: int = 1_700_000_000_000, name: str = "") -> None:
        """`name` is what the node is called in the log."""
        self.name = name
        self.rng = random.Random(seed)
        self.clock = ManualClock(now_ms)
        self.now_ms = self.clock.now_ms
        self.monotonic_ms = self.clock.monotonic_ms
        self._streams = RandomStreams(seed)
        self.end_turn: Callable[[], None] | None = None
        self._timers = TimerQueue(self.clock.monotonic_ms)
        self._soon: deque[Callable[[], None]] = deque()

    def random(self, purpose: str) -> random.Random:
        return self._streams.of(purpose)

    def logger(self, name: str) -> NodeLogger:
        return NodeLogger(name, self.name)

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> QueuedTimer:
        return self._timers.add(delay_ms, callback)

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` now; its result is delivered by the next `run_pending` or `advance`."""
        result: T | BaseException
        try:
            result = work()
        except Exception as error:
            result = error
        self._soon.append(lambda: done(result))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    @property
    def timers(self) -> int:
        """How many calls are scheduled and not cancelled."""
        return len(self._timers)

    def run_pending(self) -> None:
        """Make the calls that wait for no time: worker results and `call_soon`, and what those ask for."""
        while self._soon:
            self._call(self._soon.popleft())

    def advance(self, delay_ms: int) -> None:
        """Let `delay_ms` pass: each call that becomes due is made at its own moment, in order."""
        self.run_pending()
        target_ms = self.clock.monotonic_ms() + delay_ms
        while (deadline_ms := self._timers.next_deadline_ms()) is not None and deadline_ms <= target_ms:
            self.clock.advance(max(0, deadline_ms - self.clock.monotonic_ms()))
            callback = self._timers.pop_due(deadline_ms)
            assert callback is not None
            self._call(callback)
            self.run_pending()
        self.clock.advance(target_ms - self.clock.monotonic_ms())

    def _call(self, callback: Callable[[], None]) -> None:
        callback()
        if self.end_turn is not None:
            self.end_turn()
