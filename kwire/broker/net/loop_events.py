"""Things that happen once, and waiting for them, whoever turns the loop: trio or a plain thread."""

from __future__ import annotations

from collections.abc import Callable

from kwire.wire.named_tuple import NamedTuple


class LoopEvent:
    """Comes once, in the loop's thread, and is not forgotten."""

    def __init__(self) -> None:
        self.has_come = False
        self._then: list[Callable[[], None]] = []

    def come(self) -> None:
        """Tell everybody who waits, unless it has come before."""
        if not self.has_come:
            self.has_come = True
            for callback in self._then:
                callback()
            self._then.clear()

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it comes, or now where it has."""
        if self.has_come:
            callback()
        else:
            self._then.append(callback)


class Wait(NamedTuple):
    """Asked of whoever turns the loop: turn it until one of `moments` has come, or `seconds` are over."""

    moments: tuple[LoopEvent, ...]
    seconds: float
    """Of real time, whatever the node's clock does."""
