"""The metrics of kwire, compared with those that the JMX exporter reads from Apache Kafka.

The exporter has no rules here. Its default names contain the type of the MBean and the attribute, and the
label `name` has the rest. `names_in_kwire` turns them into names with the pattern of docs/metrics.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from prometheus_client.parser import text_string_to_metric_families

from interop.brokers import ApacheKafka, Broker, Kwire, free_port
from interop.reference import jmx_exporter_jar
from interop.scenarios.clients_confluent import producer_of

HERE = Path(__file__).resolve().parent
NOT_EXPORTED = (
    (HERE.parent / "docs" / "metrics.md")
    .read_text(encoding="utf-8")
    .split("## Metrics that kwire does not export", 1)[1]
)
OMITTED = [
    name
    for first_column in re.findall(r"^\| (`.*?) \|", NOT_EXPORTED, re.MULTILINE)
    for name in re.findall(r"`([a-z_*]+)`", first_column)
]
SECONDS = 20.0
TOPIC = "orders"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ACL = AclBinding(
    ResourceType.TOPIC,
    TOPIC,
    ResourcePatternType.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
RECORDS = 10
STATISTICS = re.compile(r"_(?:(?:One|Five|Fifteen)Minute|Mean)Rate$|_(?:StdDev|Min|Mean|Max)$")
"""Attributes of meters and histograms that no metric has: counts and quantiles are enough."""
QUANTILE = re.compile(r"_\d+thPercentile$")
OTHER_TYPES = {
    "broker_metadata_metrics": "brokermetadatametrics",
    "raft_metrics": "raftmetrics",
    "raft_channel_metrics": "raftchannelmetrics",
}
"""Types of MBeans whose names have no underscores in dashboards."""
SOFTWARE = "kafka_server_socket_server_metrics_connections"
NO_NUMBERS = "kafka_server_raftmetrics_current_state"
"""An attribute with a text as value, which the exporter reads only with a rule."""
OWN = "kafka_server_client_metrics_dropped_points_total"
"""A metric that Kafka does not have, because in Kafka a plugin receives the metrics that clients push."""
WITHOUT_COUNTERPART = "jmx_", "jvm_", "java_", "process_"
"""Prefixes of the metrics of the exporter, of the JVM and of processes, which are not compared."""


DIRECTORY = re.compile(r"/\S*/interop-(?:apache|kwire)-\w+")
EQUAL = (
    "kafka_cluster_partition_*",
    "kafka_controller_controllerstats_*",
    "kafka_controller_kafkacontroller_*broker*count",
    "kafka_controller_kafkacontroller_global*",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_coordinator_group_groupmetadatamanager_numoffsets",
    "kafka_log_log_*",
    "kafka_log_logcleanermanager_uncleanable_*",
    "kafka_log_logmanager_*",
    "kafka_server_addpartitionstotxnmanager_*",
    "kafka_server_brokertopicmetrics_bytes[io]*",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_fetchsessioncache_*",
    "kafka_server_group_coordinator_metrics_*_count",
    "kafka_server_group_coordinator_metrics_*_num_partitions",
    "kafka_server_kafkaserver_brokerstate",
    "kafka_server_metadataloader_current*",
    "kafka_server_metadataloader_finalizedlevel",
    "kafka_server_plugins_acls_total_count",
    "kafka_server_raftmetrics_current_[el]*",
    "kafka_server_raftmetrics_number_*",
    "kafka_server_replicafetchermanager_*",
    "kafka_server_replicamanager_*",
)
"""Metrics whose values do not depend on times. Kafka updates its numbers of groups only once a minute."""
Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """The value of a series."""

    name: str
    labels: Mapping[str, str]
    value: float


class ExportingKafka(ApacheKafka):
    """Apache Kafka with the JMX exporter."""

    def __init__(self) -> None:
        super().__init__(AUTHORIZER)
        self.http_port = free_port()
        self.rules = self.directory / "exporter.yml"

    def prepare(self) -> None:
        self.rules.write_text("{}\n")
        super().prepare()

    def command(self) -> list[str]:
        java, *arguments = super().command()
        agent = f"-javaagent:{jmx_exporter_jar()}=127.0.0.1:{self.http_port}:{self.rules}"
        return [java, agent, *arguments]


class ExportingKwire(Kwire):
    """kwire with its metrics page."""

    def __init__(self) -> None:
        super().__init__(AUTHORIZER)
        self.http_port = free_port()

    def command(self) -> list[str]:
        return [*super().command(), "--http", str(self.http_port)]


def scrape(broker: ExportingKafka | ExportingKwire) -> list[Sample]:
    with urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=SECONDS) as page:
        text = page.read().decode()
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith(WITHOUT_COUNTERPART)
    ]


def workload(broker: Broker, open_clients: ExitStack) -> None:
    """Create a topic, produce, and consume with a group of each protocol. One consumer stays connected."""
    common: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(common)
    admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result(SECONDS)
    admin.create_acls([ACL])[ACL].result(SECONDS)
    producer = producer_of(broker, **{"log_level": 0, "linger.ms": 100})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"value", partition=number % 2, timestamp=1_700_000_000_000)
    assert producer.flush(SECONDS) == 0
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                **common,
                "group.id": protocol,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        open_clients.callback(consumer.close)
        consumer.subscribe([TOPIC])
        for _ in range(RECORDS):
            message = consumer.poll(SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
        consumer.commit(asynchronous=False)


def names_in_kwire(name: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the possible names in kwire for a metric of the exporter. Statistics have none."""
    kind = labels.get("name", "")
    # Kafka 4.3 registers a few metrics in two domains.
    name = name.removeprefix("org_apache_")
    for other, without in OTHER_TYPES.items():
        name = name.replace(f"kafka_server_{other}_", f"kafka_server_{without}_")
    if not kind:
        # A metric of Kafka's clients library. The exporter drops `total` from the end of an attribute.
        if name == SOFTWARE:
            name += "_software"
        prefix, separator, attribute = name.partition("group_coordinator_metrics_")
        if separator and labels:
            parts = [part for label in labels.items() for part in label]
            name = f"{prefix}{separator}{'_'.join(parts)}_{attribute}"
        if not name.endswith("_rate") or name.startswith("kafka_server_raftmetrics_"):
            yield from (name.lower(), f"{name.lower()}_total")
        return
    of_type, _, attribute = name.rpartition("_")
    of_kind = re.sub(r"_?percent$", "_percent", kind.replace("-", "_").lower())
    if attribute == "Value" or QUANTILE.search(name):
        yield f"{of_type}_{of_kind}".lower()
    elif attribute == "Count" and kind.endswith("PerSec"):
        yield f"{of_type}_{kind.removesuffix('PerSec')}_total".lower()
    elif attribute == "Count":
        yield f"{of_type}_{kind}_count_total".lower()
    elif attribute == "MeanRate" and of_kind.endswith("_percent"):
        yield f"{of_type}_{of_kind}".lower()
    else:
        assert STATISTICS.search(name), name


