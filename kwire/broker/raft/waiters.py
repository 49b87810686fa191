"""Requests that wait for the metadata log to grow (a Fetch purgatory)."""

from __future__ import annotations

from collections.abc import Callable


class Waiters:
    """Callbacks that are called once: when the log grows, or when waiting has become useless."""

    def __init__(self) -> None:
        self._waiters: dict[Callable[[], None], bool] = {}
        """Whether each one waits for written records, not only for committed ones."""

    def add(self, waiter: Callable[[], None], *, for_written: bool) -> None:
        """Call `waiter` when more is committed, or already when more is written."""
        self._waiters[waiter] = for_written

    def remove(self, waiter: Callable[[], None]) -> None:
        """Remove a waiter that was not called yet."""
        self._waiters.pop(waiter, None)

    def written(self) -> None:
        """Call the waiters for written records."""
        self._call([waiter for waiter, for_written in self._waiters.items() if for_written])

    def call_all(self) -> None:
        """Call all waiters: more is committed, the leader changed, or the node is stopping."""
        self._call(list(self._waiters))

    def _call(self, waiters: list[Callable[[], None]]) -> None:
        for waiter in waiters:
            if self._waiters.pop(waiter, None) is not None:
                waiter()
