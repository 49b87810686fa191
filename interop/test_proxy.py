"""`kwire.testing.Proxy` in front of Apache Kafka, with Java tools and unmodified Python clients."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.brokers import ApacheKafka, start_tool
from interop.certificates import Certificates
from interop.cluster.nodes import KAFKA, Cluster
from interop.test_command_line_security import Secured
from interop.tools import TOOLS, run
from kwire.testing import ApiName, Proxy, TopicPartition

PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
CONFLUENT: dict[str, Any] = {"enable.metrics.push": False, "auto.offset.reset": "earliest"}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def broker(only: str) -> Iterator[ApacheKafka]:
    if only == "kwire":
        pytest.skip("needs Apache Kafka")
    broker = ApacheKafka()
    broker.start()
    yield broker
    broker.discard()


@pytest.fixture
def proxy(broker: ApacheKafka) -> Iterator[Proxy]:
    with Proxy(broker.bootstrap, timeout_s=30) as proxy:
        yield proxy
        direct = f"'{broker.host}', port: {broker.port}"
        assert direct not in str(proxy.requests), "a response contains the address of the broker"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_clients_use_the_proxy_only(proxy: Proxy, protocol: str) -> None:
    topic, group = proxy.new_topic(partitions=2), proxy.new_name("group")
    server = ("--bootstrap-server", proxy.bootstrap_servers)
    refused = proxy.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2, topic=topic)
    dropped = proxy.faults.drop_response("Fetch", topic=topic)
    moved = proxy.faults.return_error("OffsetCommit", "NOT_COORDINATOR", topic=topic)
    produced = run(PRODUCER, *server, "--topic", topic, stdin="one\ntwo\n")
    assert produced.status == 0, produced
    consumed = run(
        CONSUMER,
        *(*server, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2"),
        *("--command-property", f"group.protocol={protocol}"),
    )
    assert {"one", "two"} <= {*consumed.stdout.splitlines()}, consumed
    assert (refused.hits, dropped.hits, moved.hits) == (2, 1, 1)
    assert proxy.lag(group, topic) == 0
    by_topic = {one.version for one in proxy.requests.find("Produce", topic=topic)}
    assert by_topic
    assert min(by_topic) >= 13, "the request has a topic id, and the filter a name"
    joined: ApiName = "ConsumerGroupHeartbeat" if protocol == "consumer" else "JoinGroup"
    assert proxy.requests.find(joined)
    described = run(f"{TOOLS}.TopicCommand", *server, "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described.stdout, described
    assert proxy.requests.find("DescribeTopicPartitions", topic=topic)
    groups = run(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", group)
    assert topic in groups.stdout, groups
    cluster = run(f"{TOOLS}.ClusterTool", "list-endpoints", *server)
    assert "127.0.0.1" in cluster.stdout, cluster
    assert proxy.requests.find("DescribeCluster")


def test_kafka_python(proxy: Proxy) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic, group = proxy.new_topic(), proxy.new_name("group")
    fault = proxy.faults.return_error("Produce", "NOT_LEADER_OR_FOLLOWER", times=2, topic=topic)
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers)
    producer.send(topic, b"one").get(20)
    producer.close()
    assert fault.hits == 2
    consumer = KafkaConsumer(
        topic, bootstrap_servers=proxy.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"one"
    consumer.commit()
    consumer.close()
    assert proxy.committed(group)[TopicPartition(topic, 0)] == 1


def test_aiokafka_survives_random_faults(proxy: Proxy) -> None:
    from aiokafka import AIOKafkaProducer

    topic = proxy.new_topic()
    proxy.faults.random(7, probability=0.2, topic=topic)

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=True
        ) as producer:
            for number in range(50):
                await producer.send_and_wait(topic, b"%d" % number)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [one.value for one in proxy.records(topic)] == [b"%d" % number for number in range(50)]
    assert any(one.fault for one in proxy.requests)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_kafka_in_transactions(proxy: Proxy, protocol: str) -> None:
    from confluent_kafka import Consumer, Producer

    topic, group = proxy.new_topic(partitions=2), proxy.new_name("group")
    ended = proxy.faults.drop_response("EndTxn")
    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": proxy.new_name("tx"),
            "enable.metrics.push": False,
        }
    )
    producer.init_transactions(30)
    for value, commits in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=1)
        assert producer.flush(20) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
    assert ended.hits == 1
    config = {"bootstrap.servers": proxy.bootstrap_servers, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**CONFLUENT, **config})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    message = None
    while message is None and time.monotonic() < deadline:
        message = consumer.poll(1)
    assert message is not None
    assert message.value() == b"committed"
    consumer.commit()
    consumer.close()
    assert proxy.lag(group, topic) == 0
    assert len(proxy.records(topic)) == 1


def test_share_groups_are_not_offered(proxy: Proxy) -> None:
    versions = run(
        "org.apache.kafka.tools.BrokerApiVersionsCommand", "--bootstrap-server", proxy.bootstrap_servers
    )
    assert "ShareFetch(78): UNSUPPORTED" in versions.stdout, versions
    assert "ShareGroupHeartbeat(76): 1" in versions.stdout


def test_java_producer_follows_leader_changes_through_the_proxy(only: str) -> None:
    if only == "kwire":
        pytest.skip("needs Apache Kafka")
    with Cluster(KAFKA) as cluster:
        cluster.start()
        cluster.make_topic("t", [[2, 3, 1]])
        with Proxy(cluster.bootstrap, timeout_s=30) as proxy:
            producer = start_tool(
                f"{TOOLS}.VerifiableProducer",
                *("--bootstrap-server", proxy.bootstrap_servers, "--topic", "t", "--acks", "-1"),
                *("--throughput", "200", "--max-messages", "100000"),
                stdout=subprocess.DEVNULL,
            )
            try:
                proxy.wait_until(lambda: len(proxy.requests.find("Produce", topic="t")) > 20)
                cluster.nodes[2].kill()
                cluster.wait_for_another_leader("t", 0, than=2)
                other = cluster.leader("t")
                cluster.start_node(2)
                cluster.wait_until_in_sync("t")
                cluster.elect_preferred_leaders()
                assert cluster.leader("t") == 2 != other

                def moved() -> list[dict[str, Any]]:
                    """Return the addresses of new leaders in Produce responses. KIP-951."""
                    responses = [one.response for one in proxy.requests.find("Produce", topic="t")]
                    return [one for response in responses if response for one in response["node_endpoints"]]

                proxy.wait_until(moved, timeout_s=30)
                before = proxy.end_offsets("t")[0]
                proxy.wait_until(lambda: proxy.end_offsets("t")[0] > before + 100, timeout_s=30)
            finally:
                producer.kill()
                producer.wait(30)
            advertised = {
                (one["node_id"], one["port"])
                for exchange in proxy.requests.find("Metadata")
                for one in (exchange.response or {}).get("brokers", ())
            }
            assert len(advertised) == 3, "each broker has one address"
            assert {(one["node_id"], one["port"]) for one in moved()} <= advertised


def test_clients_authenticate_through_the_proxy_to_a_listener_with_sasl_ssl(
    only: str, tmp_path: Path
) -> None:
    """Clients connect to the proxy without TLS. The proxy connects to the broker over TLS."""
    if only == "kwire":
        pytest.skip("needs Apache Kafka")
    from confluent_kafka import Consumer, Producer
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    secured = Secured(ApacheKafka, tmp_path, Certificates(tmp_path))
    secured.broker.start()
    try:
        properties = secured.login("SASL_SSL")
        with Proxy(f"127.0.0.1:{secured.ports['SASL_SSL']}", properties=properties, timeout_s=30) as proxy:
            topic, group = proxy.new_topic(partitions=2), proxy.new_name("group")
            dropped = proxy.faults.drop_response("Produce", topic=topic)
            login = {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "alice",
                "bootstrap_servers": proxy.bootstrap_servers,
            }
            kafka_python = KafkaProducer(**login, sasl_plain_password="alice-secret")
            kafka_python.send(topic, b"x" * 300_000, partition=0).get(30)
            kafka_python.close()
            assert dropped.hits == 1
            java = tmp_path / "java.properties"
            lines = {**properties, "security.protocol": "SASL_PLAINTEXT"}.items()
            java.write_text("".join(f"{key}={value}\n" for key, value in lines))
            server = ("--bootstrap-server", proxy.bootstrap_servers, "--topic", topic)
            produced = run(PRODUCER, *server, "--command-config", str(java), stdin="from Java\n")
            assert produced.status == 0, produced
            config = {
                "bootstrap.servers": proxy.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": "alice-secret",
            }
            producer = Producer({**config, "enable.metrics.push": False})
            producer.produce(topic, b"from librdkafka")
            assert producer.flush(30) == 0
            consumer = Consumer({**CONFLUENT, **config, "group.id": group, "enable.auto.commit": False})
            consumer.subscribe([topic])
            values: list[Any] = []
            deadline = time.monotonic() + 60
            while len(values) < 3 and time.monotonic() < deadline:
                message = consumer.poll(1)
                values += [message.value()] if message is not None and message.error() is None else []
            consumer.commit(asynchronous=False)
            consumer.close()
            assert sorted(values, key=len) == [b"from Java", b"from librdkafka", b"x" * 300_000]
            assert proxy.lag(group, topic) == 0
            assert "alice-secret" not in str(proxy.requests)
            with pytest.raises(KafkaError):
                KafkaProducer(**login, sasl_plain_password="wrong", bootstrap_timeout_ms=3_000)
    finally:
        secured.broker.discard()
