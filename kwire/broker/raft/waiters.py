"""Who waits for the metadata log to grow."""

from __future__ import annotations

from collections.abc import Callable


class Waiters:
    """Those that are called once, when there is more for them or no use in waiting."""

    def __init__(self) -> None:
        self._waiters: dict[Callable[[], None], bool] = {}
        """Whether each waits for what is written, and not only for what is committed."""

    def add(self, waiter: Callable[[], None], *, for_written: bool) -> None:
        """Call `waiter` when more is committed, or already when it is written."""
        self._waiters[waiter] = for_written

    def remove(self, waiter: Callable[[], None]) -> None:
        """Do not call it, if it was not called yet."""
        self._waiters.pop(waiter, None)

    def written(self) -> None:
        """There is more in the log."""
        self._call([waiter for waiter, for_written in self._waiters.items() if for_written])

    def call_all(self) -> None:
        """More is committed, or somebody else leads, or the node ends."""
        self._call(list(self._waiters))

    def _call(self, waiters: list[Callable[[], None]]) -> None:
        for waiter in waiters:
            if self._waiters.pop(waiter, None) is not None:
                waiter()
