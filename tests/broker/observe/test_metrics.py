"""The /metrics page: the names that dashboards for Kafka use, with the values that clients caused."""

from __future__ import annotations

import os
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client.parser import text_string_to_metric_families

from kwire.broker.api.request.request_log import client_bytes
from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER, RESERVOIR_SIZE, RequestMetrics
from kwire.broker.node.node import Node
from kwire.broker.observe.exposition import CONTENT_TYPE, Exposition, labels
from kwire.broker.observe.metrics import SLICE, metrics
from kwire.broker.observe.requests import request_metrics
from kwire.broker.storage.disk import StorageError
from kwire.cli.shared.client_settings import ClientSettings
from kwire.cli.shared.command_client import CommandClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.registry import RequestHeader
from tests.broker.observe.conftest import Series, serve_observed
from tests.broker.replication.test_two_brokers import BrokerPair
from tests.node_harness import NodeHarness

TOPIC = "kafka_server_brokertopicmetrics"
REQUESTS = "kafka_network_requestmetrics"


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, b"x" * 100)
    assert producer.flush(10) == 0


def consume(bootstrap: str, topic: str, count: int) -> None:
    host, port = bootstrap.split(":")
    with CommandClient(ClientSettings(((host, int(port)),))) as cluster:
        # Look up the coordinator first: librdkafka waits a second if there is none yet.
        cluster.retry(lambda: cluster.coordinator("g"))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "fetch.wait.max.ms": 10, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    for _ in range(count):
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()


async def test_authentications_are_counted_per_listener() -> None:
    secured = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_alice="secret" user_bob="other";'
        ),
    }

    def log_in(bootstrap: str, password: str) -> None:
        failures: list[KafkaError] = []
        client = AdminClient(
            {
                "bootstrap.servers": bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": password,
                "log_level": 0,
                "error_cb": failures.append,  # type: ignore[dict-item]
            }
        )
        if password == "secret":
            assert client.list_topics(timeout=10).brokers
            return
        until = time.monotonic() + 10
        while not failures and time.monotonic() < until:
            client.poll(0.1)
        assert failures[0].code() == KafkaError._AUTHENTICATION
        assert "Invalid username or password" in failures[0].str()

    async with serve_observed(secured) as node:
        plain, sasl = node.running.bootstrap.split(",")
        for password in ("secret", "guessed"):
            await trio.to_thread.run_sync(log_in, sasl, password)
        await trio.to_thread.run_sync(produce, plain, "t", 1)
        seen = await node.metrics()

    def authentications(listener: str, name: str) -> float:
        prefix = "kafka_server_socket_server_metrics"
        return seen.value(f"{prefix}_{name}", listener=listener, networkProcessor="0")

    assert authentications("SASL_PLAINTEXT", "successful_authentication_total") >= 1
    assert authentications("SASL_PLAINTEXT", "failed_authentication_total") >= 1
    assert authentications("SASL_PLAINTEXT", "expired_connections_killed_count") == 0
    assert authentications("SASL_PLAINTEXT", "successful_reauthentication_total") == 0
    assert authentications("PLAINTEXT", "successful_authentication_total") == 0, (
        "a PLAINTEXT listener does not authenticate"
    )
    assert seen.value("kafka_network_socketserver_expiredconnectionskilledcount") == 0


