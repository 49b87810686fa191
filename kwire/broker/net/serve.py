"""Running a node under trio, together with background tasks.

Usage: `async with serve(config) as running: print(running.bootstrap)`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from kwire.broker.net.loop_events import LoopEvent, Wait
from kwire.broker.net.running_node import RunningNode
from kwire.broker.storage.disk import Disk
from kwire.host.clock import Clock

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig


@asynccontextmanager
async def serve(
    config: BrokerConfig,
    *,
    clock: Clock | None = None,
    seed: int | None = None,
    disk: Disk | None = None,
    alone: bool = False,
    stop: LoopEvent | None = None,
    background: Iterable[Callable[[RunningNode], Awaitable[None]]] = (),
) -> AsyncIterator[RunningNode]:
    """Run a node within the `async with` block.

    The block starts once the broker is unfenced, the node has failed, or `stop` is set. With `alone`, the
    loop may delay the other tasks of this trio run (`Loop.alone`). The background tasks start before the
    block and run until the node has shut down. If a background task fails, the node continues.

    Entering the block raises BindError, StorageError, ConfigError or ResourceShortage.
    """
    running = RunningNode(config, clock=clock, seed=seed, disk=disk)
    loop = running.loop
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            tasks = [(task, trio.CancelScope()) for task in background]
            for task, scope in tasks:
                nursery.start_soon(_run_background, task, running, scope)
            try:
                await wait_any(running.ready, *(() if stop is None else (stop,)))
                loop.alone = alone
                running.set_bootstrap()
                yield running
            finally:
                with trio.CancelScope(shield=True):
                    await run_waits(running.shut_down())
                for _, scope in tasks:
                    scope.cancel()
    finally:
        running.close()


async def _run_background(
    task: Callable[[RunningNode], Awaitable[None]], running: RunningNode, scope: trio.CancelScope
) -> None:
    with scope:
        try:
            await task(running)
        except Exception:
            running.loop.logger("kwire.net").exception(
                "Background task %s failed; the node continues without it",
                getattr(task, "__qualname__", type(task).__name__),
            )


async def wait_any(*events: LoopEvent) -> None:
    """Wait until one of `events` is set."""
    is_set = trio.Event()
    for event in events:
        event.on_set(is_set.set)
    await is_set.wait()


async def run_waits(waits: Iterable[Wait]) -> None:
    """Perform all `waits` one after another while another task runs the loop."""
    for wait in waits:
        with trio.move_on_after(wait.seconds):
            await wait_any(*wait.events)
