"""The libraries in which tests await the methods of `aio`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import anyio
import trio

Program = Callable[[], Coroutine[Any, Any, Any]]


class Library(NamedTuple):
    """A library for asynchronous programs."""

    run: Callable[[Program], Any]
    cancel_after: Callable[[float, Program], Awaitable[bool]]
    """Await a function for some seconds, and return whether it was cancelled."""
    gather: Callable[..., Awaitable[None]]


async def cancel_asyncio_after(seconds: float, function: Program) -> bool:
    try:
        await asyncio.wait_for(function(), seconds)
    except TimeoutError:
        return True
    return False


async def cancel_trio_after(seconds: float, function: Program) -> bool:
    with trio.move_on_after(seconds) as scope:
        await function()
    return scope.cancelled_caught


async def cancel_anyio_after(seconds: float, function: Program) -> bool:
    with anyio.move_on_after(seconds) as scope:
        await function()
    return scope.cancelled_caught


async def gather_asyncio(*functions: Program) -> None:
    async with asyncio.TaskGroup() as group:
        for function in functions:
            group.create_task(function())


async def gather_trio(*functions: Program) -> None:
    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(function)


async def gather_anyio(*functions: Program) -> None:
    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(function)


LIBRARIES = {
    "asyncio": Library(lambda program: asyncio.run(program()), cancel_asyncio_after, gather_asyncio),
    "trio": Library(trio.run, cancel_trio_after, gather_trio),
    "anyio on asyncio": Library(
        lambda program: anyio.run(program, backend="asyncio"), cancel_anyio_after, gather_anyio
    ),
    "anyio on trio": Library(
        lambda program: anyio.run(program, backend="trio"), cancel_anyio_after, gather_anyio
    ),
}


def run_async(program: Program) -> None:
    """Run a coroutine in a thread of its own: the test runner may have an event loop in this one."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(program())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not errors, errors
    assert not thread.is_alive()
