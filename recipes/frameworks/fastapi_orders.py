"""An HTTP service that writes orders to a topic, and reads their states from another topic."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from fastapi import FastAPI, Response


def create_app(servers: str) -> FastAPI:
    producer: AIOKafkaProducer
    states: dict[str, str] = {}

    async def read_states(consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            states[record.key.decode()] = record.value.decode()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal producer
        consumer = AIOKafkaConsumer("states", bootstrap_servers=servers, auto_offset_reset="earliest")
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer, consumer:
            reader = asyncio.create_task(read_states(consumer))
            yield
            reader.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{number}", status_code=202)
    async def place_order(number: str) -> None:
        await producer.send_and_wait("orders", b"placed", number.encode())

    @app.get("/orders/{number}")
    async def get_state(number: str) -> str:
        return states.get(number, "unknown")

    @app.get("/ready")
    async def is_ready(response: Response) -> str:
        try:
            async with asyncio.timeout(1):
                await producer.client.fetch_all_metadata()
        except (KafkaError, TimeoutError):
            response.status_code = 503
            return "Kafka does not respond"
        return "ready"

    return app


if "KAFKA_SERVERS" in os.environ:
    app = create_app(os.environ["KAFKA_SERVERS"])
