"""Awaitable forms of blocking methods, for asyncio, trio, and anyio on both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from kwire.testing.event_loop import in_trio_task, is_virtual, running_asyncio_loop
from kwire.testing.thread_call import Call, CallThreads

if TYPE_CHECKING:
    import asyncio

    import trio

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", covariant=True)


class AsyncMethod(Protocol[P, R]):
    """An asynchronous method with the parameters `P` and the result `R`, for type checkers."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Callable[P, Coroutine[Any, Any, R]]:
        """Return the method of an instance."""


def awaitable(
    method: Callable[Concatenate[Any, P], T], *, completes: bool = False, undo: str = ""
) -> AsyncMethod[P, T]:
    """Return the awaitable form of a method, for a class with the attributes `_target` and `_threads`.

    It calls the method of `_target` with the same name. `completes` and `undo`, the name of another method,
    are as in `call_in_thread`.
    """
    name = method.__name__

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> T:
        __tracebackhide__ = True
        function: Callable[[], T] = partial(getattr(self._target, name), *args, **kwargs)
        undoing = getattr(self._target, undo) if undo else None
        return await call_in_thread(self._threads, function, completes=completes, undo=undoing)

    return cast("AsyncMethod[P, T]", call)


async def call_in_thread(
    threads: CallThreads,
    function: Callable[[], T],
    *,
    completes: bool = False,
    undo: Callable[[], None] | None = None,
) -> T:
    """Call a function in a thread, and return its result.

    If the task is cancelled, the call of the function is cancelled, and continues in the background until it
    notices that. With `completes`, the function is called completely, and the task waits for its end; if the
    function has succeeded, `undo` is called then.

    In a simulated cluster, where a thread would take no virtual time, the function is called at once.
    """
    __tracebackhide__ = True
    loop = _loop()
    if loop is not None and is_virtual(loop):
        return function()
    done, notify, shielded = _trio_event() if loop is None else _asyncio_event(loop)
    call = Call(function, notify, can_be_cancelled=not completes)
    threads.submit(call)
    try:
        await done.wait()
    except BaseException as error:
        call.cancel()
        if completes and not isinstance(error, GeneratorExit):  # a closed coroutine cannot wait
            await shielded(done.wait)
            if undo is not None and call.succeeded:
                await shielded(partial(call_in_thread, threads, undo, completes=True))
        raise
    return call.result()


async def sleep(seconds: float) -> None:
    """Sleep without blocking the event loop."""
    if _loop() is None:
        import trio

        await trio.sleep(seconds)
    else:
        import asyncio

        await asyncio.sleep(seconds)


Shielded = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, None]]
"""A function that awaits a coroutine function, even if the task is or was cancelled."""


def _loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop of the current task, or None in a task of trio.

    With trio's guest mode and with trio-asyncio, both run in one thread, and asyncio's current task decides.
    Raises RuntimeError if neither runs.
    """
    loop: asyncio.AbstractEventLoop | None = running_asyncio_loop()
    if loop is None:
        if not in_trio_task():
            raise RuntimeError("methods of `aio` can be awaited in asyncio and in trio only")
        return None
    import asyncio

    return None if asyncio.current_task(loop) is None and in_trio_task() else loop


def _asyncio_event(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Event, Callable[[], None], Shielded]:
    import asyncio

    done = asyncio.Event()

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:  # the loop is closed, after the call was cancelled
            pass

    async def shielded(function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        task = asyncio.ensure_future(function())
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:  # the caller raises the first one
                pass
        task.result()

    return done, notify, shielded


def _trio_event() -> tuple[trio.Event, Callable[[], None], Shielded]:
    import trio

    done, token = trio.Event(), trio.lowlevel.current_trio_token()

    def notify() -> None:
        try:
            token.run_sync_soon(done.set)
        except trio.RunFinishedError:  # after the call was cancelled
            pass

    async def shielded(function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        with trio.CancelScope(shield=True):
            await function()

    return done, notify, shielded
