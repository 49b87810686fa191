"""Client libraries with TLS 1.2 and TLS 1.3, with and without client certificates.

Each scenario starts its own broker. It observes the records, and the errors of a client that does not trust
the broker, of one without a certificate, and of one with a certificate of an unknown authority.
"""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiokafka.errors
import kafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from interop.brokers import Broker
from interop.scenario import scenario
from interop.tls import LISTENERS, Encrypted, encrypted
from interop.tools import IMPATIENT, TOOLS, a_file, run
from interop.workload import records

WAIT_S = 30.0
COUNT = 300
SIZE_BYTES = 1_000


def on_each_listener(broker: Broker, observe: Callable[[Encrypted, str, Path | None], Any]) -> Any:
    """Return an observation per listener. Only clients of MUTUAL have a certificate."""
    with encrypted(type(broker)) as one:
        return {name: observe(one, name, one.key_store() if name == "MUTUAL" else None) for name in LISTENERS}


def values() -> list[bytes]:
    return [(sent.value or b"").ljust(SIZE_BYTES, b".") for sent in records(COUNT)]


@scenario(seconds=120)
def kafka_python(broker: Broker) -> Any:
    def observe(one: Encrypted, listener: str, own: Path | None) -> Any:
        settings = one.of_python(listener, own)
        topic = f"kafka-python-{listener.lower()}"
        producer = KafkaProducer(**settings)
        for value in values():
            producer.send(topic, value)
        producer.flush()
        producer.close()
        consumer = KafkaConsumer(
            topic, **settings, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000
        )
        taken = [next(consumer).value for _ in range(COUNT)]
        consumer.close()
        try:
            wrong = one.of_python(listener, own, one.others)
            KafkaAdminClient(**wrong, bootstrap_timeout_ms=3_000)
            refused = "accepted"
        except kafka.errors.KafkaError as error:
            refused = type(error).__name__
        return [taken == values(), refused]

    return on_each_listener(broker, observe)


@scenario(seconds=120)
def aio_kafka(broker: Broker) -> Any:
    async def work(one: Encrypted, listener: str, own: Path | None) -> Any:
        settings = one.of_python(listener, own)
        topic = f"aiokafka-{listener.lower()}"
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        await asyncio.gather(*[await producer.send(topic, value) for value in values()])
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
        await consumer.start()
        taken = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(COUNT)]
        await consumer.stop()
        stranger = AIOKafkaProducer(**one.of_python(listener, own, one.others))
        try:
            await stranger.start()
            refused = "accepted"
        except aiokafka.errors.KafkaError as error:
            refused = type(error).__name__
        finally:
            await stranger.stop()
        return [taken == values(), refused]

    return on_each_listener(broker, lambda *given: asyncio.run(work(*given)))


@scenario(seconds=120)
def confluent_kafka(broker: Broker) -> Any:
    def observe(one: Encrypted, listener: str, own: Path | None) -> Any:
        settings = one.of_librdkafka(listener, own)
        topic = f"confluent-{listener.lower()}"
        producer = Producer({**settings, "linger.ms": 5})
        for value in values():
            producer.produce(topic, value)
        assert producer.flush(WAIT_S) == 0
        consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        taken: list[bytes | None] = []
        until = time.monotonic() + WAIT_S
        while len(taken) < COUNT and time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                taken.append(message.value())
        consumer.close()
        refused = {"untrusted broker": _first_error(one.of_librdkafka(listener, own, one.others))}
        if listener == "MUTUAL":
            stranger = one.key_store(one.others, "stranger")
            refused["no certificate"] = _first_error(one.of_librdkafka(listener, None))
            refused["foreign certificate"] = _first_error(one.of_librdkafka(listener, stranger))
        return [taken == values(), refused]

    return on_each_listener(broker, observe)


def _first_error(settings: Any) -> str:
    """Return the name of the first error that librdkafka reports."""
    errors: list[KafkaError] = []
    watched: Any = {**settings, "error_cb": errors.append, "log_level": 0}
    client = AdminClient(watched)
    until = time.monotonic() + 10
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    return errors[0].name() if errors else "none"


@scenario(seconds=240)
def java(broker: Broker) -> Any:
    """Run the console producer and a console consumer, and clients that must be refused at once."""

    def observe(one: Encrypted, listener: str, own: Path | None) -> Any:
        topic = f"java-{listener.lower()}"
        at = ("--bootstrap-server", one.bootstrap[listener])
        with a_file(one.of_java(own)) as config:
            lines = "".join(f"{value.decode()}\n" for value in values())
            produced = run(
                f"{TOOLS}.ConsoleProducer", *at, "--command-config", config, "--topic", topic, stdin=lines
            )
            consumed = run(
                f"{TOOLS}.consumer.ConsoleConsumer",
                *(*at, "--command-config", config, "--topic", topic, "--from-beginning"),
                *("--max-messages", str(COUNT)),
            )
        clients = {"untrusted broker": one.of_java(own, one.others)}
        if listener == "MUTUAL":
            clients["no certificate"] = one.of_java(None)
            clients["foreign certificate"] = one.of_java(one.key_store(one.others, "stranger"))
        refused = {}
        for name, properties in clients.items():
            with a_file(properties + IMPATIENT) as config:
                tried = run(f"{TOOLS}.TopicCommand", *at, "--command-config", config, "--list")
            refused[name] = [tried.status, "SslAuthenticationException" in tried.stdout + tried.stderr]
        return {
            "produced": produced.status,
            "consumed": consumed.stdout.split() == [value.decode() for value in values()],
            "refused": refused,
        }

    return on_each_listener(broker, observe)
