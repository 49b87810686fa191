"""A node under trio, with what runs beside it.

async with serve(config) as running:
    print(running.bootstrap)
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
    """Run a node inside of the block. `alone`: nothing else in this trio run is in a hurry.

    `stop` comes where somebody does not want to wait any longer for the cluster to count on the broker.
    What is `beside` runs from before it does, until the node has shut down. The node lives on if it fails.

    Raises BindError, StorageError and ConfigError on the way in.
    """
    running = RunningNode(config, clock=clock, seed=seed, disk=disk)
    loop = running.loop
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            company = [(one, trio.CancelScope()) for one in background]
            for one, scope in company:
                nursery.start_soon(_run_background, one, running, scope)
            try:
                # Nobody is told of the broker before its cluster counts on it, unless it has failed before.
                await wait_any(running.ready, *(() if stop is None else (stop,)))
                loop.alone = alone
                running.set_bootstrap()
                yield running
            finally:
                with trio.CancelScope(shield=True):
                    await run_waits(running.shut_down())
                for _, scope in company:
                    scope.cancel()
    finally:
        running.close()


async def _run_background(
    background: Callable[[RunningNode], Awaitable[None]], running: RunningNode, scope: trio.CancelScope
) -> None:
    with scope:
        try:
            await background(running)
        except Exception:
            running.loop.logger("kwire.net").exception(
                "what runs beside the broker failed: it goes on without"
            )


async def wait_any(*moments: LoopEvent) -> None:
    """Wait until one of `moments` has come."""
    come = trio.Event()
    for moment in moments:
        moment.on_set(come.set)
    await come.wait()


async def run_waits(waits: Iterable[Wait]) -> None:
    """Go through `waits` while another task turns the loop."""
    for wait in waits:
        with trio.move_on_after(wait.seconds):
            await wait_any(*wait.events)
