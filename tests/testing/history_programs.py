"""Correct producers and consumers of three clients: idempotent, with commits after the reads.

Run with the bootstrap servers and a topic as arguments, possibly while faults are injected.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

QUICK: dict[str, Any] = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10}
CONFLUENT: dict[str, Any] = {"linger.ms": 0, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}


def kafka_python_program(servers: str, topic: str, name: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError

    with suppress(KafkaError):  # faults may exhaust the client's own limits
        producer = KafkaProducer(bootstrap_servers=servers, client_id=name, **QUICK)
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            client_id=name,
            group_id=name,
            auto_offset_reset="earliest",
            **QUICK,
        )
        for number in range(10):
            producer.send(topic, b"same" if number % 3 else b"%s %d" % (name.encode(), number))
            consumer.poll(10)
            consumer.commit(timeout_ms=2_000)
        producer.flush(20)
        consumer.close(timeout_ms=2_000)
        producer.close(timeout=20)


def confluent_kafka_program(servers: str, topic: str, name: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer

    client = {"bootstrap.servers": servers, "client.id": name, "enable.metrics.push": False, "log_level": 0}
    producer = Producer({**CONFLUENT, **client, "transactional.id": name})

    def retry(call: Callable[[float], Any]) -> None:
        for _ in range(20):
            try:
                call(5.0)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    consumer = Consumer(
        {**client, "group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    with suppress(KafkaException):
        retry(producer.init_transactions)
        for number in range(4):
            producer.begin_transaction()
            for value in (b"same", b"%s %d" % (name.encode(), number)):
                producer.produce(topic, value)
            retry(producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                consumer.commit(message=message, asynchronous=False)
    producer.flush(10)
    consumer.close()


def aiokafka_program(servers: str, topic: str, name: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def program() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, client_id=name, enable_idempotence=True, retry_backoff_ms=10
        )
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            client_id=name,
            group_id=name,
            auto_offset_reset="earliest",
            retry_backoff_ms=10,
            isolation_level="read_committed",
        )
        try:
            await producer.start()
            await consumer.start()
            for number in range(10):
                await producer.send_and_wait(
                    topic, b"same" if number % 3 else b"%s %d" % (name.encode(), number)
                )
                await consumer.getmany(timeout_ms=10)
                await asyncio.wait_for(consumer.commit(), 2)
        except (KafkaError, TimeoutError, asyncio.CancelledError):
            pass  # faults may exhaust the client's own limits
        finally:
            for end in (producer.stop, consumer.stop):
                with suppress(KafkaError, TimeoutError, asyncio.CancelledError):
                    await asyncio.wait_for(end(), 5)

    asyncio.run(program())


def main(servers: str, topic: str) -> None:
    """Run all programs at once."""
    programs = (kafka_python_program, confluent_kafka_program, aiokafka_program)
    threads = [
        threading.Thread(target=program, args=(servers, topic, program.__name__), daemon=True)
        for program in programs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)


if __name__ == "__main__":
    main(*sys.argv[1:])
