"""The client metrics (KIP-714) that unmodified clients push to both brokers.

Apache Kafka passes the metrics to the plugin `TelemetryReceiver`. kwire exports them on its metrics page.
"""

from __future__ import annotations

import io
import logging
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from interop.brokers import ApacheKafka, Broker, Kwire, free_port, start_tool
from interop.java_programs import compiled
from interop.raw import by_api, create_topic
from interop.raw_client import RawClient
from interop.scenario import Difference, Scenario
from interop.scenarios.raw_telemetry import subscribe
from interop.side_by_side import run_and_compare

if TYPE_CHECKING:
    from interop.record import Record

TOPIC = "telemetry"
PAUSE_S = 0.1
SECONDS = 60.0
LEAST_RECORDS = 20
LOG_SECONDS = 3.0
"""A time in which librdkafka gets its subscription, and pushes metrics at least once."""
OWN = "client_id", "client_instance_id"
COMES_AND_GOES = "member_id"
"""A label that librdkafka's metrics have only while the consumer is a group member."""
PUSHED_AT_LAST = {
    "java-producer": "org_apache_kafka_producer_topic_record_send_total",
    "java-consumer": "org_apache_kafka_consumer_fetch_manager_records_lag",
    "librdkafka-producer": "org_apache_kafka_producer_node_request_latency_avg",
    "librdkafka-consumer": "org_apache_kafka_consumer_coordinator_assigned_partitions",
}
"""By client, a metric that exists only once the client is fully running."""
SENT = "org_apache_kafka_producer_record_send_total"
KINDS_OF_CLIENT = "apache-kafka-java", "confluent-kafka-python"


class Number(NamedTuple):
    """A metric sample, with its name and labels in Prometheus form."""

    client_id: str
    name: str
    is_count: bool
    labels: str
    value: float


class ReceivingKafka(ApacheKafka):
    """Apache Kafka with a plugin that writes the pushed metrics to a file."""

    def __init__(self) -> None:
        super().__init__()
        self.file = self.directory / "pushed.tsv"
        self.properties["metric.reporters"] = "TelemetryReceiver"
        self.properties["interop.telemetry.file"] = str(self.file)

    def java(self, *arguments: str) -> list[str]:
        command = super().java(*arguments)
        path = command.index("-cp") + 1
        command[path] = f"{compiled('TelemetryReceiver')}:{command[path]}"
        return command

    def numbers(self) -> Iterator[Number]:
        """Yield the metrics of all pushes. For a counter, the values of all pushes are added up."""
        if not self.file.exists():
            return
        counts: dict[tuple[str, ...], float] = defaultdict(float)
        for line in self.file.read_text().splitlines():
            client_id, name, is_count, value, labels = line.split("\t")
            response = ",".join(sorted(label.replace(".", "_") for label in labels.split(",") if label))
            name = name.replace(".", "_")
            number = float(value)
            if is_count == "true":
                name = f"{name.removesuffix('_total')}_total"
                counts[client_id, name, response] += number
                number = counts[client_id, name, response]
            yield Number(client_id, name, is_count == "true", response, number)


