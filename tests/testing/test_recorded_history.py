"""`History.of`: a planted bug of each kind is found in recorded requests, and correct programs pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pytest

from kwire.testing import Broker, Cluster, History, Kafka, Proxy, Recorder
from kwire.testing.broker import Process
from kwire.testing.history import Anomaly, AnomalyKind
from kwire.wire.batch import build
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.testing.async_libraries import run_async
from tests.testing.peer import Peer

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Clients leave sockets open when faults exhaust their own limits.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

FEW = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
QUICK: dict[str, Any] = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10}
CONFLUENT: dict[str, Any] = {
    "enable.metrics.push": False,
    "log_level": 0,
    "linger.ms": 0,
    "retry.backoff.ms": 10,
    "reconnect.backoff.ms": 10,
}


@pytest.fixture(scope="module")
def shared(process: Process) -> Iterator[Broker]:
    with Broker(FEW, process=process) as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    shared.requests.clear()
    yield shared
    shared.faults.clear()


def kinds(history: History) -> list[str]:
    return sorted({one.kind for one in history.anomalies(at_least_once=False)})


# --- producers


def produce_with_kafka_python(broker: Broker, topic: str, *, is_idempotent: bool) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=is_idempotent, **QUICK
    )
    for _ in range(5):
        producer.send(topic, b"the same value").get(20)
    producer.close()


def produce_with_aiokafka(broker: Broker, topic: str, *, is_idempotent: bool) -> None:
    from aiokafka import AIOKafkaProducer

    async def program() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, enable_idempotence=is_idempotent, retry_backoff_ms=10
        ) as producer:
            for _ in range(5):
                await producer.send_and_wait(topic, b"the same value")

    run_async(program)


def produce_with_confluent_kafka(broker: Broker | Proxy, topic: str, *, is_idempotent: bool) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            **CONFLUENT,
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": is_idempotent,
        }
    )
    for _ in range(5):
        producer.produce(topic, b"the same value")
        assert producer.flush(20) == 0


PRODUCERS = [produce_with_kafka_python, produce_with_aiokafka, produce_with_confluent_kafka]


@pytest.mark.parametrize("produce", PRODUCERS)
@pytest.mark.parametrize("is_idempotent", [True, False])
def test_retry_after_a_lost_response_is_one_send(
    broker: Broker, produce: Callable[..., None], is_idempotent: bool
) -> None:
    """The values are equal, so only producer id and sequence, or the retry rule, identify a record."""
    topic = broker.new_topic("orders")
    broker.faults.drop_response("Produce", topic=topic)
    broker.faults.truncate_response("Produce", topic=topic)
    produce(broker, topic, is_idempotent=is_idempotent)
    history = broker.history()
    assert history.acknowledged_count == 5
    if is_idempotent:
        history.check()
        return
    found = history.anomalies(at_least_once=False)
    assert {one.kind for one in found} == {"duplicated"}
    assert [one.text.partition(" has ")[0] for one in found] == [f"{topic}-0 offset 1", f"{topic}-0 offset 2"]
    history.check(at_least_once=True)


def test_history_of_the_requests_needs_nothing_else(broker: Broker) -> None:
    topic = broker.new_topic("orders")
    produce_with_kafka_python(broker, topic, is_idempotent=True)
    broker.produce(topic, "from the test", "the same value")
    history = History.of(broker.requests)
    history.check()
    assert history.acknowledged_count == 5


def test_history_without_final_records_is_refused() -> None:
    history = History.of(Recorder())
    with pytest.raises(ValueError, match="the history has no final records: pass kafka="):
        history.check()
    history.set_final_records([])
    history.check()


def test_lost_record_is_found(broker: Broker) -> None:
    """The records are read from another topic of the same name: the broker itself loses nothing."""
    topic = broker.new_topic("orders")
    produce_with_confluent_kafka(broker, topic, is_idempotent=True)
    with Broker(FEW) as other:
        other.create_topic(topic)
        other.produce(topic, *["the same value"] * 4)
        with Kafka(other.bootstrap_servers) as kafka:
            [lost] = History.of(broker.requests, kafka=kafka).anomalies()
    assert lost.kind == "lost"
    assert lost.text.startswith(f"{topic}-0 lacks b'the same value' (record 5 of rdkafka, sent at ")
    assert lost.text.endswith("with offset 4)")


def test_reordered_records_are_found(broker: Broker) -> None:
    """A producer without idempotence may have several requests in flight, of which the first fails."""
    topic = broker.new_topic("orders")
    broker.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic)
    with Peer(broker, "billing") as peer:
        for value in (b"first", b"second", b"first"):
            peer.request(produce(topic, (1, value)), 9)
    [found] = broker.history().anomalies(at_least_once=False)
    assert found.kind == "reordered"
    assert found.text.startswith(f"{topic}-0 offset 1 has b'first' (record 1 of billing, sent at ")
    broker.history().check(at_least_once=True)


def produce(
    topic: str, *records: tuple[int, bytes], acks: int = -1, key: bytes | None = None
) -> ProduceRequest:
    """Return a request with records, each a timestamp and a value, without a producer id."""
    batch = build([(timestamp, key, value, []) for timestamp, value in records])
    data = PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def attempt_count(history: History) -> list[int]:
    return [one.attempts for one in history._seen.sent]


def test_equal_record_is_a_retry_only_after_a_failure(broker: Broker) -> None:
    topic = broker.new_topic("orders")
    with Peer(broker, "a") as peer:
        peer.request(produce(topic, (1, b"x"), (1, b"x")), 9)
        peer.request(produce(topic, (1, b"x")), 9)  # a response came, so this is a new record
    history = broker.history()
    history.check()
    assert attempt_count(history) == [1, 1, 1]
    broker.faults.drop_response("Produce", topic=topic)
    with Peer(broker, "a") as peer:
        peer.send(produce(topic, (2, b"y"), (2, b"y")), 9)
        assert peer.receive(4) == b""
    with Peer(broker, "a") as peer, Peer(broker, "b") as other:
        other.request(produce(topic, (2, b"y")), 9)  # another client
        peer.request(produce(topic, (3, b"y")), 9)  # another timestamp
        peer.request(produce(topic, (2, b"y")), 9)  # a retry, in a batch of another size
        peer.request(produce(topic, (2, b"y")), 9)
        peer.request(produce(topic, (2, b"y")), 9)  # both have been sent again: a new record
    history = broker.history()
    assert attempt_count(history) == [1, 1, 1, 2, 2, 1, 1, 1]
    assert kinds(history) == ["duplicated"]


def test_records_without_acknowledgments_are_no_retries_and_may_be_lost(broker: Broker) -> None:
    topic = broker.new_topic("orders")
    with Peer(broker) as peer:
        for _ in range(3):
            peer.send(produce(topic, (1, b"x"), acks=0), 9)
    broker.records(topic, count=3)
    history = broker.history()
    history.check()
    assert attempt_count(history) == [1, 1, 1]
    assert history.acknowledged_count == 0


def test_response_to_a_client_that_has_disconnected_is_no_acknowledgment(broker: Broker) -> None:
    topic = broker.new_topic("orders")
    broker.faults.delay("Produce", 0.1, topic=topic)
    with Peer(broker) as peer:
        peer.send(produce(topic, (1, b"x")), 9)
    broker.wait_until(lambda: not broker.records(topic) or True)
    assert broker.history().acknowledged_count == 0


def test_records_that_may_be_missing_are_not_lost(broker: Broker) -> None:
    """They are before the log start offset, in a compacted topic, or in a deleted topic."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topics = [
        broker.new_topic("trimmed"),
        broker.new_topic("compacted", config={"cleanup.policy": "compact"}),
        broker.new_topic("deleted"),
    ]
    for topic in topics:
        with Peer(broker) as peer:
            peer.request(produce(topic, (1, b"x"), (2, b"y"), key=b"k"), 9)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    [trimmed] = admin.delete_records([TopicPartition(topics[0], 0, 1)]).values()
    trimmed.result(10)
    [deleted] = admin.delete_topics([topics[2]]).values()
    deleted.result(10)
    history = broker.history()
    history.check()
    assert history.acknowledged_count == 6
    del history._seen.final[topics[1], 0]
    history.check()


