"""An event between threads, for the thread of a test."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock


class OneShotEvent:
    """An event that is set once. A `wait` that a signal handler interrupts leaves it intact.

    Python code acquires the lock of a `threading.Event`. If a signal handler raises an exception there, such
    as KeyboardInterrupt, the lock stays locked, and `set` blocks forever.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._unset = Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake all waiting threads, and those that wait later."""
        self.is_set = True
        self._release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait for `set`, for `timeout_s` seconds at most, and return whether it was called."""
        if not self.is_set and self._unset.acquire(timeout=timeout_s):
            self._release()  # for the next waiting thread
        return self.is_set

    def _release(self) -> None:
        with suppress(RuntimeError):  # another thread has released it
            self._unset.release()
