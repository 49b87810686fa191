"""The event loop of asyncio or trio that runs in the current thread, if any.

A blocking method that is called there would stop all tasks, including the client that the test waits for.
The decorator `blocking` makes such a call fail at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

COROUTINE_FLAGS: Final = 0x80 | 0x200
"""CO_COROUTINE and CO_ASYNC_GENERATOR of `inspect`, whose import takes milliseconds."""

_MAY_BLOCK: ContextVar[bool] = ContextVar("kwire_may_block", default=False)


def blocking(method: F) -> F:
    """Make a method raise RuntimeError where it would block an event loop.

    The object has the awaitable form of the method in `aio`, and an attribute `_variable`.
    """

    @wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if blocks_event_loop():
            call = f"{self._variable}.{method.__name__}"
            raise RuntimeError(
                f"{call}() would block the running event loop: "
                f"use `await {self._variable}.aio.{method.__name__}(...)`"
            )
        return method(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def check_with_statement(awaitable_form: str) -> None:
    """Raise RuntimeError if a `with` statement would block an event loop."""
    if blocks_event_loop():
        raise RuntimeError(
            f"this `with` statement would block the running event loop: use `async with {awaitable_form}`"
        )


@contextmanager
def may_block() -> Iterator[None]:
    """Permit blocking calls in an event loop."""
    token = _MAY_BLOCK.set(True)
    try:
        yield
    finally:
        _MAY_BLOCK.reset(token)


def blocks_event_loop() -> bool:
    """Return whether a blocking call would stop an event loop of this thread.

    The virtual loop of a simulated cluster is not stopped, because the call takes no virtual time. With
    greenlets, a loop of this thread may run in another greenlet, as with gevent and Playwright. Then only
    calls from coroutines of this greenlet count.
    """
    loop = running_asyncio_loop()
    if loop is None:
        if not in_trio_task():
            return False
    elif is_virtual(loop):
        return False
    return ("greenlet" not in sys.modules or _in_coroutine()) and not _MAY_BLOCK.get()


def running_asyncio_loop() -> Any:
    """Return the running asyncio loop of this thread, or None. Does not import asyncio."""
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return None if running is None else running()


def in_trio_task() -> bool:
    """Return whether a task of trio is running in this thread. Does not import trio."""
    running = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    return running is not None and bool(running())


def is_virtual(loop: object) -> bool:
    """Return whether the loop is that of a simulated cluster, which runs functions for threads at once."""
    return getattr(loop, "is_virtual", False) is True


def is_coroutine_function(function: object) -> bool:
    """Return whether a call of the function only creates a coroutine."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return bool(getattr(code, "co_flags", 0) & COROUTINE_FLAGS)


def _in_coroutine() -> bool:
    frame = sys._getframe(1)
    while not frame.f_code.co_flags & COROUTINE_FLAGS:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True