# --- consumers and transactions


def consume(broker: Broker, topic: str, count: int, level: str, client_id: str, **more: Any) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "enable.metrics.push": False,
            "log_level": 0,
            "bootstrap.servers": broker.bootstrap_servers,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
            "client.id": client_id,
            "group.id": client_id,
            **more,
        }
    )
    consumer.subscribe([topic])
    for _ in range(count):
        while (message := consumer.poll(1)) is None or message.error():
            pass
    if more.get("enable.auto.commit") is not False:
        consumer.commit(asynchronous=False)
    consumer.close()


def test_uncommitted_reads_are_found(broker: Broker) -> None:
    from confluent_kafka import Producer

    topic = broker.new_topic("orders")
    producer = Producer(
        {
            **CONFLUENT,
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": topic,
            "client.id": "payments",
        }
    )
    producer.init_transactions()

    def transaction(end: Callable[[], None], *readers: str) -> None:
        producer.begin_transaction()
        producer.produce(topic, b"payment")
        producer.flush()
        for reader in readers:
            consume(broker, topic, 1, "read_uncommitted", reader)
        end()

    transaction(producer.abort_transaction, "too early")
    transaction(producer.commit_transaction)
    consume(broker, topic, 1, "read_committed", "correct")
    history = broker.history()
    history.check(allow={"read before commit"})
    consume(broker, topic, 2, "read_uncommitted", "too late")
    early, late = sorted(broker.history().anomalies())
    assert late.kind == "read before commit"
    assert late.text.startswith(f"too early read {topic}-0 offset 0 at ")
    assert "by a read_uncommitted consumer: b'payment' (record 1 of payments in transaction 1 of" in late.text
    assert early.kind == "read after abort"
    assert early.text.startswith(f"too late read {topic}-0 offset 0 at ")
    assert f"but transaction 1 of {topic} was aborted at " in early.text


