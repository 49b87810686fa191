"""Correct programs, in the forms that users write, have no anomalies in any kind of history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.testing import Broker, History
from tests.testing.async_libraries import run_async

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FEW = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
CONFLUENT: dict[str, Any] = {
    "enable.metrics.push": False,
    "log_level": 0,
    "linger.ms": 0,
    "retry.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(FEW) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.requests.clear()
    yield shared
    shared.faults.clear()


def consumer_config(broker: Broker, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.metrics.push": False,
    }


def read(consumer: Any, count: int) -> None:
    """Read and commit records with a consumer of confluent-kafka."""
    while count:
        message = consumer.poll(1)
        count -= message is not None and message.error() is None
    consumer.commit(asynchronous=False)


# --- recorded requests


def test_record_that_is_sent_again_after_an_abort_is_a_new_record(broker: Broker) -> None:
    """The program repeats the transaction with the timestamps of its events."""
    from confluent_kafka import KafkaException, Producer

    topic = broker.new_topic("orders")
    producer = Producer(
        {**CONFLUENT, "bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    )
    producer.init_transactions()
    refused = broker.faults.return_error("Produce", "INVALID_RECORD", topic=topic)
    while True:
        producer.begin_transaction()
        producer.produce(topic, b"order", timestamp=1_700_000_000_000)
        try:
            producer.commit_transaction(20)
            break
        except KafkaException:
            producer.abort_transaction(20)
    assert refused.hits == 1
    assert len(broker.records(topic)) == 1
    broker.history().check()


def test_reset_of_the_offsets_by_a_client_with_the_same_client_id_is_no_anomaly(broker: Broker) -> None:
    """Clients of confluent-kafka have the same client id unless the program sets one."""
    from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    topic, group = broker.new_topic("orders"), broker.new_name("group")
    broker.produce(topic, "1", "2")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": False})
    for offset in (0, 2):
        consumer = Consumer(consumer_config(broker, group))
        consumer.subscribe([topic])
        read(consumer, 2)
        consumer.close()
        [done] = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset)])]
        ).values()
        done.result()
        broker.produce(topic, "skipped")
    broker.history().check()


def test_records_that_a_group_read_before_the_history_are_not_unread(broker: Broker) -> None:
    from confluent_kafka import Consumer

    topic, group = broker.new_topic("orders"), broker.new_name("group")
    for _ in range(2):
        broker.requests.clear()
        broker.produce(topic, "1", "2")
        consumer = Consumer(consumer_config(broker, group))
        consumer.subscribe([topic])
        read(consumer, 2)
        consumer.close()
        history = broker.history()
        history.expect_all_read(group)
        history.check()
    broker.produce(topic, "3")
    history = broker.history()
    history.expect_all_read(group)
    [found] = history.anomalies()
    assert found.text == f"{group} did not read {topic}-0 offset 4: b'3'"


# --- wrapped clients


def test_key_and_value_of_a_serializing_producer_keep_their_places(broker: Broker) -> None:
    from confluent_kafka import SerializingProducer
    from confluent_kafka.serialization import StringSerializer

    topic, history = broker.new_topic("orders"), History()
    config = {**CONFLUENT, "bootstrap.servers": broker.bootstrap_servers}
    serializers = {"key.serializer": StringSerializer(), "value.serializer": StringSerializer()}
    producer = history.producer(SerializingProducer({**config, **serializers}))
    reports: list[Any] = []
    producer.produce(topic, "customer", "first")
    producer.produce(topic, value="second", key="customer", on_delivery=lambda *found: reports.append(found))
    assert producer.flush(20) == 0
    assert len(reports) == 1
    assert [(one.key, one.value) for one in broker.records(topic)] == [
        (b"customer", b"first"),
        (b"customer", b"second"),
    ]
    history.read_final_records(broker)
    history.check()
    assert [(one.key, one.value) for one in history._seen.sent] == [
        (b"customer", b"first"),
        (b"customer", b"second"),
    ]


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_record_without_acknowledgment_is_not_lost(broker: Broker, client: str) -> None:
    """With acks=0, these clients report success as soon as the request is sent."""
    topic, history = broker.new_topic("orders"), History()
    ignored = broker.faults.ignore("Produce", topic=topic)
    if client == "kafka-python":
        from kafka import KafkaProducer

        one = history.producer(
            KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks=0, enable_idempotence=False)
        )
        one.send(topic, b"order").get(20)
        one.close()
    else:
        from confluent_kafka import Producer

        other = history.producer(
            Producer({**CONFLUENT, "bootstrap.servers": broker.bootstrap_servers, "acks": 0})
        )
        other.produce(topic, b"order")
        assert other.flush(20) == 0
    broker.wait_until(lambda: ignored.hits)
    history.read_final_records(broker)
    history.check()
    assert history.acknowledged_count == 0


@pytest.mark.parametrize("leave", ["close", "unsubscribe"])
def test_partition_of_a_kafka_python_consumer_that_left_has_one_owner(broker: Broker, leave: str) -> None:
    from kafka import KafkaConsumer

    topic, history = broker.new_topic("orders"), History()
    consumers: list[Any] = []
    for _ in range(2):
        consumer = history.consumer(
            KafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, group_id=topic)
        )
        consumers.append(consumer)
        deadline = time.monotonic() + 20
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(500)
        getattr(consumer, leave)()
    for consumer in consumers:
        consumer.close()
    history.read_final_records(broker)
    history.check()


@pytest.mark.parametrize("leave", ["stop", "async with"])
def test_partition_of_an_aiokafka_consumer_that_left_has_one_owner(broker: Broker, leave: str) -> None:
    from aiokafka import AIOKafkaConsumer

    topic, history = broker.new_topic("orders"), History()

    async def program() -> None:
        for _ in range(2):
            consumer = history.consumer(
                AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, group_id=topic)
            )
            await consumer.start()
            deadline = time.monotonic() + 20
            while not consumer.assignment():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            if leave == "async with":
                await consumer.__aexit__(None, None, None)
            else:
                await consumer.stop()

    run_async(program)
    history.read_final_records(broker)
    history.check()
