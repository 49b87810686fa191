"""Transactional producers of the three Python clients, and their read_committed consumers."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from interop.brokers import Broker
from interop.raw import create_topic
from interop.raw_client import RawClient
from interop.scenario import scenario

ROUNDS, EACH = 6, 5
WAIT_S = 20


def transaction_values(number: int) -> list[bytes]:
    return [b"%d-%d" % (number, index) for index in range(EACH)]


def is_committed(number: int) -> bool:
    return number % 3 != 1


def read_by_librdkafka(broker: Broker, topic: str, isolation: str) -> list[str]:
    """Return the values of all records in partition 0 of the topic at this isolation level."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"{topic}-{isolation}",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[str] = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{topic} does not end"
        if message.error() is not None:
            break
        found.append((message.value() or b"").decode())
    consumer.close()
    return found


def isolation_views(broker: Broker, topic: str) -> Any:
    return {
        level: read_by_librdkafka(broker, topic, level) for level in ("read_committed", "read_uncommitted")
    }


def create_topic_pair(broker: Broker, name: str) -> tuple[str, str]:
    with RawClient(broker.bootstrap) as client:
        for topic in (name, f"{name}-copy"):
            create_topic(client, topic)
    return name, f"{name}-copy"


@scenario(seconds=120)
def confluent(broker: Broker) -> Any:
    """Commit and abort with librdkafka, copy records and commit their offsets, and fence a producer."""
    topic, copy = create_topic_pair(broker, "transactions-confluent")
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(WAIT_S)
    for number in range(ROUNDS):
        producer.begin_transaction()
        for value in transaction_values(number):
            producer.produce(topic, value, partition=0)
        producer.flush(WAIT_S)
        if is_committed(number):
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    seen: dict[str, Any] = {"source": isolation_views(broker, topic)}
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"{topic}-group",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    reader.subscribe([topic])
    copied = 0
    for commit in (False, True, True):
        producer.begin_transaction()
        last = None
        for _ in range(EACH):
            message = reader.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            producer.produce(copy, message.value(), partition=0)
            last = message
        assert last is not None
        position = ConfluentPartition(topic, 0, (last.offset() or 0) + 1)
        producer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), WAIT_S)
        producer.flush(WAIT_S)
        if commit:
            producer.commit_transaction(WAIT_S)
            copied += EACH
        else:
            producer.abort_transaction(WAIT_S)
            reader.seek(ConfluentPartition(topic, 0, 0))
    committed = reader.committed([ConfluentPartition(topic, 0)], WAIT_S)
    seen["copied"] = [copied, isolation_views(broker, copy), committed[0].offset]
    reader.close()
    producer.begin_transaction()
    producer.produce(topic, b"of the first", partition=0)
    producer.flush(WAIT_S)
    other = Producer(settings)
    other.init_transactions(WAIT_S)
    try:
        producer.commit_transaction(WAIT_S)
        seen["fenced"] = "not at all"
    except KafkaException as error:
        seen["fenced"] = [error.args[0].name(), error.args[0].fatal()]
    seen["in the end"] = isolation_views(broker, topic)
    return seen


@scenario(seconds=120)
def kafka_python(broker: Broker) -> Any:
    """Commit and abort records, and commit an offset in a transaction, with kafka-python."""
    topic, _ = create_topic_pair(broker, "transactions-kafka-python")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    producer.init_transactions()
    for number in range(ROUNDS):
        producer.begin_transaction()
        for value in transaction_values(number):
            producer.send(topic, value, partition=0)
        producer.flush()
        if is_committed(number):
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        {TopicPartition(topic, 0): OffsetAndMetadata(7, "note", -1)}, f"{topic}-group"
    )
    producer.commit_transaction()
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=f"{topic}-group",
        isolation_level="read_committed",
        consumer_timeout_ms=3000,
        enable_auto_commit=False,
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    committed = consumer.committed(partition)
    consumer.seek_to_beginning()
    own = [record.value.decode() for record in consumer]
    consumer.close()
    return {"own": own, "committed": committed, "others": isolation_views(broker, topic)}


@scenario(seconds=120)
def aiokafka(broker: Broker) -> Any:
    """Commit and abort records, and commit an offset in a transaction, with aiokafka."""
    topic, _ = create_topic_pair(broker, "transactions-aiokafka")

    async def work() -> Any:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
        await producer.start()
        for number in range(ROUNDS):
            await producer.begin_transaction()
            for value in transaction_values(number):
                await producer.send_and_wait(topic, value, partition=0)
            if is_committed(number):
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({AioPartition(topic, 0): 9}, f"{topic}-group")
        await producer.commit_transaction()
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=f"{topic}-group",
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        await consumer.start()
        partition = AioPartition(topic, 0)
        consumer.assign([partition])
        committed = await consumer.committed(partition)
        await consumer.seek_to_beginning(partition)
        own: list[str] = []
        while batch := await consumer.getmany(timeout_ms=3000):
            for records in batch.values():
                own += [(record.value or b"").decode() for record in records]
        await consumer.stop()
        return [own, committed]

    own, committed = asyncio.run(work())
    return {"own": own, "committed": committed, "others": isolation_views(broker, topic)}
