import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from broker_restart import send_readings

from kwire.testing import Broker


@asynccontextmanager
async def restart(broker: Broker) -> AsyncIterator[None]:
    """Shut the broker down cleanly, and start it again."""
    restarted = asyncio.create_task(broker.aio.restart())
    yield
    await restarted


@asynccontextmanager
async def kill_after_write(broker: Broker) -> AsyncIterator[None]:
    """Let the broker write records that it does not acknowledge, and kill it."""
    dropped = broker.faults.drop_response("Produce")
    yield
    await broker.aio.wait_until(lambda: dropped.hits)
    await broker.aio.crash()
    await broker.aio.start()


@asynccontextmanager
async def kill_before_write(broker: Broker) -> AsyncIterator[None]:
    """Let the broker receive records that it does not write, and kill it."""
    ignored = broker.faults.ignore("Produce", times=None)
    yield
    await broker.aio.crash()
    ignored.cancel()
    await broker.aio.start()


@pytest.mark.parametrize("outage", [restart, kill_after_write, kill_before_write])
def test_each_reading_is_stored_once_and_in_order(
    kwire_broker: Broker, outage: Callable[[Broker], AbstractAsyncContextManager[None]]
) -> None:
    async def readings() -> AsyncIterator[int]:
        yield 0
        await kwire_broker.aio.records("readings", count=1)
        async with outage(kwire_broker):
            for number in range(1, 40):
                yield number
                await asyncio.sleep(0.01)
        yield 40

    kwire_broker.create_topic("readings")
    asyncio.run(send_readings(kwire_broker.bootstrap_servers, readings()))
    kwire_broker.history().check()
    stored = [int(record.value or b"") for record in kwire_broker.records("readings")]
    assert stored == list(range(41))