def test_lost_response_to_the_end_of_a_transaction_is_resolved_by_its_retry(broker: Broker) -> None:
    from confluent_kafka import Producer

    topic = broker.new_topic("orders")
    producer = Producer(
        {**CONFLUENT, "bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    )
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        if number == 1:
            broker.faults.drop_response("EndTxn")
        producer.commit_transaction()
    history = broker.history()
    history.check()
    assert [one.outcome.value for one in history._seen.transactions] == ["acknowledged"] * 3
    assert [len(one.sends) for one in history._seen.transactions] == [1, 1, 1]
    del history._seen.final[topic, 0]
    assert [one.text.partition(",")[0] for one in history.anomalies()] == [
        f"transaction {number} of {topic} was committed" for number in (1, 2, 3)
    ]


def test_commit_ahead_of_the_reads_is_found(broker: Broker) -> None:
    """The consumer commits the end of the log, as with `position` after a seek, and reads less."""
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

    topic, group = broker.new_topic("orders"), broker.new_name("group")
    broker.produce(topic, "1", "2")
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        client_id="billing",
    )
    assert next(consumer).offset == 0
    consumer.commit()
    broker.history().check()
    broker.faults.ignore("Fetch", client_id="billing")
    broker.produce(topic, "3", "4")
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(4, "", -1)})
    with suppress(Exception):
        consumer.close(autocommit=False, timeout_ms=100)
    [found] = broker.history().anomalies()
    assert found.kind == "committed before read"
    assert found.text.startswith(f"{group} committed {topic}-0 offset 4 at ")
    assert found.text.endswith(" s, but had not read offsets 2, 3")


def test_commit_of_a_lower_offset_is_found_unless_the_group_has_gone_back(broker: Broker) -> None:
    topic, group = broker.new_topic("orders"), broker.new_name("group")
    broker.wait_until(lambda: broker.committed(group) == {}, description="a coordinator")
    broker.produce(topic, "1", "2", "3")

    def commit(offset: int) -> OffsetCommitRequest:
        one = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        return OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[one])]
        )

    def fetch(offset: int) -> FetchRequest:
        one = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[one])])

    with Peer(broker, "reader") as reader, Peer(broker, "admin") as admin:
        reader.request(fetch(0), 12)
        reader.request(commit(3), 8)
        reader.request(fetch(1), 12)
        reader.request(commit(2), 8)
        broker.history().check()
        admin.request(commit(0), 8)  # resets the offsets, without a generation and without reading
        reader.request(commit(3), 8)
        broker.history().check()
        reader.request(commit(2), 8)
    [found] = broker.history().anomalies()
    assert found.kind == "commit moved back"
    assert found.text.startswith(f"{group} committed {topic}-0 offset 2 at ")


def test_unread_records_of_a_group_are_found(broker: Broker) -> None:
    topic, other = broker.new_topic("orders"), broker.new_topic("bills")
    produce_with_confluent_kafka(broker, other, is_idempotent=True)
    broker.produce(topic, "1", "2")
    consume(broker, topic, 2, "read_committed", "billing")
    history = broker.history()
    history.expect_all_read("billing")
    history.check()
    broker.produce(topic, "3")
    history = broker.history()
    history.expect_all_read("billing")
    assert history.anomalies() == [Anomaly("unread", f"billing did not read {topic}-0 offset 2: b'3'")]