def is_omitted(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in OMITTED)


@pytest.fixture(scope="module")
def pages(only: str) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """Return the metrics of Apache Kafka and of kwire after the same workload."""
    if only:
        pytest.skip("needs both brokers")
    with ExitStack() as stack:
        found = []
        for broker in (ExportingKafka(), ExportingKwire()):
            stack.callback(broker.discard)
            broker.start()
            with ExitStack() as open_clients:
                workload(broker, open_clients)
                found.append(scrape(broker))
        yield found[0], found[1]


def test_each_metric_of_kafka_is_exported_or_documented_as_omitted(
    pages: tuple[list[Sample], list[Sample]],
) -> None:
    kafka, kwire = pages
    exported = {sample.name for sample in kwire}
    missing = set()
    for sample in kafka:
        names = list(names_in_kwire(sample.name, sample.labels))
        if names and not any(name in exported or is_omitted(name) for name in names):
            missing.add(names[0])
    assert sorted(missing) == []


def test_each_metric_of_kwire_is_one_of_kafka(pages: tuple[list[Sample], list[Sample]]) -> None:
    kafka, kwire = pages
    known = {name for sample in kafka for name in names_in_kwire(sample.name, sample.labels)}
    unknown = {sample.name for sample in kwire if sample.name not in known | {NO_NUMBERS, OWN}}
    assert sorted(unknown) == []


def series_by_name(samples: Iterable[Sample], *, of_kafka: bool) -> dict[str, dict[Labels, float]]:
    """Return the values by the name in kwire and by labels, without quantiles."""
    found: dict[str, dict[Labels, float]] = {}
    for sample in samples:
        labels = {key: text for key, text in sample.labels.items() if key not in ("name", "quantile")}
        if of_kafka and "group_coordinator_metrics" in sample.name:
            labels = {}  # they are in the name in kwire
        names = names_in_kwire(sample.name, sample.labels) if of_kafka else [sample.name]
        for name in names:
            found.setdefault(name, {})[tuple(sorted(labels.items()))] = sample.value
    return found


def test_series_have_the_labels_of_kafka(pages: tuple[list[Sample], list[Sample]]) -> None:
    kafka, kwire = (series_by_name(page, of_kafka=page is pages[0]) for page in pages)
    differences = {}
    for name in kafka.keys() & kwire.keys():
        wanted, found = (
            {tuple(key for key, _ in labels) for labels in page[name]} for page in (kafka, kwire)
        )
        # kwire has series per topic also for counters that are zero.
        if wanted != found and wanted != found - {("topic",)}:
            differences[name] = wanted, found
    assert differences == {}


def comparable(series: Mapping[Labels, float]) -> dict[Labels, float]:
    """Return the series that do not depend on internal topics, whose records differ, or on a directory."""
    of_topics = any("topic" in dict(labels) for labels in series)
    return {
        tuple((key, DIRECTORY.sub("", text)) for key, text in labels): value
        for labels, value in series.items()
        if not of_topics or not dict(labels).get("topic", "__all").startswith("__")
    }


def test_values_after_the_same_workload_are_equal(pages: tuple[list[Sample], list[Sample]]) -> None:
    kafka, kwire = (series_by_name(page, of_kafka=page is pages[0]) for page in pages)
    names = [
        name
        for name in sorted(kwire)
        if any(fnmatchcase(name, pattern) for pattern in EQUAL) and not name.endswith("_group_count")
    ]
    assert len(names) > 2 * len(EQUAL)
    differences = {}
    for name in names:
        wanted, found = comparable(kafka[name]), comparable(kwire[name])
        if wanted != found:
            differences[name] = wanted, found
    assert differences == {}
