"""Invalid settings in the metadata: the broker starts, and an administrator can correct them.

Another version of kwire, or this version with different static settings, may have stored these settings.
Apache Kafka 4.3.1 logs them, ignores single invalid values, and keeps the previous settings if the stored
settings contradict each other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from kwire.broker.config import load
from kwire.broker.config.broker_keys import DYNAMIC_KEYS
from kwire.broker.config.definition import ConfigType
from kwire.broker.config.group_keys import GROUP_KEYS
from kwire.broker.config.topic_keys import TOPIC_KEYS
from kwire.broker.controller.config_rules import BrokerConfigRules
from kwire.broker.node.node import Node
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.node_harness import NodeHarness

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
DYNAMIC_BROKER_CONFIG = 2

GARBAGE = ("", "garbage", "-7", "0", "99999999999999999999", ",", "a:b,c")
CONTRADICTIONS = (
    {"max.connections.per.ip.overrides": "garbage"},
    {"max.connections.per.ip.overrides": "127.0.0.1:many"},
    {"max.connections.per.ip.overrides": "no/host:1"},
    {"max.connections.per.ip": "0"},
    {"max.connections": "0"},
    {"max.connection.creation.rate": "0"},
    {"listener.name.plaintext.max.connections": "0"},
    {"log.roll.ms": "0"},
    {"log.roll.jitter.ms": "-1"},
    {"log.retention.ms": "0"},
    {"log.local.retention.ms": "-1"},
    {"log.local.retention.bytes": "5", "log.retention.bytes": "4"},
    {"log.cleaner.dedupe.buffer.size": "0"},
    {"log.cleaner.threads": "0"},
    {"log.cleaner.threads": "100"},
    {"num.network.threads": "1000"},
    {"num.io.threads": "1000"},
    {"remote.log.reader.threads": "1"},
    {"metric.reporters": "com.example.Reporter"},
)


def alter(harness: NodeHarness, kind: int, resource: str, settings: Mapping[str, str | None]) -> int:
    configs = [
        AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
        for name, value in settings.items()
    ]
    changed = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=configs)
    response = harness.call(1, IncrementalAlterConfigsRequest(resources=[changed], validate_only=False))
    return int(response.responses[0].error_code)


def stopped_with_stored(
    settings: Mapping[tuple[int, str], Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> NodeHarness:
    """Return a stopped broker with topic t that stored these settings without validation."""
    harness = NodeHarness()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    response = harness.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert response.topics[0].error_code == 0
    with monkeypatch.context() as blind:
        for rule in ("broker_fault", "topic_fault", "group_fault"):
            blind.setattr(BrokerConfigRules, rule, lambda self, values, **_: None)
        for (kind, resource), changes in settings.items():
            assert alter(harness, kind, resource, changes) == 0
    harness.node.begin_shutdown()
    harness.node.finish_shutdown()
    return harness


def start(harness: NodeHarness) -> Node:
    """Start a new node on the same disk."""
    restarted = NodeHarness(harness.disk)
    harness.host, harness.node = restarted.host, restarted.node
    harness.host.run_pending()
    return harness.node


def default_values() -> dict[str, object]:
    config = load(None, {}, {"log.dirs": "/d1,/d2"})
    return {name: config.value(name) for name in config.names()}


def values(node: Node, names: object) -> dict[str, object]:
    assert isinstance(names, dict)
    return {name: node.config.value(name) for name in names}


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("resource", ["", "1"])
def test_broker_starts_with_garbage_in_every_key(
    garbage: str, resource: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A single broker cannot store min.insync.replicas.
    names = [name for name in DYNAMIC_KEYS if not resource or name != "min.insync.replicas"]
    harness = stopped_with_stored({(BROKER, resource): dict.fromkeys(names, garbage)}, monkeypatch)
    with caplog.at_level(logging.ERROR):
        node = start(harness)
    assert node.partition("t", 0) is not None
    assert "dynamic configs of the" in caplog.text


@pytest.mark.parametrize("name", [*DYNAMIC_KEYS, "listener.name.plaintext.max.connections"])
def test_garbage_in_one_key_does_not_change_the_others(name: str) -> None:
    """An invalid value of one key does not change the other settings."""
    for garbage in GARBAGE:
        for layer in (0, 1):
            config = load(None, {}, {"log.dirs": "/d1,/d2"})
            layers: list[Mapping[str, str]] = [{}, {}]
            layers[layer] = {name: garbage}
            config.update(*layers)
            config.connection_limits_per_host()
            assert set(config.connection_limits_per_listener().values()) <= {99999}
            for other, value in default_values().items():
                assert other == name or config.value(other) == value
            assert config.max_connections > 0
            assert config.max_connections_per_ip > 0


@pytest.mark.parametrize("settings", CONTRADICTIONS, ids=str)
@pytest.mark.parametrize("resource", ["", "1"])
def test_contradicting_settings_are_not_applied_and_can_be_corrected(
    settings: dict[str, str], resource: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    valid = {"message.max.bytes": "12345"}
    harness = stopped_with_stored({(BROKER, resource): settings | valid}, monkeypatch)
    unchanged = {name: value for name, value in default_values().items() if name in settings | valid}
    with caplog.at_level(logging.ERROR):
        node = start(harness)
    assert "Ignoring all changed dynamic configs of the" in caplog.text
    assert values(node, unchanged) == unchanged
    assert alter(harness, BROKER, resource, {"log.segment.bytes": "2000000"}) != 0
    assert alter(harness, BROKER, resource, dict.fromkeys(settings)) == 0
    assert node.config.value("message.max.bytes") == 12345


def test_garbage_does_not_block_other_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = stopped_with_stored(
        {(BROKER, "1"): {"log.segment.bytes": "garbage", "message.max.bytes": "9"}}, monkeypatch
    )
    start(harness)
    assert harness.node.config.value("message.max.bytes") == 9
    assert alter(harness, BROKER, "1", {"message.max.bytes": "8"}) == 0
    assert harness.node.config.value("message.max.bytes") == 8


@pytest.mark.parametrize("garbage", GARBAGE)
def test_broker_starts_with_garbage_in_topics_and_groups(
    garbage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        (TOPIC, "t"): {key.name: garbage for key in TOPIC_KEYS},
        (GROUP, "g"): {key.name: garbage for key in GROUP_KEYS},
    }
    harness = stopped_with_stored(settings, monkeypatch)
    start(harness)
    assert harness.node.partition("t", 0) is not None
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in settings
    ]
    response = harness.call(4, DescribeConfigsRequest(resources=resources, include_synonyms=True))
    assert [result.error_code for result in response.results] == [0, 0]
    # Strings may be anything. A number that cannot be parsed is described with its effective value.
    for result in response.results:
        for entry in result.configs:
            if entry.config_type in (ConfigType.INT, ConfigType.LONG) and entry.value is not None:
                int(entry.value)
