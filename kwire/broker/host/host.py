"""What a broker's machines ask of the world: the time, later calls, and work off the loop.

Everything outside of `broker/net` and `broker/storage/disk.py` is synchronous and reaches the world through a
`Host`. `broker.net` implements it on one loop of a real process; `broker.testing.virtual` implements it on
virtual time, so that a test waits a week in a millisecond and gives the same result every time.

All callbacks run on the loop, one at a time, never inside the call that asked for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A call that is due at some time."""

    def cancel(self) -> None:
        """Do not make the call. Does nothing when it was made already."""

    def postpone(self, delay_ms: int) -> bool:
        """Make the call when `delay_ms` have passed from now, instead of before.

        As if it were called off and asked for again, but much cheaper. False, and nothing changes, where
        there is nothing to postpone: the call was made or called off, or this would be sooner.
        """


class Host(Protocol):
    """The world as a node sees it."""

    rng: random.Random
    """The source of every random choice; seeded in simulations."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970: for record timestamps and times that are stored."""

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, when `delay_ms` have passed. Not affected by changes of the wall clock."""

    def run_in_worker(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` in a thread; `done` gets what it returned, or the exception that it raised.

        For work that waits for the disk. Work that computes in Python would hold back the loop (the GIL).
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in this turn of the loop or the next, after what is running now."""