async def test_metrics_count_produce_fetch_and_group_requests() -> None:
    async with serve_observed({"offsets.topic.num.partitions": "1"}) as node:
        bootstrap = node.running.bootstrap
        await trio.to_thread.run_sync(partial(produce, bootstrap, "orders", 20))
        first = await node.metrics()
        await trio.to_thread.run_sync(partial(consume, bootstrap, "orders", 20))
        await trio.to_thread.run_sync(partial(produce, bootstrap, "orders", 5))
        then = await node.metrics()
    assert first.value(f"{TOPIC}_messagesin_total", topic="orders") == 20
    assert first.value(f"{TOPIC}_bytesin_total", topic="orders") > 2_000
    assert first.value(f"{TOPIC}_bytesout_total", topic="orders") == 0
    assert then.value(f"{TOPIC}_messagesin_total", topic="orders") == 25
    assert then.value(f"{TOPIC}_bytesout_total", topic="orders") == first.value(
        f"{TOPIC}_bytesin_total", topic="orders"
    )
    assert then.value(f"{TOPIC}_messagesin_total") == sum(
        value for (name, *series), value in then.items() if series and name == f"{TOPIC}_messagesin_total"
    )
    assert then.value(f"{TOPIC}_totalfetchrequests_total", topic="orders") >= 1
    committed = then.value("kafka_server_raftmetrics_high_watermark")
    assert (
        0 < committed <= then.value("kafka_log_log_logendoffset", topic="__cluster_metadata", partition="0")
    )
    assert then.value("kafka_log_log_logendoffset", topic="orders", partition="0") == 25
    assert then.value("kafka_log_log_size", topic="orders", partition="0") == then.value(
        f"{TOPIC}_bytesin_total", topic="orders"
    )
    assert then.value("kafka_coordinator_group_groupmetadatamanager_numgroups") == 1
    assert then.value("kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == 1
    produced = [
        value
        for (name, *series), value in then.items()
        if name == f"{REQUESTS}_requests_total" and ("request", "Produce") in series
    ]
    assert sum(produced) == then.value(f"{REQUESTS}_totaltimems_count_total", request="Produce") >= 2
    quantiles = [
        then.value(f"{REQUESTS}_totaltimems", request="Produce", quantile=series)
        for series in ("0.50", "0.99")
    ]
    assert 0 < quantiles[0] <= quantiles[1] < 10_000
    assert then.value(f"{REQUESTS}_totaltimems_count_total", request="FetchConsumer") == then.value(
        f"{REQUESTS}_totaltimems_count_total", request="Fetch"
    )


@pytest.mark.linux("metrics from /proc")
async def test_metrics_of_a_healthy_single_broker() -> None:
    async with serve_observed({"num.partitions": "3"}) as node:
        await trio.to_thread.run_sync(partial(produce, node.running.bootstrap, "orders", 1))
        series = await node.metrics()
        content_type = (await node.http.get("/metrics")).headers["content-type"]
    assert content_type == CONTENT_TYPE
    expected = {
        "kafka_server_replicamanager_underreplicatedpartitions": 0,
        "kafka_server_replicamanager_underminisrpartitioncount": 0,
        "kafka_server_replicamanager_offlinereplicacount": 0,
        "kafka_server_replicamanager_partitioncount": 3,
        "kafka_server_replicamanager_leadercount": 3,
        "kafka_server_kafkaserver_brokerstate": 3,
        "kafka_controller_kafkacontroller_activecontrollercount": 1,
        "kafka_controller_kafkacontroller_activebrokercount": 1,
        "kafka_controller_kafkacontroller_fencedbrokercount": 0,
        "kafka_controller_kafkacontroller_offlinepartitionscount": 0,
        "kafka_controller_kafkacontroller_globaltopiccount": 1,
        "kafka_controller_kafkacontroller_globalpartitioncount": 3,
        "kafka_log_logmanager_offlinelogdirectorycount": 0,
        "kafka_server_raftmetrics_current_leader": 1,
        "kafka_server_raftmetrics_current_epoch": 1,
    }
    assert {name: series.value(name) for name in expected} == expected
    assert series.value("process_resident_memory_bytes") > 1 << 20
    assert series.value("process_virtual_memory_bytes") >= series.value("process_resident_memory_bytes")
    assert 0 <= time.time() - series.value("process_start_time_seconds") < 24 * 3600
    assert 0 < series.value("process_cpu_seconds_total") <= sum(os.times()[:2])
    assert series.value("process_open_fds") >= 3


async def test_a_partition_without_its_follower_is_under_replicated() -> None:
    async with serve_observed({"min.insync.replicas": "2"}) as node:
        await trio.to_thread.run_sync(partial(produce, node.running.bootstrap, "orders", 1))
        broker = node.running.broker
        assert broker is not None
        partition = broker.replica_manager.get("orders", 0)
        assert partition is not None
        image = broker.image.topics["orders"].partitions[0]
        partition.become_leader(image._replace(replicas=(broker.node_id, 99)))
        series = await node.metrics()
    labels_of_partition = {"topic": "orders", "partition": "0"}
    assert series.value("kafka_server_replicamanager_underreplicatedpartitions") == 1
    assert series.value("kafka_server_replicamanager_underminisrpartitioncount") == 1
    assert series.value("kafka_cluster_partition_underreplicated", **labels_of_partition) == 1
    assert series.value("kafka_cluster_partition_replicascount", **labels_of_partition) == 2
    assert series.value("kafka_cluster_partition_insyncreplicascount", **labels_of_partition) == 1


async def test_messages_of_a_deleted_topic_stay_in_the_total() -> None:
    def delete(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.delete_topics(["orders"])["orders"].result(10)

    async with serve_observed() as node:
        bootstrap = node.running.bootstrap
        await trio.to_thread.run_sync(partial(produce, bootstrap, "orders", 7))
        await trio.to_thread.run_sync(partial(delete, bootstrap))
        series = await node.metrics()
    assert series.value(f"{TOPIC}_messagesin_total") == 7
    assert (f"{TOPIC}_messagesin_total", ("topic", "orders")) not in series


@pytest.mark.parametrize(
    ("config", "code", "failed"),
    [
        ({"max.message.bytes": "100"}, KafkaError.MSG_SIZE_TOO_LARGE, 0),
        ({"message.timestamp.before.max.ms": "1000"}, KafkaError.INVALID_TIMESTAMP, 1),
    ],
    ids=["too large", "too old"],
)
async def test_failed_produce_requests_are_counted_as_in_kafka(
    config: dict[str, str], code: int, failed: int
) -> None:
    def produce_refused(bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("strict", num_partitions=1, config=config)])["strict"].result(10)
        refusals = []
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce(
            "strict", os.urandom(1000), timestamp=1, on_delivery=lambda error, _: refusals.append(error)
        )
        producer.flush(10)
        assert [error.code() for error in refusals] == [code]  # type: ignore[union-attr]

    async with serve_observed() as node:
        await trio.to_thread.run_sync(partial(produce_refused, node.running.bootstrap))
        series = await node.metrics()
    assert series.value(f"{TOPIC}_totalproducerequests_total", topic="strict") == 1
    assert series.value(f"{TOPIC}_failedproducerequests_total", topic="strict") == failed
    assert series.value(f"{TOPIC}_messagesin_total", topic="strict") == 0


def test_request_metrics_are_empty_before_the_first_request() -> None:
    out = Exposition()
    request_metrics(RequestMetrics(lambda: 0.0), out)
    assert out.text() == ""


# The parts of the page.


def test_labels_are_escaped_and_samples_grouped_by_family() -> None:
    out = Exposition()
    out.gauge("a", 1, labels(path='C:\\ "x"\ny'))
    out.counter("b_total", 2)
    out.gauge("a", 3)
    assert out.text() == (
        '# TYPE a gauge\na{path="C:\\\\ \\"x\\"\\ny"} 1\na 3\n# TYPE b_total counter\nb_total 2\n'
    )
    [first, _] = text_string_to_metric_families(out.text())
    assert first.samples[0].labels == {"path": 'C:\\ "x"\ny'}


def record(stats: RequestMetrics, header: RequestHeader, *, by_follower: bool = False) -> None:
    channel = SimpleNamespace(id=7, peer_host="10.0.0.9")
    number = stats.log.begin(header, client_bytes("client", channel.peer_host), channel.id, 10, 0.0)
    counted_as = (FETCH_FOLLOWER, header.api_version) if by_follower else None
    stats.record(number, header, channel, 10, 20, 0.0, counted_as)


@pytest.fixture
def stats() -> RequestMetrics:
    """Return requests that took 1 to 100 ms, and fetches: 10 of a follower and 1 of a consumer."""
    now = [0.0]
    stats = RequestMetrics(lambda: now[0])
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    for number in range(1, 101):
        now[0] = number / 1000
        record(stats, header)
    for number in range(11):
        record(stats, RequestHeader(ApiKey.FETCH, 12, 1, None), by_follower=number < 10)
    return stats


def test_quantiles_are_those_of_recent_requests(stats: RequestMetrics) -> None:
    out = Exposition()
    request_metrics(stats, out)
    series = Series(out.text())
    assert series.value(f"{REQUESTS}_totaltimems", request="Produce", quantile="0.50") == 50
    assert series.value(f"{REQUESTS}_totaltimems", request="Produce", quantile="0.99") == 99
    counts = {
        name: series.value(f"{REQUESTS}_totaltimems_count_total", request=name)
        for name in ("Produce", "Fetch", "FetchFollower", "FetchConsumer")
    }
    assert counts == {"Produce": 100, "Fetch": 11, "FetchFollower": 10, "FetchConsumer": 1}


def test_local_and_remote_times_add_up_and_sizes_have_quantiles() -> None:
    now = [0.0]
    stats = RequestMetrics(lambda: now[0])
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    channel = SimpleNamespace(id=7, peer_host="10.0.0.9")
    number = stats.log.begin(header, client_bytes("client", channel.peer_host), channel.id, 10, 0.0)
    now[0] = 0.005
    stats.record(number, header, channel, 123, 20, 0.0, None, handled_s=0.002)
    out = Exposition()
    request_metrics(stats, out)
    series = Series(out.text())
    expected = {"totaltimems": 5, "localtimems": 2, "remotetimems": 3, "requestbytes": 123}
    for name, value in expected.items():
        assert series.value(f"{REQUESTS}_{name}", request="Produce", quantile="0.999") == value
        assert series.value(f"{REQUESTS}_{name}_count_total", request="Produce") == 1


def test_request_times_are_kept_in_a_bounded_reservoir() -> None:
    stats = RequestMetrics(lambda: 0.0)
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client")
    for _ in range(3 * RESERVOIR_SIZE):
        record(stats, header)
    [times] = stats.apis.values()
    assert times.count == 3 * RESERVOIR_SIZE
    assert len(times.recent) == RESERVOIR_SIZE


def running(broker: Node) -> Any:
    server = SimpleNamespace(request_metrics=RequestMetrics(lambda: 0.0), listeners=[], connections={})
    loop, peers = SimpleNamespace(idle_ratio=lambda: 1.0), SimpleNamespace(traffic={})
    return SimpleNamespace(node=broker, broker=broker, server=server, loop=loop, peers=peers)


def series_of(broker: Node) -> Series:
    out = Exposition()
    for _ in metrics(running(broker), out):
        pass
    return Series(out.text())


def test_offline_replicas_are_counted_after_and_before_a_restart() -> None:
    harness = NodeHarness()
    harness.create("t", partitions=4)
    lost = [index for index in range(4) if harness.directory_of("t", index).startswith("/d2/")]
    assert len(lost) == 2
    log = harness.node.log_manager.get("t", lost[0])
    assert log is not None
    harness.node.log_manager.handle_log_failure(log, StorageError("broken"))
    failed = series_of(harness.node)
    harness.node.begin_shutdown()
    harness.node.finish_shutdown()
    # With an empty partition.metadata, the log directory fails at the start.
    harness.disk.write(f"{log.directory}/partition.metadata", b"", sync=True)
    restarted = series_of(NodeHarness(harness.disk).node)
    kept = {("partition", str(index)) for index in range(4) if index not in lost}
    for page in (failed, restarted):
        assert page.value("kafka_server_replicamanager_partitioncount") == 4
        assert page.value("kafka_server_replicamanager_leadercount") == 2
        assert page.value("kafka_server_replicamanager_offlinereplicacount") == 2
        assert page.value("kafka_log_logmanager_offlinelogdirectorycount") == 1
        for name in ("kafka_cluster_partition_replicascount", "kafka_log_log_size"):
            series = {labels[0] for found, *labels in page if found == name and ("topic", "t") in labels}
            assert series == kept, name


def test_metrics_of_a_leader_and_its_follower() -> None:
    pair = BrokerPair()
    pair.produce()
    pair.settle()
    leader, follower = (series_of(pair.nodes[broker_id].node) for broker_id in (1, 2))
    size_bytes = pair.log(1).size_bytes
    assert leader.value(f"{TOPIC}_replicationbytesout_total") == size_bytes
    assert follower.value(f"{TOPIC}_replicationbytesin_total") == size_bytes
    labels_of_partition = {"topic": "t", "partition": "0"}
    lag = "kafka_server_fetcherlagmetrics_consumerlag"
    assert follower.value(lag, clientId="fetch-0-1", **labels_of_partition) == 0
    assert lag not in leader.names
    for page, leads in ((leader, 1), (follower, 0)):
        assert page.value("kafka_server_replicamanager_leadercount") == leads
        assert page.value("kafka_server_replicamanager_partitioncount") == 1
        assert page.value("kafka_server_replicamanager_underreplicatedpartitions") == 0
        assert page.value("kafka_cluster_partition_insyncreplicascount", **labels_of_partition) == 2 * leads


def test_metrics_of_many_partitions_are_written_in_slices() -> None:
    pair = BrokerPair(partitions=2 * SLICE + 1)
    assert sum(1 for _ in metrics(running(pair.nodes[1].node), Exposition())) >= 4
