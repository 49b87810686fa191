"""When pages of the console are read, by a clock that jumps."""

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


class AskedBroker:
    """One that serves clients, each of which asks all the time."""

    def __init__(self, *client_ids: str) -> None:
        self.server = SimpleNamespace(request_metrics=self)
        self.log = RequestLog()
        self.client_ids = [*client_ids]
        self.turns = ConsoleRateLimit(cast(RunningNode, self))

    def clock(self) -> float:
        """Called for each look: they have asked until now."""
        now = trio.current_time() + 10
        for client_id in self.client_ids:
            self.log.begin(
                RequestHeader(ApiKey.PRODUCE, 9, 1, client_id), client_bytes(client_id, "::1"), 1, 10, now
            )
        return now

    async def read(self, count: int) -> list[float]:
        """When each of so many pages is read, one after the other, in whole seconds from now."""
        began = trio.current_time()
        at = []
        for _ in range(count):
            assert await self.turns.acquire()
            at.append(round(trio.current_time() - began))
        return at


async def test_who_reads_without_a_pause_has_a_page_a_second_once_the_first_are_read(
    autojump_clock: MockClock,
) -> None:
    broker = AskedBroker(READER_ID, "billing")
    assert await broker.read(BURST + 3) == [0] * BURST + [1, 2, 3]
    await trio.sleep(4 * SECONDS_PER_PAGE)
    assert await broker.read(5) == [0, 0, 0, 0, 1]
    await trio.sleep(1_000)
    assert await broker.read(BURST + 1) == [0] * BURST + [1]


async def test_nobody_waits_for_others_that_are_not_there(autojump_clock: MockClock) -> None:
    broker = AskedBroker(READER_ID)
    assert await broker.read(1_000) == [0] * 1_000
    broker.client_ids.append("billing")
    assert await broker.read(3) == [1, 2, 3]


async def test_who_waits_is_let_go_when_others_have_gone(autojump_clock: MockClock) -> None:
    broker = AskedBroker("billing")
    await broker.read(BURST)
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_WAITING):
            nursery.start_soon(broker.turns.acquire)
        await trio.sleep(1.5)
        began = trio.current_time()
        broker.client_ids.clear()
    assert trio.current_time() - began < RECENT_SECONDS + 2 * CHECK_SECONDS
    # Who comes next does not wait for all of them.
    broker.client_ids.append("billing")
    assert await broker.read(2) == [1, 2]


async def test_who_would_wait_long_is_told_so_and_takes_nobodys_turn(autojump_clock: MockClock) -> None:
    broker = AskedBroker("billing")
    await broker.read(BURST)
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await broker.turns.acquire())

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
    assert (answers.count(True), answers.count(False)) == (MAX_WAITING, 100 - MAX_WAITING)
    assert await broker.read(2) == [1, 2]
    broker.client_ids.clear()
    await trio.sleep(10 * RECENT_SECONDS)
    assert await broker.read(100) == [0] * 100
