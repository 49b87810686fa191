"""Things that happen once, and waiting for them, whoever turns the loop: trio or a plain thread."""

from __future__ import annotations

from collections.abc import Callable

from kwire.wire.named_tuple import NamedTuple


class LoopEvent:
    """Comes once, in the loop's thread, and is not forgotten."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        """Tell everybody who waits, unless it has come before."""
        if not self.is_set:
            self.is_set = True
            for callback in self._callbacks:
                callback()
            self._callbacks.clear()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it comes, or now where it has."""
        if self.is_set:
            callback()
        else:
            self._callbacks.append(callback)


class Wait(NamedTuple):
    """Asked of whoever turns the loop: turn it until one of `moments` has come, or `seconds` are over."""

    events: tuple[LoopEvent, ...]
    seconds: float
    """Of real time, whatever the node's clock does."""