# --- complete programs

ALLOWED: Final[set[AnomalyKind]] = {"read before commit", "read after abort"}
"""The consumer of kafka-python is a read_uncommitted consumer, by default."""


@pytest.mark.parametrize("seed", range(3))
def test_correct_programs_have_no_anomalies_with_random_faults(seed: int) -> None:
    with Broker(FEW) as broker:
        topic = broker.new_topic("orders", partitions=2)
        broker.faults.random(seed, probability=0.1)
        # In another process, because clients that fail leave sockets open.
        subprocess.run(
            [sys.executable, "-m", "tests.testing.history_programs", broker.bootstrap_servers, topic],
            check=False,
            timeout=120,
            capture_output=True,
        )
        broker.faults.clear()
        broker.crash()
        broker.start()
        history = broker.history()
        history.check(allow=ALLOWED)
        assert history.acknowledged_count > 0


def test_history_of_a_cluster_covers_a_failover() -> None:
    with Cluster() as cluster:
        topic = cluster.new_topic("orders")
        produce_with_confluent_kafka_before_and_after(cluster, topic)
        history = cluster.history()
        history.check()
        assert history.acknowledged_count == 10
        assert len({one.sequence for one in history._seen.sent}) == 1
        of_all = History.of(*[one.requests for one in cluster.brokers.values()])
        of_all.check()
        assert of_all.acknowledged_count == 10


def produce_with_confluent_kafka_before_and_after(cluster: Cluster, topic: str) -> None:
    """Produce with one producer before and after the crash of the leader."""
    from confluent_kafka import Producer

    producer = Producer(
        {**CONFLUENT, "bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
    )
    for number in range(10):
        if number == 5:
            cluster.leader(topic).crash()
        producer.produce(topic, b"same")
        assert producer.flush(30) == 0


# --- records from before the history


@pytest.mark.parametrize("client", [produce_with_kafka_python, produce_with_confluent_kafka])
def test_equal_records_from_before_the_history_are_no_duplicates(
    broker: Broker, client: Callable[..., None]
) -> None:
    topic = broker.new_topic("orders")
    client(broker, topic, is_idempotent=True)
    broker.requests.clear()
    fault = broker.faults.drop_response("Produce", topic=topic)
    client(broker, topic, is_idempotent=True)
    assert fault.hits == 1
    assert kinds(broker.history()) == []


def test_retry_to_a_topic_with_log_append_time_is_no_anomaly(broker: Broker) -> None:
    topic = broker.new_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    with Proxy(broker.bootstrap_servers) as proxy:
        fault = proxy.faults.drop_response("Produce", topic=topic)
        produce_with_confluent_kafka(proxy, topic, is_idempotent=True)
        assert fault.hits == 1
        assert kinds(proxy.history()) == []


# --- limits


@pytest.mark.parametrize("limit", [{"max_recorded_requests": 3}, {"max_recorded_bytes": 10_000}])
def test_dropped_requests_are_an_error_until_clear(process: Process, limit: dict[str, int]) -> None:
    with Broker(FEW, process=process, **limit) as broker:  # type: ignore[arg-type]
        topic = broker.new_topic("orders")
        with Peer(broker) as peer:
            for number in range(10):
                peer.request(produce(topic, (number, bytes(2_000))), 9)
        [(name, value)] = limit.items()
        message = f"the recorder has dropped requests of this test.* {name}={value}"
        with pytest.raises(ValueError, match=message):
            broker.history()
        with pytest.raises(ValueError, match=message):
            History.of(broker.requests)
        broker.requests.clear()
        with Peer(broker) as peer:
            peer.request(produce(topic, (1, b"y")), 9)
        history = broker.history()
        history.check()
        assert history.acknowledged_count == 1


def test_fetch_response_that_is_too_long_to_record_is_an_error() -> None:
    with Broker(FEW, max_recorded_bytes=64_000) as broker:
        topic = broker.new_topic("orders")
        broker.produce(topic, bytes(2_000))
        consume(broker, topic, 1, "read_committed", "billing")
        with pytest.raises(
            ValueError, match=r"a response to Fetch of billing was not recorded.*max_recorded_bytes=\d+ or"
        ):
            broker.history()
    with Broker(FEW, max_recorded_bytes=640_000) as broker:
        topic = broker.new_topic("orders")
        broker.produce(topic, bytes(2_000))
        consume(broker, topic, 1, "read_committed", "billing")
        broker.history().check()
