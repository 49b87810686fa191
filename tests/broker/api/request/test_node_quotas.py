"""The quotas that a node enforces, with requests to a node. Apache Kafka is compared in interop."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.security.principal import Principal
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterEntryData,
    EntityData,
    OpData,
)
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.node_harness import NodeHarness, produce_request

ALICE = Principal("User", "alice")


@pytest.fixture
def node() -> NodeHarness:
    node = NodeHarness()
    node.create("t")
    return node


def set_quota(node: NodeHarness, key: str, value: float | None, **entity: str | None) -> None:
    request = AlterClientQuotasRequest(
        entries=[
            AlterEntryData(
                entity=[
                    EntityData(entity_type=kind.replace("_", "-"), entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[OpData(key=key, value=value or 0.0, remove=value is None)],
            )
        ]
    )
    (entry,) = node.call(1, request).entries
    assert entry.error_code == 0, entry


def produce_bytes(node: NodeHarness, client: Any = None) -> int:
    """Produce a record, and return the throttle time."""
    response = (client or node).call(9, produce_request("t"))
    throttle_ms: int = response.throttle_time_ms
    return throttle_ms


def test_rates_of_a_key_without_quotas_are_not_recorded(node: NodeHarness) -> None:
    quotas = node.node.client_quotas
    assert not quotas.is_enforced
    set_quota(node, "request_percentage", 1e9, client_id="me")
    assert quotas.is_enforced
    for _ in range(3):
        produce_bytes(node)
    set_quota(node, "producer_byte_rate", 50, client_id="me")
    assert produce_bytes(node) == 0, "the earlier records do not count"
    set_quota(node, "producer_byte_rate", None, client_id="me")
    set_quota(node, "request_percentage", None, client_id="me")
    assert not quotas.is_enforced


def fetch(session_id: int = 0, epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [] if epoch > 0 else [FetchTopic(topic="t", partitions=[partition])]
    return FetchRequest(
        max_bytes=1 << 20, session_id=session_id, session_epoch=epoch, topics=topics, max_wait_ms=0
    )


def test_producers_share_the_quota_of_their_user(node: NodeHarness) -> None:
    set_quota(node, "producer_byte_rate", 10, user="alice")
    first, second = node.connect(principal=ALICE), node.connect(principal=ALICE)
    for client in (first, second):
        client.channel.quotas = node.node.client_quotas
    assert produce_bytes(node, first) > 0
    assert produce_bytes(node, second) > 0
    assert produce_bytes(node) == 0, "another user"
    set_quota(node, "producer_byte_rate", None, user="alice")
    assert produce_bytes(node, second) == 0


def test_a_throttled_fetch_is_empty_and_leaves_the_session_as_it_is(node: NodeHarness) -> None:
    for _ in range(3):
        produce_bytes(node)
    client = node.connect()
    opened = client.call(12, fetch(epoch=0))
    assert opened.responses[0].partitions[0].records
    set_quota(node, "consumer_byte_rate", 1, client_id="me")
    refused = client.call(12, fetch(opened.session_id, 1))
    assert refused.throttle_time_ms > 0
    assert (refused.session_id, refused.responses) == (opened.session_id, [])
    node.host.advance(60_000)
    set_quota(node, "consumer_byte_rate", None, client_id="me")
    node.host.advance(60_000)
    read = client.call(12, fetch(opened.session_id, 2))
    assert read.error_code == 0, read
    assert read.responses[0].partitions[0].records


def test_a_fetch_does_not_read_more_than_the_quota_ever_allows(node: NodeHarness) -> None:
    for _ in range(30):
        produce_bytes(node)
    whole = node.call(12, fetch()).responses[0].partitions[0].records
    set_quota(node, "consumer_byte_rate", 100, client_id="me")
    refused = node.call(12, fetch())
    assert 0 < refused.throttle_time_ms < 1_000, "the response is a little larger than its records"
    node.host.advance(900)
    read = node.call(12, fetch()).responses[0].partitions[0].records
    assert 0 < len(read) <= 100 * 10 < len(whole)


def test_request_time_counts(node: NodeHarness) -> None:
    seconds = iter(range(1000))
    node.node.client_quotas.clock = lambda: next(seconds) / 10
    set_quota(node, "request_percentage", 1, client_id="me")
    client = node.connect()
    throttle_times = [client.call(3, ApiVersionsRequest()).throttle_time_ms for _ in range(3)]
    assert throttle_times[-1] == 1000, "at most a window"
    set_quota(node, "request_percentage", None, client_id="me")
    assert client.call(3, ApiVersionsRequest()).throttle_time_ms == 0


def create(node: NodeHarness, version: int, *names: str) -> tuple[list[int], int]:
    topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    response = node.call(version, CreateTopicsRequest(topics=topics, timeout_ms=1000))
    return [topic.error_code for topic in response.topics], response.throttle_time_ms


def test_new_partitions_beyond_the_quota_are_refused(node: NodeHarness) -> None:
    set_quota(node, "controller_mutation_rate", 0.1, client_id="me")
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    codes, throttle_ms = create(node, 7, "a", "b")
    assert codes == [ErrorCode.NONE, refused]
    assert 8_000 < throttle_ms <= 10_000
    assert "b" not in node.node.image.topics
    codes, older_throttle_ms = create(node, 5, "b")
    assert codes == [ErrorCode.NONE], "older versions have no such error, and are only throttled"
    assert older_throttle_ms > throttle_ms
    node.host.advance(older_throttle_ms)
    assert create(node, 7, "c")[0] == [ErrorCode.NONE]
    assert create(node, 7, "d")[0] == [refused]
