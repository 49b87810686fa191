"""`Proxy` with unmodified clients: kafka-python, aiokafka and confluent-kafka."""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kwire.client.errors import SecurityMismatch
from kwire.testing import ApiName, Broker, Cluster, Kafka, Proxy, TopicPartition
from kwire.wire.errors import ApiError, ErrorCode
from tests.testing.peer import Peer

# Each test imports its clients: importing kafka-python calls deprecated functions of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FEW = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
CONFLUENT: dict[str, Any] = {"enable.metrics.push": False, "auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Broker]:
    with Broker(FEW) as broker:
        yield broker


@pytest.fixture
def proxy(upstream: Broker) -> Iterator[Proxy]:
    with Proxy(upstream.bootstrap_servers) as proxy:
        yield proxy


def used_ports(proxy: Proxy) -> set[int]:
    """Return the ports of brokers in all recorded responses."""
    found = set()
    for exchange in proxy.requests.find("Metadata"):
        response = exchange.response
        found |= {one["port"] for one in (response or {}).get("brokers", ())}
    return found


def test_kafka_python_produces_and_consumes_with_faults(upstream: Broker, proxy: Proxy) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic, group = proxy.new_topic("orders", partitions=2), proxy.new_name("group")
    refused = proxy.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2, topic=topic)
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)
    producer.send(topic, b"one", partition=1).get(10)
    producer.close()
    assert refused.hits == 2
    moved = proxy.faults.return_error("OffsetFetch", "NOT_COORDINATOR", times=1)
    consumer = KafkaConsumer(
        topic, bootstrap_servers=proxy.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"one"
    consumer.commit()
    assert proxy.committed(group)[TopicPartition(topic, 1)] == 1
    consumer.close()
    assert moved.hits == 1
    assert [one.value for one in proxy.records(topic, count=1)] == [b"one"]
    assert len(upstream.requests.find("Produce", topic=topic)) == 1, "refused requests are not forwarded"
    assert len(proxy.requests.find("Produce", topic=topic)) == 3
    assert not used_ports(proxy) & {int(upstream.bootstrap_servers.rpartition(":")[2])}
    assert "injected fault: returned NOT_LEADER_OR_FOLLOWER" in proxy.requests.format(limit=100)


def test_aiokafka_retries_after_dropped_and_truncated_responses(proxy: Proxy) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = proxy.new_topic()
    dropped = proxy.faults.drop_response("Produce")
    truncated = proxy.faults.truncate_response("Fetch")

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=True
        ) as producer:
            for number in range(3):
                await producer.send_and_wait(topic, b"%d" % number)
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=proxy.bootstrap_servers,
            group_id=proxy.new_name("group"),
            auto_offset_reset="earliest",
        )
        async with consumer:
            return [(await consumer.getone()).value for _ in range(3)]

    assert asyncio.run(asyncio.wait_for(run(), 30)) == [b"0", b"1", b"2"]
    assert (dropped.hits, truncated.hits) == (1, 1)
    assert len(proxy.records(topic)) == 3, "the retry of an idempotent producer is not a second record"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_uses_transactions_and_groups(proxy: Proxy, protocol: str) -> None:
    from confluent_kafka import Consumer, Producer

    topic, group = proxy.new_topic(partitions=2), proxy.new_name("group")
    fault = proxy.faults.return_error("AddPartitionsToTxn", "COORDINATOR_LOAD_IN_PROGRESS", times=1)
    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": proxy.new_name("tx"),
            "enable.metrics.push": False,
        }
    )
    producer.init_transactions(10)
    for value, commits in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=1)
        assert producer.flush(10) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(10)
    assert fault.hits == 1
    consumer = Consumer(
        {
            **CONFLUENT,
            "bootstrap.servers": proxy.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
        }
    )
    consumer.subscribe([topic])
    message = None
    while message is None:
        message = consumer.poll(10)
    assert message.value() == b"committed"
    consumer.commit()
    consumer.close()
    assert proxy.lag(group, topic) == 0
    joined: ApiName = "ConsumerGroupHeartbeat" if protocol == "consumer" else "JoinGroup"
    assert proxy.requests.find(joined)
    assert len(proxy.records(topic)) == 1
    assert len(proxy.records(topic, uncommitted=True)) == 2


def test_clients_follow_the_leader_in_a_cluster() -> None:
    from confluent_kafka import Producer

    with Cluster() as cluster, Proxy(cluster.bootstrap_servers) as proxy:
        topic = proxy.new_topic()
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "enable.metrics.push": False})
        producer.produce(topic, b"before")
        assert producer.flush(30) == 0
        leader = cluster.leader(topic)
        other = next(node for node, broker in cluster.brokers.items() if broker is not leader)
        cluster.move_leader(topic, other)
        producer.produce(topic, b"moved")
        assert producer.flush(30) == 0
        cluster.leader(topic).crash()
        producer.produce(topic, b"after the failover")
        assert producer.flush(30) == 0
        assert [one.value for one in proxy.records(topic)] == [b"before", b"moved", b"after the failover"]
        assert len(used_ports(proxy)) == 3
        assert proxy.requests.find("Produce", topic=topic)


