import asyncio
from contextlib import suppress

import pytest
from aiokafka.errors import KafkaError
from poison_message import book_payments

from kwire.testing import Broker

GOOD = '{"account": "bob", "cents": 200}'
BAD = [b'{"account": "ann", "cen', b"\xff\xfe\x00", b'{"account": "ann"}', b"[]", None]


async def run_until_all_are_committed(broker: Broker) -> list[tuple[str, int]]:
    """Run the program, and start it again when it fails. Return the booked payments."""
    booked: list[tuple[str, int]] = []

    async def run() -> None:
        while True:
            with suppress(KafkaError):
                await book_payments(broker.bootstrap_servers, lambda *payment: booked.append(payment))

    program = asyncio.create_task(run())
    finished = asyncio.create_task(broker.aio.wait_until(lambda: broker.lag("booking", "payments") == 0))
    await asyncio.wait([program, finished], return_when=asyncio.FIRST_COMPLETED)
    for task in (program, finished):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await program
    await finished
    return booked


@pytest.mark.parametrize("bad", BAD)
def test_payments_after_a_bad_record_are_booked(kwire_broker: Broker, bad: bytes | None) -> None:
    kwire_broker.create_topic("payments.dead")
    kwire_broker.produce("payments", GOOD, bad, GOOD)
    booked = asyncio.run(run_until_all_are_committed(kwire_broker))
    assert booked == [("bob", 200), ("bob", 200)]
    [dead] = kwire_broker.records("payments.dead")
    assert (dead.key, dead.value) == (b"payments-0@1", bad)


def test_bad_record_is_not_lost_if_the_dead_letter_topic_fails(kwire_broker: Broker) -> None:
    kwire_broker.create_topic("payments.dead")
    kwire_broker.produce("payments", BAD[0], GOOD)
    kwire_broker.faults.return_error("Produce", "INVALID_RECORD", topic="payments.dead")
    asyncio.run(run_until_all_are_committed(kwire_broker))
    assert len(kwire_broker.records("payments.dead")) == 1
