"""What stock clients push of their own metrics (KIP-714), to a broker that has somebody to show it to.

Apache Kafka hands it to a plugin, `TelemetryReceiver`; kwire shows it on its page of metrics.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
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
from interop.side_by_side import hold

if TYPE_CHECKING:
    from interop.conftest import Record

TOPIC = "telemetry"
RECORDS = 30
PAUSE_S = 0.1
OWN = "client_id", "client_instance_id"
COMES_AND_GOES = "member_id"
"""A label that librdkafka has while a consumer is a member."""
CLIENTS = "java-producer", "java-consumer", "librdkafka-producer", "librdkafka-consumer"
SENT = "org_apache_kafka_producer_record_send_total"
KINDS_OF_CLIENT = "apache-kafka-java", "confluent-kafka-python"


class Number(NamedTuple):
    """A number as it is offered: the name and its labels as Prometheus has them."""

    client_id: str
    name: str
    is_count: bool
    labels: str
    value: float


class ReceivingKafka(ApacheKafka):
    """Apache Kafka with a plugin that writes down what is pushed."""

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
        """What each client's last push has, with counts added up over all of them."""
        lines = [line.split("\t") for line in self.file.read_text().splitlines()]
        last = {client_id: push for push, client_id, *_ in lines}
        counts: dict[tuple[str, str, str], float] = defaultdict(float)
        for push, client_id, name, is_count, value, labels in lines:
            told = ",".join(sorted(label.replace(".", "_") for label in labels.split(",") if label))
            name = name.replace(".", "_")
            number = float(value)
            if is_count == "true":
                name = f"{name.removesuffix('_total')}_total"
                counts[client_id, name, told] += number
                number = counts[client_id, name, told]
            if push == last[client_id]:
                yield Number(client_id, name, is_count == "true", told, number)


class ReceivingKwire(Kwire):
    """kwire with its HTTP port."""

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
        """What is on the page of metrics."""
        for family in text_string_to_metric_families(self.page()):
            for sample in family.samples:
                if sample.name.startswith("org_apache_kafka_"):
                    labels = ",".join(sorted(set(sample.labels) - set(OWN)))
                    is_count = family.type == "counter"
                    yield Number(sample.labels["client_id"], sample.name, is_count, labels, sample.value)


def use_java(broker: Broker) -> None:
    """The console producer and consumer, each of which pushes while it runs and as it ends."""
    server = "--bootstrap-server", broker.bootstrap, "--topic", TOPIC
    consumer = start_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*server, "--from-beginning", "--max-messages", str(RECORDS), "--group", "java"),
        *("--command-property", "client.id=java-consumer", "--command-property", "client.rack=here"),
    )
    producer = start_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *(*server, "--command-property", "client.id=java-producer"),
    )
    assert producer.stdin is not None
    for number in range(RECORDS):
        producer.stdin.write(f"{number}\n".encode())
        producer.stdin.flush()
        time.sleep(PAUSE_S)
    for one in (producer, consumer):
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors.decode()


def use_librdkafka(broker: Broker) -> None:
    """A producer and a consumer of confluent-kafka."""
    common = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    producer = Producer({**common, "client.id": "librdkafka-producer"})
    own = {"client.id": "librdkafka-consumer", "group.id": "librdkafka", "auto.offset.reset": "earliest"}
    consumer = Consumer({**common, **own})
    consumer.subscribe([f"{TOPIC}-2"])
    for _ in range(RECORDS):
        producer.produce(f"{TOPIC}-2", b"x")
        assert producer.flush(10) == 0
        consumer.poll(PAUSE_S)
        time.sleep(PAUSE_S)
    consumer.close()


def pushed(broker: Broker) -> Any:
    """Run the clients, and tell what is offered of them."""
    assert isinstance(broker, ReceivingKafka | ReceivingKwire)
    with RawClient(broker.bootstrap) as client:
        served = by_api(client.call("ApiVersions", 3, ClientSoftwareName="a", ClientSoftwareVersion="1"))
        create_topic(client, TOPIC)
        create_topic(client, f"{TOPIC}-2")
        subscribe(client, "all", {"metrics": "*", "interval.ms": "500"})
    java = threading.Thread(target=use_java, args=(broker,))
    java.start()
    use_librdkafka(broker)
    java.join()
    numbers = list(broker.numbers())
    values = {(one.client_id, one.name): one.value for one in numbers if not one.labels}
    return {
        "advertised": {api: served.get(api) for api in ("GetTelemetrySubscriptions", "PushTelemetry")},
        # The last one may be under way when it counts.
        "all are counted": RECORDS - 1 <= values.get(("java-producer", SENT), 0) <= RECORDS,
        **{
            client_id: {
                name: [is_count, [label for label in labels.split(",") if label != COMES_AND_GOES]]
                for client, name, is_count, labels, _ in sorted(numbers)
                if client == client_id
            }
            for client_id in CLIENTS
        },
    }


def test_clients_push_what_they_push_to_apache_kafka(
    only: str, record: Record, differences: list[Difference]
) -> None:
    apache = None if only == "kwire" else ReceivingKafka()
    kwire = None if only == "apache" else ReceivingKwire()
    started: list[Broker] = [broker for broker in (apache, kwire) if broker is not None]
    try:
        for broker in started:
            broker.start()
        hold(Scenario("telemetry.pushed", pushed, 90.0), apache, kwire, record, differences)
        if kwire is not None:
            page = kwire.page()
            assert all(f'client_software_name="{kind}"' in page for kind in KINDS_OF_CLIENT)
    finally:
        for broker in started:
            broker.discard()
