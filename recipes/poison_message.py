"""Book payments. A payment that cannot be read goes to the topic `payments.dead`."""

import json
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def book_payments(servers: str, book: Callable[[str, int], None]) -> None:
    consumer = AIOKafkaConsumer(
        "payments",
        bootstrap_servers=servers,
        group_id="booking",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer, consumer:
        async for record in consumer:
            try:
                payment = json.loads(record.value)
                account, cents = payment["account"], int(payment["cents"])
            except Exception as error:  # any error here means that the record is bad
                source = f"{record.topic}-{record.partition}@{record.offset}"
                headers = [("error", repr(error).encode())]
                await producer.send_and_wait("payments.dead", record.value, source.encode(), headers=headers)
            else:
                book(account, cents)
            await consumer.commit()
