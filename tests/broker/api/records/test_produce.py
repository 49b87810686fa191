"""Produce: errors and their order, acks, versions, replication and timeouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kwire.broker.api.request.ports import Endpoint
from kwire.broker.metadata.image import PartitionImage
from kwire.broker.replication.partition import Partition
from kwire.broker.storage.disk import StorageError
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.primitives import ZERO_UUID
from kwire.wire.registry import encode_request
from tests.node_harness import NodeHarness, produce_request

NONE, INVALID, CORRUPT = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
VERSION = 12

RequestedPartitions = list[tuple[str, list[tuple[int, int | None]]]]
"""Topics, their partitions, and the number of records of each: None is no batch, -1 a corrupt one."""


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


def records(count: int | None) -> memoryview:
    if count is None:
        return memoryview(b"")
    batch = bytearray(build([(1_700_000_000_000, None, b"value", [])] * abs(count)))
    if count < 0:
        batch[-1] ^= 1
    return memoryview(batch)


def request(requested: RequestedPartitions, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(index=index, records=records(count)) for index, count in partitions
                ],
            )
            for name, partitions in requested
        ],
    )


def errors_of(response: Any) -> list[tuple[str, list[tuple[int, ErrorCode]]]]:
    return [
        (topic.name, [(partition.index, partition.error_code) for partition in topic.partition_responses])
        for topic in response.responses
    ]


def ends(harness: NodeHarness) -> list[int]:
    found = [harness.node.log_manager.get("a", index) for index in (0, 1)]
    return [log.log_end_offset for log in found if log is not None]


@pytest.mark.parametrize("acks", [1, -1])
def test_each_partition_is_appended_to_and_has_its_error(harness: NodeHarness, acks: int) -> None:
    requested: RequestedPartitions = [("a", [(1, 1), (0, 3)]), ("b", [(0, 1)]), ("a", [(7, 1)])]
    assert errors_of(harness.call(VERSION, request(requested, acks))) == [
        ("a", [(1, NONE), (0, NONE)]),
        ("b", [(0, UNKNOWN)]),
        ("a", [(7, UNKNOWN)]),
    ]
    assert ends(harness) == [3, 1]


@pytest.mark.parametrize(
    ("partition", "acks", "code"),
    [
        ((7, None), 5, UNKNOWN),
        ((0, None), 5, INVALID),
        ((0, -1), 5, ErrorCode.INVALID_REQUIRED_ACKS),
        ((0, -1), 1, CORRUPT),
    ],
    ids=["existence", "a batch", "acks", "what is in it"],
)
def test_errors_are_checked_in_order(
    harness: NodeHarness, partition: tuple[int, int | None], acks: int, code: int
) -> None:
    ((_, ((_, found),)),) = errors_of(harness.call(VERSION, request([("a", [partition])], acks)))
    assert found == code
    assert ends(harness) == [0, 0]


@pytest.mark.parametrize(
    "requested",
    [[("a", [(0, 1), (0, 3)])], [("a", [(0, 1)]), ("a", [(1, 1), (0, None)])], [("b", [(0, 1), (0, 1)])]],
)
@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_a_request_that_names_a_partition_twice_is_refused(
    harness: NodeHarness, requested: RequestedPartitions, acks: int
) -> None:
    client = harness.connect()
    client.submit(VERSION, request(requested, acks))
    harness.turn()
    response = client.receive(VERSION, ProduceRequest)
    assert client.channel.closing == (acks == 0)
    if acks:
        assert {code for _, partitions in errors_of(response) for _, code in partitions} == {
            ErrorCode.INVALID_REQUEST
        }
    assert ends(harness) == [0, 0]


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_topics_are_named_by_name_and_from_v13_by_id(harness: NodeHarness, version: int) -> None:
    topic_id = harness.node.image.topics["a"].topic_id
    requested = request([("a", [(0, 1)]), ("a", [(1, 1)])])
    requested.topic_data[0].topic_id = topic_id
    response = harness.call(version, requested)
    codes = [topic.partition_responses[0].error_code for topic in response.responses]
    assert codes == ([NONE, NONE] if version < 13 else [NONE, ErrorCode.UNKNOWN_TOPIC_ID])
    by_id = [topic_id, ZERO_UUID]
    assert [topic.topic_id for topic in response.responses] == (by_id if version == 13 else [ZERO_UUID] * 2)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
@pytest.mark.parametrize(
    ("client_id", "code"),
    [
        ("me", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (None, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__admin_client", NONE),
    ],
)
def test_only_the_admin_client_may_write_internal_topics(
    harness: NodeHarness, topic: str, client_id: str | None, code: ErrorCode
) -> None:
    harness.create(topic)
    client = harness.connect()
    client.submit_frame(encode_request(request([(topic, [(0, 1)])]), VERSION, 1, client_id))
    harness.turn()
    assert code_of(harness, client) == code
    assert harness.latest_offset(topic).offset == (1 if code == NONE else 0)


@pytest.mark.parametrize("refused", [False, True])
def test_a_refused_partition_with_acks_0_closes_the_connection(
    harness: NodeHarness, *, refused: bool
) -> None:
    client = harness.connect()
    client.submit(VERSION, request([("a", [(0, 1), (1, None if refused else 1)])], acks=0))
    assert client.channel.ending == refused, "otherwise later requests of the turn would be handled"
    harness.turn()
    assert client.channel.take_ready() == []
    assert client.channel.closing == refused


def test_requests_after_a_refused_acks_0_produce_get_no_response(
    harness: NodeHarness,
) -> None:
    client = harness.connect()
    client.submit(VERSION, request([("a", [(1, 1)])]))
    client.submit(VERSION, request([("a", [(0, 1), (9, 1)])], acks=0))
    client.submit(0, ApiVersionsRequest())
    harness.turn()
    response = client.receive(VERSION, ProduceRequest)
    assert response.responses[0].partition_responses[0].error_code == NONE
    assert client.channel.closing
    assert (client.channel.pending, client.channel.pending_bytes, client.channel.queued_bytes) == (0, 0, 0)


def test_a_transactional_batch_needs_a_transactional_id(harness: NodeHarness) -> None:
    requested = request([("a", [(0, 1), (1, 1)]), ("b", [])])
    requested.topic_data[0].partition_data[1].records = memoryview(
        build(
            [(1_700_000_000_000, None, b"value", [])],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert errors_of(harness.call(VERSION, requested)) == [("a", [(0, refused), (1, refused)]), ("b", [])]
    assert ends(harness) == [0, 0]


# Errors and their details.

Prepare = Callable[[Partition], object]
"""A function that makes a partition refuse a batch."""
A_PRODUCER = {"producer_id": 1, "producer_epoch": 0}


def rules(**changed: Any) -> Prepare:
    """Return a function that changes the config of the topic."""

    def change(partition: Partition) -> None:
        partition.log.config = partition.log.config._replace(**changed)

    return change


def too_few(partition: Partition) -> None:
    rules(min_insync_replicas=2)(partition)
    partition.become_leader(PartitionImage(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=1))


def follows(partition: Partition) -> None:
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1))


def fails(partition: Partition) -> None:
    partition.fail(StorageError("broken"))


@pytest.mark.parametrize(
    ("prepare", "batch", "code", "start_offset"),
    [
        (rules(), {"control": True}, INVALID, 1),
        (rules(), {**A_PRODUCER, "base_sequence": 5}, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1),
        (rules(cleanup_policy={"compact"}), {}, INVALID, 1),
        (rules(message_timestamp_before_max_ms=0), {}, ErrorCode.INVALID_TIMESTAMP, 1),
        (too_few, {}, ErrorCode.NOT_ENOUGH_REPLICAS, 1),
        (rules(max_message_bytes=9), {}, ErrorCode.MESSAGE_TOO_LARGE, -1),
        (rules(segment_bytes=9), {}, ErrorCode.RECORD_LIST_TOO_LARGE, -1),
        (rules(), None, CORRUPT, -1),
        (follows, {}, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        (fails, {}, ErrorCode.KAFKA_STORAGE_ERROR, -1),
    ],
)
def test_only_some_errors_contain_the_log_start_offset(
    harness: NodeHarness, prepare: Prepare, batch: dict[str, Any] | None, code: ErrorCode, start_offset: int
) -> None:
    """As in Kafka, some errors contain the current log start offset, and the others -1."""
    harness.call(VERSION, produce_request("a", **A_PRODUCER, base_sequence=0))
    harness.host.advance(1)  # so that the timestamp of the batch below is too old where that matters
    partition = harness.node.led_partition("a", 0)
    partition.log.delete_records_before(1)
    prepare(partition)
    requested = request([("a", [(0, -1)])]) if batch is None else produce_request("a", **batch)
    result = harness.call(VERSION, requested).responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset, result.log_start_offset) == (code, -1, start_offset)


OLD_MS, LATE_MS = 1_700_000_000_000, 1_700_100_000_000


@pytest.mark.parametrize(
    ("found", "code", "message", "expected_errors"),
    [
        ([(OLD_MS, None), (OLD_MS, b"k"), (OLD_MS, None)], INVALID, "2 record errors", {0: "key", 2: "key"}),
        (
            [(OLD_MS, b"k"), (LATE_MS, b"k")],
            ErrorCode.INVALID_TIMESTAMP,
            "invalid timestamp",
            {1: str(LATE_MS)},
        ),
        ([(OLD_MS, b"k"), (OLD_MS, b"k")], NONE, None, {}),
        (None, CORRUPT, None, {}),
    ],
    ids=["no key", "too late", "none", "the batch"],
)
@pytest.mark.parametrize("version", [7, 8, VERSION])
def test_record_errors_are_returned_from_v8(
    harness: NodeHarness,
    version: int,
    found: list[tuple[int, bytes | None]] | None,
    code: ErrorCode,
    message: str | None,
    expected_errors: dict[int, str],
) -> None:
    """KIP-467. An invalid batch has an error code without record errors."""
    rules(cleanup_policy={"compact"})(harness.node.led_partition("a", 0))
    requested = request([("a", [(0, -1)])])
    if found is not None:
        batch = build([(timestamp, key, b"value", []) for timestamp, key in found])
        requested.topic_data[0].partition_data[0].records = memoryview(batch)
    result = harness.call(version, requested).responses[0].partition_responses[0]
    assert result.error_code == code
    if version < 8 or message is None:
        assert (result.error_message, result.record_errors) == (None, [])
        return
    assert message in result.error_message
    assert [one.batch_index for one in result.record_errors] == list(expected_errors)
    for one, word in zip(result.record_errors, expected_errors.values(), strict=True):
        assert word in one.batch_index_error_message


@pytest.mark.parametrize("version", [9, 10, VERSION, 13])
def test_the_current_leader_is_returned_from_v10(harness: NodeHarness, version: int) -> None:
    """KIP-951. The endpoint of each leader is returned once, if it has this listener."""
    harness.add_broker(2)
    harness.add_broker(3)
    harness.add_broker(4, listener="ELSEWHERE")
    leaders = [(2, 5), (3, 7), (2, 6), (4, 1), (-1, 8)]
    partitions = [PartitionImage((2, 3, 4), (2, 3, 4), leader, epoch) for leader, epoch in leaders]
    topic_id = harness.add_topic("b", *partitions)
    requested = request([("b", [(index, 1) for index in range(len(leaders))]), ("a", [(0, 1)])])
    requested.topic_data[0].topic_id = topic_id
    requested.topic_data[1].topic_id = harness.node.image.topics["a"].topic_id
    response = harness.call(version, requested)
    refused, taken = (topic.partition_responses for topic in response.responses)
    assert [one.error_code for one in refused] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(leaders)
    current = [(one.current_leader.leader_id, one.current_leader.leader_epoch) for one in (*refused, *taken)]
    endpoints = [(one.node_id, one.host, one.port, one.rack) for one in response.node_endpoints]
    if version < 10:
        assert (set(current), endpoints) == ({(-1, -1)}, [])
    else:
        assert current == [*leaders, (-1, -1)]
        assert endpoints == [(2, "b2", 9092, "r2"), (3, "b3", 9092, "r3")]


# Two replicas: the test acts as the other one.


def replicated(harness: NodeHarness, isr: tuple[int, ...] = (1, 2), epoch: int = 1) -> Partition:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.become_leader(PartitionImage(replicas=(1, 2), isr=isr, leader=1, leader_epoch=epoch))
    return partition


def send_produce(harness: NodeHarness, acks: int) -> VirtualClient:
    client = harness.connect()
    client.submit(VERSION, request([("a", [(0, 1)])], acks))
    harness.turn()
    return client


def code_of(harness: NodeHarness, client: VirtualClient) -> ErrorCode | None:
    response = client.receive(VERSION, ProduceRequest)
    return None if response is None else ErrorCode(errors_of(response)[0][1][0][1])


def test_acks_1_returns_at_once_and_acks_all_waits_for_replication(harness: NodeHarness) -> None:
    partition = replicated(harness)
    assert code_of(harness, send_produce(harness, acks=1)) == NONE
    waiting = send_produce(harness, acks=-1)
    timers = harness.host.timers
    assert code_of(harness, waiting) is None
    partition.record_follower_fetch(2, 1)
    assert (code_of(harness, waiting), partition.high_watermark) == (None, 1)
    partition.record_follower_fetch(2, 2)
    assert (code_of(harness, waiting), partition.high_watermark) == (NONE, 2)
    assert harness.host.timers == timers - 1


def test_a_replication_timeout_keeps_the_appended_batch(harness: NodeHarness) -> None:
    partition = replicated(harness)
    waiting = send_produce(harness, acks=-1)
    harness.host.advance(999)
    assert code_of(harness, waiting) is None
    harness.host.advance(1)
    result = waiting.receive(VERSION, ProduceRequest).responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    partition.record_follower_fetch(2, 1)
    assert (partition.high_watermark, ends(harness)) == (1, [1, 0])


def test_no_timer_is_started_if_the_request_completes_in_its_turn(harness: NodeHarness) -> None:
    timers = harness.host.timers
    client = harness.connect()
    for acks in (1, -1):
        client.submit(VERSION, request([("a", [(0, 1)])], acks))
    harness.node.end_turn()
    assert harness.host.timers == timers


def test_too_few_in_sync_replicas_refuse_acks_all(harness: NodeHarness) -> None:
    partition = replicated(harness, isr=(1,))
    partition.log.config = partition.log.config._replace(min_insync_replicas=2)
    assert code_of(harness, send_produce(harness, acks=-1)) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert ends(harness) == [0, 0]
    assert code_of(harness, send_produce(harness, acks=1)) == NONE
    assert partition.high_watermark == 0, "KIP-966: the high watermark does not advance"


def test_min_insync_replicas_is_limited_to_the_number_of_replicas(harness: NodeHarness) -> None:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.log.config = partition.log.config._replace(min_insync_replicas=3)
    assert code_of(harness, send_produce(harness, acks=-1)) == NONE


def test_a_waiting_produce_returns_not_leader_after_a_leader_change(harness: NodeHarness) -> None:
    partition = replicated(harness)
    waiting = send_produce(harness, acks=-1)
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=2))
    assert code_of(harness, waiting) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(harness, send_produce(harness, acks=1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    replicated(harness, isr=(1,), epoch=3)
    assert code_of(harness, send_produce(harness, acks=-1)) == NONE
    assert ends(harness) == [2, 0]


def test_not_leader_errors_contain_the_endpoints_of_the_leaders(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-951."""
    for index in range(2):
        partition = harness.node.partition("a", index)
        assert partition is not None
        partition.become_follower(
            PartitionImage(replicas=(1, 2, 3), isr=(1,), leader=2 + index, leader_epoch=1)
        )
    monkeypatch.setattr(harness.node, "current_leader", lambda topic, index: (2 + index, 1))
    monkeypatch.setattr(
        harness.node, "endpoints", lambda ids, listener: [Endpoint(one, f"b{one}", 9092, None) for one in ids]
    )
    response = harness.call(VERSION, request([("a", [(0, 1), (1, 1)])], 1))
    leaders = [one.current_leader.leader_id for one in response.responses[0].partition_responses]
    assert leaders == [one.node_id for one in response.node_endpoints] == [2, 3]
    assert harness.call(9, request([("a", [(0, 1)])], 1)).node_endpoints == []


def test_a_refused_batch_with_acks_0_closes_the_connection(harness: NodeHarness) -> None:
    client = harness.connect()
    request = produce_request(
        "a", acks=0, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    client.submit(VERSION, request)
    harness.turn()
    assert client.channel.take_ready() == []
    assert client.channel.closing


def test_a_duplicate_returns_the_append_time_of_the_first(harness: NodeHarness) -> None:
    request = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    first = harness.call(VERSION, produce_request("a", **request)).responses[0].partition_responses[0]
    again = harness.call(VERSION, produce_request("a", **request)).responses[0].partition_responses[0]
    assert (first.base_offset, first.log_append_time_ms) == (0, -1)
    assert (again.base_offset, again.log_append_time_ms) == (0, 1_700_000_000_000)
