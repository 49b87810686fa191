"""Wrapped clients have the interface of their clients, and record what the program observes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kwire.testing import Broker, History
from tests.testing.async_libraries import run_async

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
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
    yield shared
    shared.faults.clear()


def check(history: History, broker: Broker, **options: Any) -> None:
    history.read_final_records(broker)
    history.check(**options)


def kinds(history: History, broker: Broker) -> list[str]:
    history.read_final_records(broker)
    return [one.kind for one in history.anomalies(at_least_once=False)]


# --- complete programs, with a fault


def kafka_python(broker: Broker, history: History, topic: str, *, is_idempotent: bool) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    servers = broker.bootstrap_servers
    with history.producer(
        KafkaProducer(
            bootstrap_servers=servers,
            enable_idempotence=is_idempotent,
            retry_backoff_ms=10,
            reconnect_backoff_ms=10,
            value_serializer=str.encode,
        ),
        "shop",
    ) as producer:
        assert isinstance(producer, KafkaProducer)
        for _ in range(4):
            assert producer.send(topic, "order").get(20).topic == topic
    with history.consumer(
        KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=topic,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            value_deserializer=bytes.decode,
        ),
        "billing",
    ) as consumer:
        assert isinstance(consumer, KafkaConsumer)
        assert next(consumer).value == "order"
        count = 1
        while count < 4:
            count += sum(map(len, consumer.poll(1000).values()))
        consumer.commit()


def aiokafka(broker: Broker, history: History, topic: str, *, is_idempotent: bool) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    servers = broker.bootstrap_servers

    async def program() -> None:
        async with history.producer(
            AIOKafkaProducer(
                bootstrap_servers=servers, enable_idempotence=is_idempotent, retry_backoff_ms=10
            ),
            "shop",
        ) as producer:
            assert isinstance(producer, AIOKafkaProducer)
            for _ in range(3):
                await producer.send_and_wait(topic, b"order")
            await (await producer.send(topic, b"order"))
        async with history.consumer(
            AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest"),
            "billing",
        ) as consumer:
            assert (await consumer.getone()).value == b"order"
            async for record in consumer:
                assert record.offset == 1
                break
            count = 2
            while count < 4:
                count += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
            await consumer.commit()

    run_async(program)


def confluent_kafka(broker: Broker, history: History, topic: str, *, is_idempotent: bool) -> None:
    from confluent_kafka import Consumer, Producer

    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = history.producer(
        Producer({**CONFLUENT, **servers, "enable.idempotence": is_idempotent}), "shop"
    )
    assert isinstance(producer, Producer)
    delivered = []
    for _ in range(4):
        producer.produce(
            topic, "order", on_delivery=lambda error, message: delivered.append(message.offset())
        )
        assert producer.flush(20) == len(producer) == 0
    assert len(delivered) == 4
    consumer = history.consumer(
        Consumer(
            {
                **servers,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.metrics.push": False,
            }
        ),
        "billing",
        group=topic,
    )
    assert isinstance(consumer, Consumer)
    consumer.subscribe([topic])
    count = 0
    while count < 2:
        message = consumer.poll(1)
        count += message is not None and message.error() is None
    while count < 4:
        count += len(consumer.consume(2, 1))
    consumer.commit(asynchronous=False)
    consumer.close()


PROGRAMS = [kafka_python, aiokafka, confluent_kafka]


@pytest.mark.parametrize("program", PROGRAMS)
def test_correct_program_has_no_anomalies_after_a_lost_response(
    broker: Broker, program: Callable[..., None]
) -> None:
    topic, history = broker.new_topic("orders"), History()
    broker.faults.drop_response("Produce", topic=topic)
    program(broker, history, topic, is_idempotent=True)
    history.expect_all_read(topic)
    check(history, broker)
    assert history.acknowledged_count == 4
    assert [len(one) for one in history._seen.commits.values()] == [1]
    assert history._seen.commits[topic][-1].offset == 4
    [reads] = history._seen.deliveries.values()
    assert [one.offset for one in reads if one.value is not None] == [0, 1, 2, 3]
    assert history._seen.ownership[topic][0].assigned


@pytest.mark.parametrize("program", PROGRAMS)
def test_duplicate_of_a_retry_without_idempotence_is_found(
    broker: Broker, program: Callable[..., None]
) -> None:
    topic, history = broker.new_topic("orders"), History()
    broker.faults.drop_response("Produce", topic=topic)
    program(broker, history, topic, is_idempotent=False)
    assert kinds(history, broker) == ["duplicated"]
    history.check(at_least_once=True)


def test_wrapper_sends_the_requests_of_its_client(broker: Broker) -> None:
    from kafka import KafkaProducer

    topics = [broker.new_topic("orders"), broker.new_topic("orders")]
    for topic in topics:
        with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=topic) as producer:
            for_program = History().producer(producer) if topic == topics[1] else producer
            for_program.send(topic, b"x", key=b"k", headers=[("h", b"v")], timestamp_ms=7).get(10)
    [one], [other] = (broker.requests.find("Produce", topic=topic) for topic in topics)
    [[first], [second]] = (each.request["topic_data"][0]["partition_data"] for each in (one, other))
    assert first["records"] == second["records"]


# --- transactions


def test_transactions_of_confluent_kafka(broker: Broker) -> None:
    from confluent_kafka import Consumer, Producer

    topic, history = broker.new_topic("orders"), History()
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = history.producer(Producer({**CONFLUENT, **servers, "transactional.id": topic}), "payments")
    reader = history.consumer(
        Consumer(
            {
                **servers,
                "group.id": topic,
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": "earliest",
                "enable.metrics.push": False,
            }
        ),
        "billing",
    )
    reader.subscribe([topic])
    producer.init_transactions()
    for ends in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"payment")
        producer.flush()
        while (message := reader.poll(1)) is None or message.error():
            pass
        ends()
    reader.close()
    history.read_final_records(broker)
    aborted, committed = history.anomalies()
    assert (aborted.kind, committed.kind) == ("read before commit", "read before commit")
    assert aborted.text.startswith(f"billing read {topic}-0 offset 0 at ")
    assert "b'payment' (record 1 of payments in transaction 1 of payments" in aborted.text
    assert "and transaction 1 of payments was aborted at " in aborted.text
    assert "but transaction 2 of payments was committed at " in committed.text


def test_transactions_of_kafka_python(broker: Broker) -> None:
    from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

    topic, bills, history = broker.new_topic("orders"), broker.new_topic("bills"), History()
    producer = history.producer(
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic), "payments"
    )
    producer.init_transactions()
    for ends in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.send(topic, b"payment").get(10)
        producer.send_offsets_to_transaction(
            {TopicPartition(bills, 0): OffsetAndMetadata(7, "", -1)}, "billing"
        )
        ends()
    producer.close()
    with history.consumer(
        KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, isolation_level="read_uncommitted", group_id=None
        ),
        "reader",
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        assert next(consumer).offset == 0
    assert kinds(history, broker) == ["read after abort"]
    assert [one.offset for one in history._seen.commits["billing"]] == [7]


def test_transactions_of_aiokafka(broker: Broker) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    topic, bills, history = broker.new_topic("orders"), broker.new_topic("bills"), History()

    async def program() -> None:
        async with history.producer(
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic), "payments"
        ) as producer:
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"payment")
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send_offsets_to_transaction({TopicPartition(bills, 0): 7}, "billing")
                await producer.send_and_wait(topic, b"payment")
        async with history.consumer(
            AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
        ) as consumer:
            assert (await consumer.getone()).offset == 0

    run_async(program)
    assert kinds(history, broker) == ["read after abort"]
    assert [one.offset for one in history._seen.commits["billing"]] == [7]


# --- groups


def test_consumer_that_commits_too_early_is_found(broker: Broker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    topic, history = broker.new_topic("orders"), History()
    broker.produce(topic, "1", "2", "3")
    consumer = history.consumer(
        Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.metrics.push": False,
            }
        ),
        "billing",
    )
    consumer.subscribe([topic])
    while (message := consumer.poll(1)) is None or message.error():
        pass
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    consumer.commit(offsets=[TopicPartition(topic, 0, end)], asynchronous=False)
    consumer.close()
    history.read_final_records(broker)
    [found] = history.anomalies()
    assert found.kind == "committed before read"
    assert found.text.startswith(f"billing committed {topic}-0 offset 3 at ")
    assert found.text.endswith("but had not read offsets 1, 2")


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka", "confluent-kafka"])
def test_rebalance_is_no_anomaly(broker: Broker, client: str) -> None:
    """The second member reads on from the committed offsets, and later the first one reads everything."""
    topic, history = broker.new_topic("orders", partitions=2), History()
    for partition in (0, 1):
        broker.produce(topic, "1", "2", partition=partition)
    if client == "aiokafka":
        run_async(lambda: rebalance_aiokafka(broker, history, topic))
    else:
        {"kafka-python": rebalance_kafka_python, "confluent-kafka": rebalance_confluent_kafka}[client](
            broker, history, topic
        )
    history.expect_all_read(topic)
    check(history, broker)
    changes = history._seen.ownership[topic]
    assert {one.member for one in changes} == {"first", "second"}
    assert any(not one.assigned for one in changes)


def rebalance_kafka_python(broker: Broker, history: History, topic: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer

    calls: list[str] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            calls.append("assigned")

        def on_partitions_revoked(self, revoked: Any) -> None:
            calls.append("revoked")

    consumers: list[Any] = []
    for name in ("first", "second"):
        consumer = history.consumer(
            KafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers,
                group_id=topic,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=50,
            ),
            name,
        )
        consumer.subscribe([topic], listener=Listener())
        consumers.append(consumer)
        broker.wait_until(
            lambda: [one.poll(500) for one in consumers] and all(one.assignment() for one in consumers)
        )
        for one in consumers:
            one.poll(200)
            one.commit()
    for one in consumers:
        one.close()
    assert calls.count("assigned") >= 3
    assert "revoked" in calls


async def rebalance_aiokafka(broker: Broker, history: History, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer

    consumers: list[Any] = []
    for name in ("first", "second"):
        consumer = history.consumer(
            AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap_servers,
                group_id=topic,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=50,
            ),
            name,
        )
        consumers.append(consumer)
        await consumer.start()
        while not all(one.assignment() for one in consumers):
            await asyncio.sleep(0.02)
        for one in consumers:
            await one.getmany(timeout_ms=500)
            await one.getmany(timeout_ms=200)
            await one.commit()
    for one in consumers:
        await one.stop()


def rebalance_confluent_kafka(broker: Broker, history: History, topic: str) -> None:
    from confluent_kafka import Consumer

    calls: list[str] = []
    consumers: list[Any] = []
    for name in ("first", "second"):
        consumer = history.consumer(
            Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": topic,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "enable.metrics.push": False,
                    "heartbeat.interval.ms": 50,
                }
            ),
            name,
            group=topic,
        )
        consumer.subscribe([topic], on_assign=lambda own, partitions: calls.append(repr(own)))
        consumers.append(consumer)

        def poll() -> bool:
            for one in consumers:
                message = one.poll(0.05)
                if message is not None and message.error() is None:
                    one.commit(message=message, asynchronous=False)
            return all(one.assignment() for one in consumers)

        broker.wait_until(poll)
        for _ in range(10):
            poll()
    for one in consumers:
        one.close()
    assert all("wrapper of" in call for call in calls)


# --- errors


def test_wrong_objects_are_refused(broker: Broker) -> None:
    from confluent_kafka import Producer

    history = History()
    with pytest.raises(
        TypeError, match=r"kafka\.KafkaProducer, aiokafka\.AIOKafkaProducer, confluent_kafka\.Producer, "
    ):
        history.producer(5)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    with pytest.raises(TypeError, match="only clients of these classes can be wrapped"):
        history.consumer(producer)
    with pytest.raises(TypeError, match="this client is wrapped already"):
        history.producer(history.producer(producer))


def test_record_that_the_client_refuses_is_not_sent(broker: Broker) -> None:
    from confluent_kafka import KafkaException, Producer

    history = History()
    producer = history.producer(
        Producer({**CONFLUENT, "bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 1_000})
    )
    with pytest.raises(KafkaException):
        producer.produce("orders", bytes(2_000))
    check(history, broker)
    assert history._seen.sent == []


def test_attributes_are_those_of_the_client() -> None:
    class KafkaProducer:
        config: dict[str, Any] = {"client_id": "billing"}
        attribute = 1

    KafkaProducer.__module__ = "kafka.producer"
    client = KafkaProducer()
    first, second = History().producer(client), History()
    first.attribute = 2
    assert (client.attribute, first.attribute) == (2, 2)
    assert [second.producer(client)._kwire_name for _ in range(2)] == ["billing", "billing (producer 2)"]  # type: ignore[attr-defined]
