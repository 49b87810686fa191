"""Calls of blocking methods that run in threads, for tasks that await them.

A cancelled call ends when it next sleeps, or before its next request. So a call that waits for records ends
soon, and a call that has sent a request first receives the response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from threading import Lock, Thread
from typing import Any, Final, Generic, TypeVar

from kwire.host.system_time import sleep
from kwire.testing.green_threads import green_sleep
from kwire.testing.one_shot_event import OneShotEvent

T = TypeVar("T")

MAX_THREADS: Final = 64
"""The maximum number of threads of one object. Further calls wait until a thread is free."""


class CallCancelled(BaseException):
    """The task that awaits the call was cancelled. Not an Exception, so that no retry catches it."""


class Call(Generic[T]):
    """A call of a function in a thread, in the context of the task that awaits it."""

    def __init__(
        self, function: Callable[[], T], on_done: Callable[[], None], *, can_be_cancelled: bool
    ) -> None:
        """Prepare a call. `on_done` is called in the thread at the end."""
        self.can_be_cancelled = can_be_cancelled
        self.cancelled = OneShotEvent()
        self.succeeded = False
        self._context = copy_context()
        self._function, self._on_done = function, on_done
        self._value: T | None = None
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Make the function end soon, unless it cannot be cancelled."""
        if self.can_be_cancelled:
            self.cancelled.set()

    def run(self) -> None:
        """Call the function, unless the call is already cancelled."""
        __tracebackhide__ = True
        try:
            self._value = self._context.run(self._run)
            self.succeeded = True
        except BaseException as error:
            self._error = error
        self._on_done()

    def _run(self) -> T:
        __tracebackhide__ = True
        _CURRENT.set(self)
        check_cancelled()
        return self._function()

    def result(self) -> T:
        """Return the result of the function, or raise its error."""
        __tracebackhide__ = True
        error, self._error = self._error, None  # its traceback refers to this call
        if error is not None:
            raise error
        return self._value  # type: ignore[return-value]


_CURRENT: ContextVar[Call[Any] | None] = ContextVar("kwire_current_call", default=None)


def check_cancelled() -> None:
    """Raise CallCancelled if the current thread runs a call that was cancelled."""
    call = _CURRENT.get()
    if call is not None and call.cancelled.is_set:
        raise CallCancelled


def in_call() -> bool:
    """Return whether the current thread runs a call that can be cancelled."""
    call = _CURRENT.get()
    return call is not None and call.can_be_cancelled


def pause(seconds: float) -> None:
    """Sleep, and let other green threads run. Raises CallCancelled as soon as the call is cancelled."""
    call, green = _CURRENT.get(), green_sleep()
    if call is None or green is not None:
        (green or sleep)(seconds)
    else:
        call.cancelled.wait(seconds)
    check_cancelled()


class CallThreads:
    """The threads that run the calls of one object. A thread ends when no call is left for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[Call[Any]] = deque()
        self._running = 0

    def submit(self, call: Call[Any]) -> None:
        """Run a call in a thread. A call that cannot be cancelled, such as `stop`, gets a new thread."""
        with self._lock:
            if call.can_be_cancelled and self._running >= MAX_THREADS:
                self._waiting.append(call)
                return
            self._running += 1
        try:
            Thread(target=self._run, args=(call,), name="kwire call", daemon=True).start()
        except BaseException:
            with self._lock:
                self._running -= 1
            raise

    def _run(self, first: Call[Any]) -> None:
        __tracebackhide__ = True
        call: Call[Any] | None = first
        while call is not None:
            call.run()
            with self._lock:
                has_next = bool(self._waiting) and self._running <= MAX_THREADS
                call = self._waiting.popleft() if has_next else None
                self._running -= call is None
