"""One-shot events of a loop, which a trio task or a plain thread can wait for."""

from __future__ import annotations

from collections.abc import Callable

from kwire.wire.named_tuple import NamedTuple


class LoopEvent:
    """An event that is set once, in the loop's thread, and stays set."""

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        """Set the event and call its callbacks, unless it is set already."""
        if not self.is_set:
            self.is_set = True
            for callback in self._callbacks:
                callback()
            self._callbacks.clear()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the event is set, or now if it is set already."""
        if self.is_set:
            callback()
        else:
            self._callbacks.append(callback)


class Wait(NamedTuple):
    """A wait until one of `events` is set or `seconds` have passed."""

    events: tuple[LoopEvent, ...]
    seconds: float
    """Seconds of real time, even if the node has another clock."""
