"""Send the values of a sensor to Kafka, in order."""

from collections.abc import AsyncIterable

from aiokafka import AIOKafkaProducer


async def send_readings(servers: str, readings: AsyncIterable[int]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, client_id="sensor", enable_idempotence=True, request_timeout_ms=5_000
    )
    async with producer:
        async for reading in readings:
            await producer.send("readings", b"%d" % reading)
        await producer.flush()
