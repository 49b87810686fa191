"""When pages of the console are read, by a clock that jumps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import trio
from trio.testing import MockClock

from kwire.broker.net.running import RunningNode
from kwire.broker.observe.turns import AT_ONCE, READER_ID, SECONDS_A_PAGE, Turns


class Broker:
    """One that serves some connections, each of which asks all the time."""

    def __init__(self, *client_ids: str) -> None:
        self.server = self
        self.loop = SimpleNamespace(between_nodes=self)
        self.connections = {number: self.connection(client_id) for number, client_id in enumerate(client_ids)}
        self.is_quiet = False
        self.turns = Turns(cast(RunningNode, self))

    def connection(self, client_id: str) -> object:
        broker = self

        class Connection:
            channel = SimpleNamespace(client_id=client_id)

            @property
            def last_active_ms(self) -> int:
                return 0 if broker.is_quiet else broker.monotonic_ms()

        return Connection()

    def monotonic_ms(self) -> int:
        return int(trio.current_time() * 1000) + 10_000

    async def read(self, count: int) -> list[float]:
        """When each of so many pages is read, one after the other, in whole seconds from now."""
        began = trio.current_time()
        at = []
        for _ in range(count):
            await self.turns.wait()
            at.append(round(trio.current_time() - began))
        return at


async def test_who_reads_without_a_pause_has_a_page_a_second_once_the_first_are_read(
    autojump_clock: MockClock,
) -> None:
    broker = Broker(READER_ID, "billing")
    assert await broker.read(AT_ONCE + 3) == [0] * AT_ONCE + [1, 2, 3]
    await trio.sleep(4 * SECONDS_A_PAGE)
    assert await broker.read(5) == [0, 0, 0, 0, 1]
    await trio.sleep(1_000)
    assert await broker.read(AT_ONCE + 1) == [0] * AT_ONCE + [1]


async def test_nobody_waits_for_others_that_are_not_there(autojump_clock: MockClock) -> None:
    broker = Broker(READER_ID)
    assert await broker.read(1_000) == [0] * 1_000
    broker.connections[1] = broker.connection("billing")
    assert await broker.read(3) == [1, 2, 3]


async def test_who_waits_is_let_go_when_others_have_gone(autojump_clock: MockClock) -> None:
    broker = Broker("billing")
    await broker.read(AT_ONCE)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(broker.turns.wait)
        await trio.sleep(1.5)
        began = trio.current_time()
        broker.is_quiet = True
    assert trio.current_time() - began < 0.1
