"""The rate limit of console pages, on trio's mock clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import trio
from trio.testing import MockClock

from kwire.broker.api.request.request_log import RequestLog, client_bytes
from kwire.broker.net.running_node import RunningNode
from kwire.broker.observe.console_rate_limit import (
    BURST,
    CHECK_SECONDS,
    MAX_WAITING,
    READER_ID,
    RECENT_SECONDS,
    SECONDS_PER_PAGE,
    ConsoleRateLimit,
)
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader


class BusyBroker:
    """A broker with clients that send requests all the time."""

    def __init__(self, *client_ids: str) -> None:
        self.server = SimpleNamespace(request_metrics=self)
        self.log = RequestLog()
        self.client_ids = [*client_ids]
        self.rate_limit = ConsoleRateLimit(cast(RunningNode, self))

    def clock(self) -> float:
        """Record a request of each client, and return the current time."""
        now = trio.current_time() + 10
        for client_id in self.client_ids:
            self.log.begin(
                RequestHeader(ApiKey.PRODUCE, 9, 1, client_id), client_bytes(client_id, "::1"), 1, 10, now
            )
        return now

    async def read(self, count: int) -> list[float]:
        """Read `count` pages one after the other, and return the second in which each was read."""
        began = trio.current_time()
        seconds: list[float] = []
        for _ in range(count):
            assert await self.rate_limit.acquire()
            seconds.append(round(trio.current_time() - began))
        return seconds


async def test_after_a_burst_one_page_per_second_is_allowed(
    autojump_clock: MockClock,
) -> None:
    broker = BusyBroker(READER_ID, "billing")
    assert await broker.read(BURST + 3) == [0] * BURST + [1, 2, 3]
    await trio.sleep(4 * SECONDS_PER_PAGE)
    assert await broker.read(5) == [0, 0, 0, 0, 1]
    await trio.sleep(1_000)
    assert await broker.read(BURST + 1) == [0] * BURST + [1]


async def test_without_other_clients_pages_are_not_limited(autojump_clock: MockClock) -> None:
    broker = BusyBroker(READER_ID)
    assert await broker.read(1_000) == [0] * 1_000
    broker.client_ids.append("billing")
    assert await broker.read(3) == [1, 2, 3]


async def test_waiting_pages_are_released_when_other_clients_stop(autojump_clock: MockClock) -> None:
    broker = BusyBroker("billing")
    await broker.read(BURST)
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_WAITING):
            nursery.start_soon(broker.rate_limit.acquire)
        await trio.sleep(1.5)
        began = trio.current_time()
        broker.client_ids.clear()
    assert trio.current_time() - began < RECENT_SECONDS + 2 * CHECK_SECONDS
    # The next page does not wait for all of them.
    broker.client_ids.append("billing")
    assert await broker.read(2) == [1, 2]


async def test_pages_beyond_the_queue_are_refused(autojump_clock: MockClock) -> None:
    broker = BusyBroker("billing")
    await broker.read(BURST)
    results: list[bool] = []

    async def acquire() -> None:
        results.append(await broker.rate_limit.acquire())

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(acquire)
    assert (results.count(True), results.count(False)) == (MAX_WAITING, 100 - MAX_WAITING)
    assert await broker.read(2) == [1, 2]
    broker.client_ids.clear()
    await trio.sleep(10 * RECENT_SECONDS)
    assert await broker.read(100) == [0] * 100