class ReceivingKwire(Kwire):
    """kwire with an HTTP port for its metrics page."""

    def __init__(self) -> None:
        super().__init__()
        self.http_port = free_port()

    def command(self) -> list[str]:
        return [*super().command(), "--http", str(self.http_port)]

    def page(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def numbers(self) -> Iterator[Number]:
        for family in text_string_to_metric_families(self.page()):
            for sample in family.samples:
                if sample.name.startswith("org_apache_kafka_"):
                    labels = ",".join(sorted(set(sample.labels) - set(OWN)))
                    is_count = family.type == "counter"
                    yield Number(sample.labels["client_id"], sample.name, is_count, labels, sample.value)


def java_clients(broker: Broker) -> Iterator[subprocess.Popen[bytes]]:
    """Start Kafka's console producer and console consumer, and yield their processes."""
    server = "--bootstrap-server", broker.bootstrap, "--topic", TOPIC
    own = "--command-property", "client.id=java-producer"
    yield start_tool("org.apache.kafka.tools.ConsoleProducer", *server, *own, "--timeout", "10")
    yield start_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*server, "--from-beginning", "--group", "java", "--command-property", "client.id=java-consumer"),
        *("--command-property", "client.rack=here"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def librdkafka_clients(broker: Broker) -> tuple[Producer, Consumer]:
    common = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    own = {"client.id": "librdkafka-consumer", "group.id": "librdkafka", "auto.offset.reset": "earliest"}
    consumer = Consumer({**common, **own})
    consumer.subscribe([f"{TOPIC}-2"])
    return Producer({**common, "client.id": "librdkafka-producer"}), consumer


def pushed(broker: Broker) -> Any:
    """Run the clients until each has pushed all its metrics. Return the names and labels of the metrics."""
    assert isinstance(broker, ReceivingKafka | ReceivingKwire)
    with RawClient(broker.bootstrap) as client:
        create_topic(client, TOPIC)
        create_topic(client, f"{TOPIC}-2")
        subscribe(client, "all", {"metrics": "*", "interval.ms": "500"})
        served = by_api(client.call("ApiVersions", 3, ClientSoftwareName="a", ClientSoftwareVersion="1"))
    seen: dict[str, dict[str, tuple[bool, set[str]]]] = {client_id: {} for client_id in PUSHED_AT_LAST}
    sent = 0.0

    def look() -> None:
        nonlocal sent
        for one in broker.numbers():
            if one.client_id in seen:
                labels = set(one.labels.split(",")) - {COMES_AND_GOES, ""}
                before = seen[one.client_id].setdefault(one.name, (one.is_count, set()))[1]
                before |= labels
                sent = one.value if (one.client_id, one.name) == ("java-producer", SENT) else sent

    java, java_consumer = java_clients(broker)
    producer, consumer = librdkafka_clients(broker)
    assert java.stdin is not None
    records, deadline = 0, time.monotonic() + SECONDS
    while records < LEAST_RECORDS or any(name not in seen[one] for one, name in PUSHED_AT_LAST.items()):
        assert time.monotonic() < deadline, {one: sorted(names) for one, names in seen.items()}
        java.stdin.write(b"x\n")
        java.stdin.flush()
        producer.produce(f"{TOPIC}-2", b"x")
        producer.poll(0)
        consumer.poll(PAUSE_S)
        time.sleep(PAUSE_S)
        records += 1
        look()
    while sent < records and time.monotonic() < deadline:  # the producer pushes, but sends no records
        time.sleep(PAUSE_S)
        look()
    java.communicate(timeout=SECONDS)
    consumer.close()
    java_consumer.terminate()
    java_consumer.wait(SECONDS)
    look()
    return {
        "advertised": {api: served.get(api) for api in ("GetTelemetrySubscriptions", "PushTelemetry")},
        # The sum includes the values of earlier pushes.
        "all are counted": sent == records,
        "pushed": {
            client_id: {
                name: (is_count, sorted(labels)) for name, (is_count, labels) in sorted(names.items())
            }
            for client_id, names in seen.items()
        },
    }


def logged(broker: Broker) -> str:
    """Run a librdkafka producer for a moment. Return what it logs at its default level."""
    lines = io.StringIO()
    logger = logging.Logger("librdkafka")
    logger.addHandler(logging.StreamHandler(lines))
    producer = Producer({"bootstrap.servers": broker.bootstrap}, logger=logger)
    producer.produce(TOPIC, b"x")
    assert producer.flush(SECONDS) == 0
    deadline = time.monotonic() + LOG_SECONDS
    while time.monotonic() < deadline:
        producer.poll(PAUSE_S)
    return lines.getvalue()


def test_librdkafka_logs_nothing_about_telemetry_until_a_subscription_exists(only: str) -> None:
    if only == "apache":
        return
    with ExitStack() as stack:
        kwire = ReceivingKwire()
        stack.callback(kwire.discard)
        kwire.start()
        with RawClient(kwire.bootstrap) as client:
            create_topic(client, TOPIC)
            assert logged(kwire) == ""
            subscribe(client, "all", {"metrics": "*", "interval.ms": "500"})
        assert "client instance id changed" in logged(kwire)
        assert any(number.name.startswith("org_apache_kafka_producer_") for number in kwire.numbers())


def test_clients_push_the_same_metrics_to_both(
    only: str, record: Record, differences: list[Difference]
) -> None:
    apache = None if only == "kwire" else ReceivingKafka()
    kwire = None if only == "apache" else ReceivingKwire()
    started: list[Broker] = [broker for broker in (apache, kwire) if broker is not None]
    try:
        for broker in started:
            broker.start()
        run_and_compare(
            Scenario("telemetry.pushed", pushed, 90.0), apache, kwire, record, differences, alone=True
        )
        if kwire is not None:
            page = kwire.page()
            assert all(f'client_software_name="{kind}"' in page for kind in KINDS_OF_CLIENT)
    finally:
        for broker in started:
            broker.discard()
