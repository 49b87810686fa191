"""`Broker` with unmodified clients: kafka-python, aiokafka and confluent-kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.testing import Broker, TopicPartition
from kwire.testing.broker import Process
from kwire.testing.history import History

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FEW = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
CONFLUENT: dict[str, Any] = {
    "enable.metrics.push": False,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
}


@pytest.fixture(scope="module")
def broker(process: Process) -> Iterator[Broker]:
    with Broker(FEW, process=process) as broker:
        yield broker


def values(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in broker.records(topic, count=count)]


def test_kafka_python_produces_and_consumes(broker: Broker) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic, group = broker.new_topic("orders", partitions=2), broker.new_name("group")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send(topic, b"one", key=b"k", headers=[("h", b"v")], partition=1).get(10)
    producer.close()
    [record] = broker.records(topic, count=1)
    assert (record.partition, record.offset, record.key, record.value) == (1, 0, b"k", b"one")
    assert list(record.headers) == [("h", b"v")]
    [second] = broker.produce(topic, "two", key="k", partition=1)
    assert second.offset == 1
    consumer = KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    )
    assert [next(consumer).value for _ in range(2)] == [b"one", b"two"]
    assert broker.lag(group, topic) == 2
    described = broker.group(group)
    assert described.state == "Stable"
    [member] = described.members
    assert member.partitions == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    consumer.commit()
    assert broker.committed(group)[TopicPartition(topic, 1)] == 2
    assert broker.lag(group, topic) == 0
    consumer.close()
    broker.wait_until(lambda: broker.group(group).state == "Empty")


async def aiokafka(broker: Broker, topic: str, group: str) -> list[bytes | None]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    address = broker.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=address, compression_type="lz4") as producer:
        await producer.send_and_wait(topic, b"one")
    sent = await asyncio.to_thread(values, broker, topic, 1)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        assert (await consumer.getone()).value == b"one"
        await consumer.commit()
        await asyncio.to_thread(broker.wait_until, lambda: broker.lag(group, topic) == 0)
    return sent


def test_aiokafka_produces_and_consumes(broker: Broker) -> None:
    topic, group = broker.new_topic("orders"), broker.new_name("group")
    results: list[list[bytes | None]] = []
    # In a separate thread: the test runner may have a running event loop in this one.
    thread = threading.Thread(
        target=lambda: results.append(asyncio.run(aiokafka(broker, topic, group))), daemon=True
    )
    thread.start()
    thread.join(30)
    assert results == [[b"one"]]


def test_confluent_kafka_reads_only_committed_transactions(broker: Broker) -> None:
    from confluent_kafka import Consumer, Producer

    topic, group = broker.new_topic("orders"), broker.new_name("group")
    address = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**address, "transactional.id": broker.new_name("tx"), "enable.metrics.push": False})
    producer.init_transactions()
    for value, ends in (
        (b"aborted", producer.abort_transaction),
        (b"committed", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        ends()
    assert values(broker, topic, 1) == [b"committed"]
    assert [one.value for one in broker.records(topic, uncommitted=True)] == [b"aborted", b"committed"]
    consumer = Consumer({**CONFLUENT, **address, "group.id": group, "group.protocol": "consumer"})
    consumer.subscribe([topic])
    while (message := consumer.poll(1)) is None or message.error():
        pass
    assert message.value() == b"committed"
    [member] = broker.group(group).members
    assert member.partitions == {TopicPartition(topic, 0)}
    consumer.commit(message=message, asynchronous=False)
    offset = message.offset()
    assert offset is not None
    assert broker.committed(group) == {TopicPartition(topic, 0): offset + 1}
    consumer.close()


def test_producer_delivers_after_a_broker_crash(broker: Broker) -> None:
    from confluent_kafka import Producer

    topic = broker.new_topic("orders")
    quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 20, "retry.backoff.ms": 20}
    address = {"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": False}
    producer = Producer({**address, **quick, "enable.idempotence": True, "log_level": 0})
    producer.produce(topic, b"before")
    assert producer.flush(10) == 0
    broker.crash()
    producer.produce(topic, b"meanwhile")
    assert producer.flush(0.05) == 1
    broker.start()
    assert producer.flush(10) == 0
    assert values(broker, topic, 2) == [b"before", b"meanwhile"]


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_history_finds_a_duplicate_after_a_lost_response(broker: Broker, is_idempotent: bool) -> None:
    from confluent_kafka import Producer

    topic, history = broker.new_topic("orders"), History()
    address = {"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": False, "log_level": 0}
    quick = {"reconnect.backoff.ms": 10, "retry.backoff.ms": 20, "linger.ms": 0}
    producer = Producer({**address, **quick, "enable.idempotence": is_idempotent})

    def on_delivery(error: object, message: Any) -> None:
        history.on_ack(message.value(), message.offset())

    broker.faults.drop_response("Produce", topic=topic)
    for value in (b"1", b"2"):
        history.on_send("billing", (topic, 0), value, is_idempotent=is_idempotent)
        producer.produce(topic, value, on_delivery=on_delivery)
        assert producer.flush(10) == 0
    history.set_final_records(broker.records(topic))
    history.check(at_least_once=True)
    if is_idempotent:
        history.check()
    else:
        with pytest.raises(AssertionError, match=r"duplicated: .* offset 1 has b'1' \(record 1 of billing"):
            history.check()


def test_kafka_python_retries_after_errors_and_lost_responses(broker: Broker) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic = broker.new_topic("orders")
    quick: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "client_id": topic,
        "retry_backoff_ms": 10,
        "reconnect_backoff_ms": 10,
    }
    producer = KafkaProducer(**quick)
    faults = [
        broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2),
        broker.faults.drop_response("Produce", topic=topic),
        broker.faults.truncate_response("Produce", topic=topic),
        broker.faults.delay("Produce", 0.05, topic=topic),
    ]
    for value in (b"1", b"2", b"3"):
        producer.send(topic, value).get(10)
    assert all(fault.is_over for fault in faults)
    faults = [
        broker.faults.return_error("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2),
        broker.faults.drop_response("Fetch", topic=topic),
    ]
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **quick)
    assert [next(consumer).value for _ in range(3)] == [b"1", b"2", b"3"]
    assert all(fault.is_over for fault in faults)
    consumer.close()
    producer.close()
    assert values(broker, topic, 3) == [b"1", b"2", b"3"], "kafka-python is idempotent by default"


def test_aiokafka_looks_up_its_coordinator_again(broker: Broker) -> None:
    topic, group = broker.new_topic("orders"), broker.new_name("group")
    fault = broker.faults.return_error("OffsetCommit", "NOT_COORDINATOR", topic=topic)
    results: list[list[bytes | None]] = []
    thread = threading.Thread(
        target=lambda: results.append(asyncio.run(aiokafka(broker, topic, group))), daemon=True
    )
    thread.start()
    thread.join(30)
    assert results == [[b"one"]]
    assert fault.hits == 1
