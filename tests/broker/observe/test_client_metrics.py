"""Metrics that clients push (KIP-714), on the /metrics page."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import trio
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from kwire.broker.api.telemetry.client_instances import ClientMetadata
from kwire.broker.metadata.image import RESOURCE_CLIENT_METRICS
from kwire.broker.node.node import Node
from kwire.broker.observe.client_metrics import LONGEST_TEXT, SLICE, client_metrics
from kwire.broker.observe.exposition import Exposition
from kwire.cli.admin.configs import alter_configs
from kwire.cli.shared.client_settings import ClientSettings
from kwire.cli.shared.command_client import CommandClient
from kwire.wire.otlp import Labels, Point, PointKind
from kwire.wire.primitives import Uuid
from tests.broker.observe.conftest import ObservedNode, Series, serve_observed
from tests.node_harness import NodeHarness

INSTANCE_ID = Uuid(bytes(range(16)))
LABELS = {"client_instance_id": "AAECAwQFBgcICQoLDA0ODw", "client_id": 'a "client"'}
CLIENT = ClientMetadata('a "client"', "python", "3.11", "127.0.0.1", 50_000, 1)
LATER_MS = 900_000


def page(*points: Point, instances: int = 1, client: ClientMetadata = CLIENT) -> str:
    telemetry = NodeHarness().node.telemetry
    for number in range(instances):
        instance_id = Uuid((int.from_bytes(INSTANCE_ID, "big") + number).to_bytes(16, "big"))
        telemetry.pushed_metrics.take(instance_id, client, points, until_ms=LATER_MS)
    out = Exposition()
    for _ in client_metrics(telemetry, out):
        pass
    return out.text()


def gauge(name: str, value: float, labels: Labels = ()) -> Point:
    return Point(name, labels, value, PointKind.GAUGE, is_monotonic=False)


def test_pushed_metrics_have_valid_names_and_client_labels() -> None:
    labels = (
        ("topic", "t\n"),
        ("node.id", "1"),
        ("1st", "x"),
        ("client_id", "somebody else"),
        ("__name__", "up"),
    )
    output = Series(
        page(
            gauge("org.apache.kafka.consumer.lag", 5, labels),
            Point("org.apache.kafka.producer.record.send.total", (), 7, PointKind.DELTA, is_monotonic=True),
            Point("org.apache.kafka.producer.bytes", (), 9, PointKind.TOTAL, is_monotonic=True),
            Point("org.apache.kafka.producer.open", (), 2, PointKind.TOTAL, is_monotonic=False),
            gauge("process_cpu_seconds_total", 1),
        )
    )
    own = {**LABELS, "topic": "t\n", "node_id": "1", "_1st": "x", "_name__": "up"}
    assert output.value("org_apache_kafka_consumer_lag", **own) == 5
    assert output.value("org_apache_kafka_producer_record_send_total", **LABELS) == 7
    assert output.value("org_apache_kafka_producer_bytes_total", **LABELS) == 9
    assert output.value("org_apache_kafka_producer_open", **LABELS) == 2
    # A client cannot overwrite a metric of this node.
    assert output.value("client_process_cpu_seconds_total", **LABELS) == 1
    assert "process_cpu_seconds_total" not in output.names
    software = {"client_software_name": "python", "client_software_version": "3.11"}
    source = {"client_source_address": "127.0.0.1", "client_source_port": "50000"}
    assert output.value("kafka_server_client_metrics_instance_info", **LABELS, **software, **source) == 1


def test_gauges_and_counters_keep_their_type() -> None:
    output = page(
        gauge("org.apache.kafka.a", 1), Point("org.apache.kafka.b", (), 1, PointKind.DELTA, is_monotonic=True)
    )
    kinds = {family.name: family.type for family in text_string_to_metric_families(output)}
    assert (kinds["org_apache_kafka_a"], kinds["org_apache_kafka_b"]) == ("gauge", "counter")


def test_each_series_is_exported_once() -> None:
    output = page(gauge("org.apache.kafka.a.b", 1), gauge("org.apache.kafka.a-b", 2), gauge("", 3))
    lines = [line.rpartition(" ")[0] for line in output.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert Series(output).value("org_apache_kafka_a_b", **LABELS) == 1


def test_long_texts_of_a_client_are_truncated() -> None:
    """Each series of a client contains these texts, so they are truncated."""
    text = "x" * 32_767
    output = page(
        *(gauge(f"m{number}", 1) for number in range(10)), client=ClientMetadata(text, text, text, "", 1, 1)
    )
    assert len(output) < len(text)
    assert output.count("x" * LONGEST_TEXT) == 10 + 3


def test_many_pushed_metrics_are_written_in_slices() -> None:
    telemetry = NodeHarness().node.telemetry
    points = [gauge(f"org.apache.kafka.m{number}", number) for number in range(3 * SLICE // 2)]
    for number in range(2):
        telemetry.pushed_metrics.take(
            Uuid(bytes(15) + bytes([number + 2])), CLIENT, points, until_ms=LATER_MS
        )
    out = Exposition()
    assert len(list(client_metrics(telemetry, out))) == 3
    assert out.text().count("\norg_apache_kafka_m") == 2 * len(points)


def produce(bootstrap: str, until_pushed: trio.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "orders", "log_level": 0})
    while not until_pushed.is_set():
        producer.produce("t", b"x")
        producer.flush(1)


def subscribe(bootstrap: str) -> None:
    host, port = bootstrap.split(":")
    output = {"metrics": "org.apache.kafka.producer.", "interval.ms": "100", "match": "client_id=orders"}
    with CommandClient(ClientSettings(((host, int(port)),))) as cluster:
        alter_configs(cluster, RESOURCE_CLIENT_METRICS, "s", output)


async def wait_for_pushed_metrics(node: ObservedNode) -> Series:
    """Return the page when a client has pushed metrics."""
    with trio.fail_after(20):
        while True:
            output = await node.metrics()
            if any(re.match("org_apache_kafka_producer_", str(name)) for name in output.names):
                return output
            await trio.sleep(0.05)


async def test_librdkafka_subscribes_and_pushes_metrics() -> None:
    async with serve_observed() as node:
        assert isinstance(node.running.node, Node)
        bootstrap = node.running.bootstrap
        await trio.to_thread.run_sync(subscribe, bootstrap)
        seen = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, partial(produce, bootstrap, seen))
            output = await wait_for_pushed_metrics(node)
            seen.set()
    (name,) = [one for one in output if one[0] == "kafka_server_client_metrics_instance_info"]
    labels: dict[Any, Any] = dict(pair for pair in name[1:] if isinstance(pair, tuple))
    assert labels["client_id"] == "orders"
    assert labels["client_software_name"] == "confluent-kafka-python"
    labels_of_client = {label: labels[label] for label in ("client_id", "client_instance_id")}
    assert output.value("org_apache_kafka_producer_request_latency_max", **labels_of_client) >= 0
    assert output.value("kafka_server_client_metrics_instance_count") >= 1