def test_responses_of_the_cluster_are_recorded(proxy: Proxy) -> None:
    from kafka import KafkaProducer

    topic = proxy.new_topic()
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, client_id="billing")
    producer.send(topic, b"one").get(10)
    producer.close()
    [produced] = proxy.requests.find("Produce", client_id="billing", topic=topic, partition=0)
    assert produced.response is not None
    assert produced.response["responses"][0]["partition_responses"][0]["base_offset"] == 0


# --- security


def test_sasl_passes_through_to_the_cluster() -> None:
    from confluent_kafka import Producer
    from kafka import KafkaProducer

    with Broker(FEW, users={"alice": "alice-secret", "bob": "bob-secret"}) as broker:
        properties = broker.client_config("alice").java
        with Proxy(broker.bootstrap_servers, properties=properties) as proxy:
            topic = proxy.new_topic()
            config = {
                **broker.client_config("bob", "SCRAM-SHA-512").kafka_python,
                "bootstrap_servers": proxy.bootstrap_servers,
            }
            kafka_python = KafkaProducer(**config)
            kafka_python.send(topic, b"scram").get(10)
            kafka_python.close()
            confluent = Producer(
                {
                    **broker.client_config("bob").confluent,
                    "bootstrap.servers": proxy.bootstrap_servers,
                    "enable.metrics.push": False,
                }
            )
            confluent.produce(topic, b"plain")
            assert confluent.flush(10) == 0
            assert {one.value for one in proxy.records(topic, count=2)} == {b"scram", b"plain"}
            text = str(proxy.requests)
            assert "SaslAuthenticate 2" in text
            assert "bob-secret" not in text
            proxy.faults.return_error("SaslAuthenticate", "SASL_AUTHENTICATION_FAILED", times=None)
            with Kafka(
                proxy.bootstrap_servers, properties=broker.client_config("bob").java, timeout_s=3
            ) as program:
                assert program.topics(), "requests of kwire.testing itself get no faults"
        # Without credentials of its own, the proxy still serves clients that have some.
        with (
            Proxy(broker.bootstrap_servers) as proxy,
            Kafka(proxy.bootstrap_servers, properties=properties) as program,
        ):
            assert topic in program.topics()
            with pytest.raises(SecurityMismatch, match="SASL"):
                proxy.topics()


def test_wrong_password_fails_the_start() -> None:
    with Broker(FEW, users={"alice": "alice-secret"}) as broker:
        properties = dict(broker.client_config("alice").java)
        properties["sasl.jaas.config"] = properties["sasl.jaas.config"].replace("alice-secret", "wrong")
        with pytest.raises(ApiError) as failed:
            Proxy(broker.bootstrap_servers, properties=properties).start()
        assert failed.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_tls_is_used_to_the_cluster_only(tmp_path: Path) -> None:
    from kafka import KafkaProducer

    with Broker(FEW, tls=True) as broker:
        properties = broker.client_config().java
        with Proxy(broker.bootstrap_servers, properties=properties) as proxy:
            topic = proxy.new_topic()
            fault = proxy.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER")
            producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)
            producer.send(topic, b"x" * 300_000).get(10)
            producer.close()
            assert fault.hits == 1
            assert len(proxy.records(topic)) == 1
        with pytest.raises(SecurityMismatch, match=r"TLS|SSL"):
            Proxy(broker.bootstrap_servers, timeout_s=2).start()


def test_gssapi_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"sasl.mechanism=GSSAPI, which is Kafka's default, is not supported"
    ):
        Proxy("127.0.0.1:9092", properties={"security.protocol": "SASL_PLAINTEXT"}).start()


# --- start and stop


def test_proxy_can_be_started_again(upstream: Broker) -> None:
    proxy = Proxy(upstream.bootstrap_servers)
    for _ in range(2):
        with proxy:
            assert proxy.is_running
            with pytest.raises(RuntimeError, match="the proxy is running already"):
                proxy.start()
            with Peer(proxy):
                pass
        assert not proxy.is_running
        with pytest.raises(RuntimeError, match="the proxy is not running"):
            proxy.bootstrap_servers  # noqa: B018
    proxy.stop()


def test_invalid_bootstrap_servers_are_refused() -> None:
    with pytest.raises(ValueError, match="bootstrap servers are host:port, not 'kafka'"):
        Proxy("kafka").start()
    servers: Any = ["127.0.0.1:9092"]
    with pytest.raises(TypeError, match="bootstrap_servers is a str"):
        Proxy(servers)


def test_importing_the_proxy_does_not_import_its_event_loop() -> None:
    program = "import sys, kwire.testing; kwire.testing.Proxy; print(*sorted(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "kwire.testing.proxy.proxy" in output
    assert not [name for name in output if name.startswith(("kwire.broker", "kwire.client"))]


def test_replaced_threads_are_refused(upstream: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_new_thread() -> None:
        """Stand for the function of a library with threads of its own."""

    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    with pytest.raises(RuntimeError, match="so a proxy cannot run in the process of the test: start the"):
        Proxy(upstream.bootstrap_servers).start()


def test_history_of_a_proxy_finds_duplicates(proxy: Proxy) -> None:
    from kafka import KafkaProducer

    orders = proxy.new_topic("orders")
    proxy.faults.drop_response("Produce", times=1)
    producer = KafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=False, retries=5, acks="all"
    )
    producer.send(orders, b"first").get(10)
    producer.close()
    with pytest.raises(AssertionError, match="duplicate"):
        proxy.history().check()
