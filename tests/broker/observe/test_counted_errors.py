"""Counts of rejected batches, failed fetches and errors in responses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kwire.broker.api.request.error_responses import error_response
from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.response_errors import error_codes
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS
from kwire.broker.replication.broker_topic_metrics import BrokerTopicMetrics
from kwire.broker.storage.log.log import Log
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import build
from kwire.wire.codegen import decode
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorResponse
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.registry import API_VERSIONS, RequestHeader
from tests.broker.api.golden import RESPONSES
from tests.node_harness import FETCH_VERSION, PRODUCE_VERSION, NodeHarness, fetch_request

NOW_MS = 1_700_000_000_000


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def create(harness: NodeHarness, **configs: str) -> BrokerTopicMetrics:
    """Create topic t, and return its counts."""
    topic = CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
        ],
    )
    response = harness.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
    assert [one.error_code for one in response.topics] == [0]
    return harness.node.topic_stats.for_topic("t")


def produce(harness: NodeHarness, batch: bytes | bytearray) -> int:
    data = PartitionProduceData(index=0, records=memoryview(bytearray(batch)))
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    code: int = harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0].error_code
    return code


def test_bytes_above_the_maximum_are_counted_as_rejected(harness: NodeHarness) -> None:
    counts = create(harness, max_message_bytes="100")
    batch = build([(NOW_MS, None, bytes(1_000), [])])
    assert produce(harness, batch) == ErrorCode.MESSAGE_TOO_LARGE
    assert counts.bytes_rejected == len(batch)
    assert (counts.bytes_in, counts.failed_appends) == (0, 0)


def test_a_wrong_crc_is_counted(harness: NodeHarness) -> None:
    counts = create(harness)
    batch = bytearray(build([(NOW_MS, None, b"value", [])]))
    batch[-1] ^= 1
    assert produce(harness, batch) == ErrorCode.CORRUPT_MESSAGE
    assert counts.corrupt_batches == 1


def test_records_without_a_key_in_a_compacted_topic_are_counted(harness: NodeHarness) -> None:
    counts = create(harness, cleanup_policy="compact")
    batch = build([(NOW_MS, key, b"value", []) for key in (None, b"key", None)])
    assert produce(harness, batch) == ErrorCode.INVALID_RECORD
    assert counts.records_without_key == 2


def test_an_invalid_sequence_is_counted(harness: NodeHarness) -> None:
    counts = create(harness)
    batch = build([(NOW_MS, None, b"value", [])], producer_id=1, producer_epoch=0, base_sequence=-1)
    assert produce(harness, batch) == ErrorCode.INVALID_RECORD
    assert counts.invalid_offsets_or_sequences == 1


def test_records_that_the_broker_compresses_are_counted_as_conversions(harness: NodeHarness) -> None:
    counts = create(harness, compression_type="gzip")
    assert produce(harness, build([(NOW_MS, None, b"value", [])] * 3)) == 0
    assert counts.produce_conversions == 3


@pytest.mark.parametrize(
    ("failure", "failed"),
    [
        (ApiError(ErrorCode.OFFSET_OUT_OF_RANGE), 0),
        (ApiError(ErrorCode.CORRUPT_MESSAGE), 1),
        (ZeroDivisionError(), 1),
    ],
    ids=["expected", "corrupt", "bug"],
)
def test_only_failures_of_the_broker_are_failed_fetches(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch, failure: Exception, failed: int
) -> None:
    counts = create(harness)

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(Log, "read", fail)
    request = fetch_request("t")
    request.max_wait_ms = 0
    client = harness.connect()
    client.submit(FETCH_VERSION, request)
    harness.turn()
    response: Any = client.receive(FETCH_VERSION, FetchRequest)
    assert response.error_code or response.responses[0].partitions[0].error_code
    assert counts.failed_reads == failed


def counted_client(harness: NodeHarness) -> tuple[VirtualClient, Counter[tuple[int, int]]]:
    """Return a client, and the errors in its responses by API key and error code."""
    metrics = RequestMetrics(lambda: 0.0)
    client = harness.connect()
    client.channel.request_metrics = metrics
    return client, metrics.errors


def two_partitions(acks: int, **batch: Any) -> ProduceRequest:
    records = build([(NOW_MS, None, b"value", [])], **batch)
    data = [PartitionProduceData(index=index, records=memoryview(bytearray(records))) for index in range(2)]
    return ProduceRequest(
        acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


@pytest.mark.parametrize("acks", [-1, 0])
def test_an_error_of_a_whole_produce_counts_for_each_partition(harness: NodeHarness, acks: int) -> None:
    client, errors = counted_client(harness)
    client.send(
        PRODUCE_VERSION,
        two_partitions(acks, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
    )
    assert errors == {(ApiKey.PRODUCE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED): 2}


def test_invalid_acks_count_for_each_partition(harness: NodeHarness) -> None:
    harness.create("t", partitions=2)
    client, errors = counted_client(harness)
    client.send(PRODUCE_VERSION, two_partitions(acks=5))
    assert errors == {(ApiKey.PRODUCE, ErrorCode.INVALID_REQUIRED_ACKS): 2}


def test_a_bug_in_the_produce_handler_counts_for_each_partition(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.node, "partition", fail)
    client, errors = counted_client(harness)
    client.send(PRODUCE_VERSION, two_partitions(acks=1))
    assert errors == {(ApiKey.PRODUCE, ErrorCode.UNKNOWN_SERVER_ERROR): 2}


@pytest.mark.parametrize(("version", "count"), [(12, 2), (13, 1)])
def test_an_error_of_a_whole_fetch_counts_as_often_as_it_is_in_the_response(
    harness: NodeHarness, version: int, count: int
) -> None:
    """Until version 12, the response repeats the error for each partition."""
    client, errors = counted_client(harness)
    request = fetch_request("t")
    request.isolation_level = 7
    client.send(version, request)
    assert errors == {(ApiKey.FETCH, ErrorCode.INVALID_REQUEST): count}


def test_an_unknown_version_of_api_versions_counts(harness: NodeHarness) -> None:
    client, errors = counted_client(harness)
    client.submit_frame(bytes.fromhex("0000000b 0012 7fff 00000001 ffff 00"))
    assert errors == {(ApiKey.API_VERSIONS, ErrorCode.UNSUPPORTED_VERSION): 1}


def test_a_response_that_cannot_be_encoded_counts_as_its_error_response(harness: NodeHarness) -> None:
    client, errors = counted_client(harness)
    context = client.channel.open_slot(RequestHeader(ApiKey.FIND_COORDINATOR, 3, 1, "me"), NOW_MS)
    context.complete(FindCoordinatorResponse(host="x" * 70_000))
    assert errors == {(ApiKey.FIND_COORDINATOR, ErrorCode.UNKNOWN_SERVER_ERROR): 1}


def test_an_error_counts_after_the_connection_was_closed(harness: NodeHarness) -> None:
    client, errors = counted_client(harness)
    context = client.channel.open_slot(RequestHeader(ApiKey.JOIN_GROUP, 5, 1, "me"), NOW_MS)
    harness.node.channel_closed(client.channel)
    context.complete(JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert errors == {(ApiKey.JOIN_GROUP, ErrorCode.REBALANCE_IN_PROGRESS): 1}


def test_errors_in_responses_are_counted_by_api_and_code(harness: NodeHarness) -> None:
    create(harness)
    client, errors = counted_client(harness)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    other = CreatableTopic(name="/", num_partitions=1, replication_factor=1)
    client.submit(7, CreateTopicsRequest(topics=[topic, other], timeout_ms=1_000))
    unknown = TopicProduceData(
        name="unknown",
        partition_data=[
            PartitionProduceData(index=0, records=memoryview(bytearray(build([(NOW_MS, None, b"", [])]))))
        ],
    )
    client.submit(PRODUCE_VERSION, ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[unknown]))
    harness.turn()
    assert errors == {
        (ApiKey.CREATE_TOPICS, ErrorCode.TOPIC_ALREADY_EXISTS): 1,
        (ApiKey.CREATE_TOPICS, ErrorCode.INVALID_TOPIC_EXCEPTION): 1,
        (ApiKey.PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 1,
    }


@pytest.mark.parametrize("key", [key for key in SUPPORTED_APIS if key not in (ApiKey.PRODUCE, ApiKey.FETCH)])
def test_the_error_of_a_response_is_found(key: int) -> None:
    lines = RESPONSES.read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith(f"{key} "))
    _, version, frame = line.partition("\t")[0].split(" ")
    request, _ = decode(API_VERSIONS[key].request_class, int(version), bytes.fromhex(frame))
    response = error_response(key, int(version), request, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
    codes = [code for code in error_codes(key, response) if code]
    assert set(codes) <= {ErrorCode.UNKNOWN_SERVER_ERROR}
    encoded_error = any(
        name in type(response).declared_fields for name in ("error_code", "partition_error_code")
    )
    assert codes or not encoded_error
