"""Requests that wait for the metadata log to grow (a Fetch purgatory)."""

from __future__ import annotations

from collections.abc import Callable


class Waiters:
    """Callbacks that are called once: when the log grows, or this node loses the leadership or stops."""

    def __init__(self) -> None:
        self._waiters: dict[Callable[[], None], bool] = {}
        """For each callback, whether it waits for written records and not only for committed records."""

    def add(self, waiter: Callable[[], None], *, for_written: bool) -> None:
        """Call `waiter` once more records are committed; with `for_written`, once more are written."""
        self._waiters[waiter] = for_written

    def remove(self, waiter: Callable[[], None]) -> None:
        """Remove a waiter that has not been called yet."""
        self._waiters.pop(waiter, None)

    def written(self) -> None:
        """Call the waiters that wait for written records."""
        self._call([waiter for waiter, for_written in self._waiters.items() if for_written])

    def call_all(self) -> None:
        """Call all waiters: more records are committed, or this node lost the leadership or is stopping."""
        self._call(list(self._waiters))

    def _call(self, waiters: list[Callable[[], None]]) -> None:
        for waiter in waiters:
            if self._waiters.pop(waiter, None) is not None:
                waiter()
