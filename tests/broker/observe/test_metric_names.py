"""The names of Kafka's metrics: each is on the /metrics page, or docs/metrics.md says why not.

`data/kafka-metric-names.txt` has the metrics in Kafka's documentation (Monitoring), those that common
dashboards draw, and the others of a node of Apache Kafka 4.3.1. The names are those of the JMX exporter 1.0.
The metrics of each of Kafka's network clients have only one name in the list.
`interop/test_metrics.py` compares the names with those of a running node.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest
import trio

from kwire.cli.shared.client_settings import ClientSettings
from kwire.cli.shared.command_client import CommandClient
from tests.broker.observe.conftest import Series, serve_observed
from tests.broker.observe.test_metrics import consume, produce
from tests.broker.replication.test_two_brokers import BrokerPair

HERE = Path(__file__).parent
NAMES = (HERE / "data" / "kafka-metric-names.txt").read_text(encoding="ascii").split()
DOCUMENT = (HERE.parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
NOT_EXPORTED = DOCUMENT.split("## Metrics that kwire does not export", 1)[1]
OMITTED = [
    name
    for first_column in re.findall(r"^\| (`.*?) \|", NOT_EXPORTED, re.MULTILINE)
    for name in re.findall(r"`([a-z_*]+)`", first_column)
]
"""The names and patterns of the metrics that kwire omits."""
ONLY_IN_CLUSTERS = {"kafka_server_fetcherlagmetrics_consumerlag"}
"""Names that a broker without followers does not show, as in Apache Kafka."""
BOTH_ROLES = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def is_omitted(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in OMITTED)


async def exported() -> Series:
    """Return the metrics of a node with both roles that has served clients, one of which is connected."""
    async with serve_observed(BOTH_ROLES) as node:
        bootstrap = node.running.bootstrap
        await trio.to_thread.run_sync(partial(produce, bootstrap, "orders", 5))
        await trio.to_thread.run_sync(partial(consume, bootstrap, "orders", 5))
        host, port = bootstrap.split(":")
        with CommandClient(ClientSettings(((host, int(port)),))) as connected:
            await trio.to_thread.run_sync(connected.coordinator, "g")
            return await node.metrics()


@pytest.mark.linux("metrics from /proc")
async def test_every_name_is_exported_or_documented_as_omitted() -> None:
    names = {str(name) for name in (await exported()).names} | ONLY_IN_CLUSTERS
    assert [name for name in NAMES if name not in names and not is_omitted(name)] == []
    assert [name for name in sorted(names) if is_omitted(name)] == []


@pytest.mark.parametrize("pattern", [one for one in OMITTED if not one.startswith("jvm_")])
def test_each_omitted_pattern_is_a_name_of_kafka(pattern: str) -> None:
    assert any(fnmatchcase(name, pattern) for name in NAMES)


def test_the_document_lists_only_prefixes_that_are_exported() -> None:
    listed = re.findall(
        r"`((?:kafka|process)_[a-z_*]+)`", DOCUMENT.split("## Metrics that kwire does not")[0]
    )
    assert listed
    unknown = [one for one in listed if not any(fnmatchcase(name, one) for name in NAMES)]
    assert [one for one in unknown if not one.startswith("kafka_server_client_metrics_")] == []


def test_a_follower_exports_its_lag() -> None:
    from tests.broker.observe.test_metrics import series_of

    assert series_of(BrokerPair().nodes[2].node).names >= ONLY_IN_CLUSTERS
