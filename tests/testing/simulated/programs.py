"""Example user programs: unmodified aiokafka, and plain asyncio."""

from __future__ import annotations

import asyncio

from kwire.testing.history import History
from kwire.wire.messages.metadata import MetadataRequest, MetadataResponse
from kwire.wire.registry import decode_response, encode_request

METADATA_VERSION = 12


async def produce(bootstrap_servers: str, history: History, count: int) -> None:
    """Send `count` orders, each after the previous one is acknowledged."""
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True) as producer:
        for number in range(count):
            value = f"order {number}".encode()
            history.on_send("billing", ("orders", 0), value)
            result = await producer.send_and_wait("orders", value, partition=0)
            history.on_ack(value, result.offset)
            await asyncio.sleep(0.05)


async def consume(bootstrap_servers: str, history: History, count: int) -> None:
    """Read `count` records."""
    from aiokafka import AIOKafkaConsumer

    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        history.on_seek("reader", ("orders", 0), 0)
        for _ in range(count):
            one = await consumer.getone()
            history.on_poll("reader", [((one.topic, one.partition), one.offset, one.value)])


async def request_metadata(host: str, port: int) -> MetadataResponse:
    """Request the metadata of all topics over a plain connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(encode_request(MetadataRequest(topics=None), METADATA_VERSION, 1, "by hand"))
    await writer.drain()
    size = int.from_bytes(await reader.readexactly(4), "big")
    response_data = memoryview(await reader.readexactly(size))
    writer.close()
    await writer.wait_closed()
    response: MetadataResponse = decode_response(MetadataResponse, METADATA_VERSION, response_data)[1]
    return response


async def transact(bootstrap_servers: str, value: bytes, *, commits: bool) -> None:
    """Send a value in a transaction, and end it."""
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id="one") as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("orders", value, partition=0)
        await (producer.commit_transaction() if commits else producer.abort_transaction())
