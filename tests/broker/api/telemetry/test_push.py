"""GetTelemetrySubscriptions and PushTelemetry on a broker, from configs to the kept metrics."""

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
INSTANCE_ID = Uuid(bytes(range(16)))
PUSHED = (DATA / "otlp-java-producer.bin").read_bytes()
SENT = "org.apache.kafka.producer.record.send.total"


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.node.has_telemetry_receiver = True
    return harness


def alter(client: Any, name: str, **settings: str | None) -> None:
    configs = [
        AlterableConfig(
            name=key.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=configs)
    response = client.call(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert [one.error_code for one in response.responses] == [0]


def get(client: Any, instance_id: Uuid = INSTANCE_ID) -> Any:
    return client.call(0, GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))


def push(client: Any, subscription_id: int, metrics: bytes, **fields: Any) -> int:
    request = PushTelemetryRequest(
        client_instance_id=INSTANCE_ID, subscription_id=subscription_id, metrics=metrics, **fields
    )
    code: int = client.call(0, request).error_code
    return code


def test_subscriptions_follow_client_metrics_configs(harness: NodeHarness) -> None:
    client = harness.connect()
    client.call(3, ApiVersionsRequest(client_software_name="python", client_software_version="1"))
    alter(harness, "a", metrics="x", interval_ms="1000", match="client_software_name=python")
    alter(harness, "b", metrics="y", match="client_software_name=java")
    subscription = get(client)
    assert (subscription.error_code, subscription.client_instance_id) == (0, INSTANCE_ID)
    assert (subscription.requested_metrics, subscription.push_interval_ms) == (["x"], 1_000)
    assert (subscription.telemetry_max_bytes, subscription.delta_temporality) == (1 << 20, True)
    assert subscription.accepted_compression_types == [4, 3, 1, 2]
    assert get(client).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    alter(harness, "b", match="client_id=me", metrics="z")
    assert sorted(get(client).requested_metrics) == ["x", "z"]
    alter(harness, "a", metrics=None, interval_ms=None, match=None)
    alter(harness, "b", metrics=None, match=None)
    subscription = get(client)
    assert (subscription.requested_metrics, subscription.push_interval_ms) == ([], 300_000)


def test_subscriptions_survive_a_restart(harness: NodeHarness) -> None:
    alter(harness, "a", metrics="x")
    harness.stop()
    harness.start()
    assert get(harness).requested_metrics == ["x"]


@pytest.mark.parametrize("codec", Codec)
def test_pushed_metrics_are_kept(harness: NodeHarness, codec: Codec) -> None:
    client = harness.connect()
    subscription = get(client).subscription_id
    data = PUSHED if codec is Codec.NONE else compress(codec, PUSHED)
    assert push(client, subscription, data, compression_type=codec) == 0
    pushed = harness.node.telemetry.pushed_metrics.clients[INSTANCE_ID]
    assert {series.name: value for series, value in pushed.values.items()}[SENT] == 42
    assert (pushed.client.client_id, pushed.client.address) == ("me", "127.0.0.1")


def test_an_invalid_payload_is_refused(harness: NodeHarness, caplog: pytest.LogCaptureFixture) -> None:
    client = harness.connect()
    subscription = get(client).subscription_id
    with caplog.at_level(logging.INFO, "kwire.telemetry"):
        assert push(client, subscription, PUSHED[:-1]) == ErrorCode.INVALID_RECORD
        assert (
            push(client, subscription, b"\0", compression_type=4, terminating=True)
            == ErrorCode.INVALID_RECORD
        )
    assert "exceeds the buffer" in caplog.text
    assert not harness.node.telemetry.pushed_metrics.clients


def test_telemetry_max_bytes_limits_compressed_and_decompressed_size() -> None:
    harness = NodeHarness(None, **{"telemetry.max.bytes": "1000"})
    client = harness.connect()
    subscription = get(client)
    assert subscription.telemetry_max_bytes == 1_000
    assert push(client, subscription.subscription_id, bytes(1_001)) == ErrorCode.TELEMETRY_TOO_LARGE
    bomb = compress(Codec.ZSTD, bytes(1_001))
    refused = push(client, subscription.subscription_id, bomb, compression_type=4, terminating=True)
    assert refused == ErrorCode.INVALID_RECORD


def test_without_a_receiver_payloads_are_ignored(harness: NodeHarness) -> None:
    harness.node.has_telemetry_receiver = False
    client = harness.connect()
    subscription = get(client).subscription_id
    assert push(client, subscription, b"\xff") == 0
    assert push(client, subscription, PUSHED, terminating=True) == 0
    assert not harness.node.telemetry.pushed_metrics.clients


def test_metrics_of_a_disconnected_client_are_kept_for_a_minute(harness: NodeHarness) -> None:
    client = harness.connect()
    subscription = get(client).subscription_id
    assert push(client, subscription, PUSHED) == 0
    harness.node.channel_closed(client.channel)
    telemetry = harness.node.telemetry
    assert len(telemetry.instances) == 0
    harness.host.advance(50_000)
    assert INSTANCE_ID in telemetry.pushed_metrics.clients
    harness.host.advance(20_000)
    assert not telemetry.pushed_metrics.clients


def test_metrics_of_a_terminating_push_are_kept_for_a_minute(harness: NodeHarness) -> None:
    client = harness.connect()
    subscription = get(client).subscription_id
    assert push(client, subscription, PUSHED, terminating=True) == 0
    harness.host.advance(50_000)
    assert INSTANCE_ID in harness.node.telemetry.pushed_metrics.clients
    harness.host.advance(20_000)
    assert not harness.node.telemetry.pushed_metrics.clients


def test_metrics_of_a_silent_client_are_kept_for_three_intervals(harness: NodeHarness) -> None:
    client = harness.connect()
    subscription = get(client).subscription_id
    assert push(client, subscription, PUSHED) == 0
    harness.host.advance(890_000)
    assert INSTANCE_ID in harness.node.telemetry.pushed_metrics.clients
    harness.host.advance(20_000)
    assert not harness.node.telemetry.pushed_metrics.clients
    assert len(harness.node.telemetry.instances) == 0


def test_every_broker_of_a_cluster_applies_subscriptions() -> None:
    cluster = VirtualCluster(CONTROLLER, broker(2, "two"), broker(3, "three"))
    cluster.events.advance(1_000)
    request = GetTelemetrySubscriptionsRequest(client_instance_id=INSTANCE_ID)
    before = cluster.request("three", 0, request)
    assert before.requested_metrics == []
    metrics = AlterableConfig(name="metrics", config_operation=SET, value="x,y")
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name="s", configs=[metrics])
    response = cluster.request("two", 1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert [one.error_code for one in response.responses] == [0]
    subscriptions = [cluster.request(host, 0, request) for host in ("two", "three")]
    assert [one.requested_metrics for one in subscriptions] == [["x", "y"]] * 2
    assert subscriptions[0].subscription_id == subscriptions[1].subscription_id != before.subscription_id
