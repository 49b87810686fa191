"""GetTelemetrySubscriptions and PushTelemetry as a broker answers them: from settings to what is kept."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kwire.wire.compression import Codec, compress
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.push_telemetry import PushTelemetryRequest
from kwire.wire.primitives import Uuid
from tests.broker.node.test_cluster import CONTROLLER, VirtualCluster, broker
from tests.node_harness import NodeHarness
from tests.wire.kafka_json import DATA

CLIENT_METRICS = 16
SET, DELETE = 0, 1
ID = Uuid(bytes(range(16)))
PUSHED = (DATA / "otlp-java-producer.bin").read_bytes()
SENT = "org.apache.kafka.producer.record.send.total"


@pytest.fixture
def harness() -> NodeHarness:
    made = NodeHarness()
    made.node.has_telemetry_receiver = True
    return made


def alter(where: Any, name: str, **settings: str | None) -> None:
    configs = [
        AlterableConfig(
            name=key.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=configs)
    answer = where.call(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert [one.error_code for one in answer.responses] == [0]


def get(where: Any, instance_id: Uuid = ID) -> Any:
    return where.call(0, GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))


def push(where: Any, subscription_id: int, metrics: bytes, **fields: Any) -> int:
    request = PushTelemetryRequest(
        client_instance_id=ID, subscription_id=subscription_id, metrics=metrics, **fields
    )
    code: int = where.call(0, request).error_code
    return code


def test_subscriptions_are_configurations(harness: NodeHarness) -> None:
    client = harness.connect()
    client.call(3, ApiVersionsRequest(client_software_name="python", client_software_version="1"))
    alter(harness, "a", metrics="x", interval_ms="1000", match="client_software_name=python")
    alter(harness, "b", metrics="y", match="client_software_name=java")
    told = get(client)
    assert (told.error_code, told.client_instance_id) == (0, ID)
    assert (told.requested_metrics, told.push_interval_ms) == (["x"], 1_000)
    assert (told.telemetry_max_bytes, told.delta_temporality) == (1 << 20, True)
    assert told.accepted_compression_types == [4, 3, 1, 2]
    assert get(client).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    alter(harness, "b", match="client_id=me", metrics="z")
    assert sorted(get(client).requested_metrics) == ["x", "z"]
    alter(harness, "a", metrics=None, interval_ms=None, match=None)
    alter(harness, "b", metrics=None, match=None)
    told = get(client)
    assert (told.requested_metrics, told.push_interval_ms) == ([], 300_000)


def test_subscriptions_are_there_after_a_restart(harness: NodeHarness) -> None:
    alter(harness, "a", metrics="x")
    harness.stop()
    harness.start()
    assert get(harness).requested_metrics == ["x"]


@pytest.mark.parametrize("codec", Codec)
def test_what_is_pushed_is_kept(harness: NodeHarness, codec: Codec) -> None:
    client = harness.connect()
    known = get(client).subscription_id
    data = PUSHED if codec is Codec.NONE else compress(codec, PUSHED)
    assert push(client, known, data, compression_type=codec) == 0
    kept = harness.node.telemetry.pushed_metrics.clients[ID]
    assert {series.name: value for series, value in kept.values.items()}[SENT] == 42
    assert (kept.client.client_id, kept.client.address) == ("me", "127.0.0.1")


def test_what_is_no_metrics_is_refused(harness: NodeHarness, caplog: pytest.LogCaptureFixture) -> None:
    client = harness.connect()
    known = get(client).subscription_id
    with caplog.at_level(logging.INFO, "kwire.telemetry"):
        assert push(client, known, PUSHED[:-1]) == ErrorCode.INVALID_RECORD
        assert push(client, known, b"\0", compression_type=4, terminating=True) == ErrorCode.INVALID_RECORD
    assert "exceeds the buffer" in caplog.text
    assert not harness.node.telemetry.pushed_metrics.clients


def test_as_large_as_telemetry_max_bytes_before_and_after_it_is_decompressed() -> None:
    harness = NodeHarness(**{"telemetry.max.bytes": "1000"})
    client = harness.connect()
    known = get(client)
    assert known.telemetry_max_bytes == 1_000
    assert push(client, known.subscription_id, bytes(1_001)) == ErrorCode.TELEMETRY_TOO_LARGE
    bomb = compress(Codec.ZSTD, bytes(1_001))
    refused = push(client, known.subscription_id, bomb, compression_type=4, terminating=True)
    assert refused == ErrorCode.INVALID_RECORD


def test_without_a_receiver_nothing_is_looked_at_or_kept(harness: NodeHarness) -> None:
    harness.node.has_telemetry_receiver = False
    client = harness.connect()
    known = get(client).subscription_id
    assert push(client, known, b"\xff") == 0
    assert push(client, known, PUSHED, terminating=True) == 0
    assert not harness.node.telemetry.pushed_metrics.clients


def test_a_client_that_leaves_is_shown_for_a_minute(harness: NodeHarness) -> None:
    client = harness.connect()
    known = get(client).subscription_id
    assert push(client, known, PUSHED) == 0
    harness.node.channel_closed(client.channel)
    telemetry = harness.node.telemetry
    assert len(telemetry.instances) == 0
    harness.host.advance(50_000)
    assert ID in telemetry.pushed_metrics.clients
    harness.host.advance(20_000)
    assert not telemetry.pushed_metrics.clients


def test_a_last_push_is_shown_for_a_minute(harness: NodeHarness) -> None:
    client = harness.connect()
    known = get(client).subscription_id
    assert push(client, known, PUSHED, terminating=True) == 0
    harness.host.advance(50_000)
    assert ID in harness.node.telemetry.pushed_metrics.clients
    harness.host.advance(20_000)
    assert not harness.node.telemetry.pushed_metrics.clients


def test_a_silent_client_is_shown_for_three_intervals(harness: NodeHarness) -> None:
    client = harness.connect()
    known = get(client).subscription_id
    assert push(client, known, PUSHED) == 0
    harness.host.advance(890_000)
    assert ID in harness.node.telemetry.pushed_metrics.clients
    harness.host.advance(20_000)
    assert not harness.node.telemetry.pushed_metrics.clients
    assert len(harness.node.telemetry.instances) == 0


def test_each_broker_of_a_cluster_follows_the_subscriptions() -> None:
    cluster = VirtualCluster(CONTROLLER, broker(2, "two"), broker(3, "three"))
    cluster.events.advance(1_000)
    asked = GetTelemetrySubscriptionsRequest(client_instance_id=ID)
    before = cluster.request("three", 0, asked)
    assert before.requested_metrics == []
    metrics = AlterableConfig(name="metrics", config_operation=SET, value="x,y")
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name="s", configs=[metrics])
    answer = cluster.request("two", 1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert [one.error_code for one in answer.responses] == [0]
    told = [cluster.request(host, 0, asked) for host in ("two", "three")]
    assert [one.requested_metrics for one in told] == [["x", "y"]] * 2
    assert told[0].subscription_id == told[1].subscription_id != before.subscription_id
