"""Produce: codes and their order, acks, versions, what is replicated and how long it may take."""

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

Asked = list[tuple[str, list[tuple[int, int | None]]]]
"""Topics, their partitions, and of each how many records; None: what is no batch, -1: one that is torn."""


@pytest.fixture
def harness() -> NodeHarness:
    made = NodeHarness()
    made.create("a", partitions=2)
    return made


def records(count: int | None) -> memoryview:
    if count is None:
        return memoryview(b"")
    batch = bytearray(build([(1_700_000_000_000, None, b"value", [])] * abs(count)))
    if count < 0:
        batch[-1] ^= 1
    return memoryview(batch)


def request(asked: Asked, acks: int = -1) -> ProduceRequest:
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
            for name, partitions in asked
        ],
    )


def answered(answer: Any) -> list[tuple[str, list[tuple[int, ErrorCode]]]]:
    return [
        (topic.name, [(partition.index, partition.error_code) for partition in topic.partition_responses])
        for topic in answer.responses
    ]


def ends(harness: NodeHarness) -> list[int]:
    found = [harness.node.log_manager.get("a", index) for index in (0, 1)]
    return [log.log_end_offset for log in found if log is not None]


@pytest.mark.parametrize("acks", [1, -1])
def test_each_partition_is_appended_to_and_answered(harness: NodeHarness, acks: int) -> None:
    asked: Asked = [("a", [(1, 1), (0, 3)]), ("b", [(0, 1)]), ("a", [(7, 1)])]
    assert answered(harness.call(VERSION, request(asked, acks))) == [
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
def test_what_is_looked_at_first(
    harness: NodeHarness, partition: tuple[int, int | None], acks: int, code: int
) -> None:
    ((_, ((_, found),)),) = answered(harness.call(VERSION, request([("a", [partition])], acks)))
    assert found == code
    assert ends(harness) == [0, 0]


@pytest.mark.parametrize(
    "asked",
    [[("a", [(0, 1), (0, 3)])], [("a", [(0, 1)]), ("a", [(1, 1), (0, None)])], [("b", [(0, 1), (0, 1)])]],
)
@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_a_request_that_names_a_partition_twice_is_refused(
    harness: NodeHarness, asked: Asked, acks: int
) -> None:
    client = harness.connect()
    client.submit(VERSION, request(asked, acks))
    harness.turn()
    answer = client.receive(VERSION, ProduceRequest)
    assert client.channel.closing == (acks == 0)
    if acks:
        assert {code for _, partitions in answered(answer) for _, code in partitions} == {
            ErrorCode.INVALID_REQUEST
        }
    assert ends(harness) == [0, 0]


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_a_topic_is_named_by_name_or_from_13_on_by_id(harness: NodeHarness, version: int) -> None:
    topic_id = harness.node.image.topics["a"].topic_id
    asked = request([("a", [(0, 1)]), ("a", [(1, 1)])])
    asked.topic_data[0].topic_id = topic_id
    answer = harness.call(version, asked)
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == ([NONE, NONE] if version < 13 else [NONE, ErrorCode.UNKNOWN_TOPIC_ID])
    by_id = [topic_id, ZERO_UUID]
    assert [topic.topic_id for topic in answer.responses] == (by_id if version == 13 else [ZERO_UUID] * 2)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
@pytest.mark.parametrize(
    ("client_id", "code"),
    [
        ("me", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (None, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__admin_client", NONE),
    ],
)
def test_of_clients_only_one_name_may_write_internal_topics(
    harness: NodeHarness, topic: str, client_id: str | None, code: ErrorCode
) -> None:
    harness.create(topic)
    client = harness.connect()
    client.submit_frame(encode_request(request([(topic, [(0, 1)])]), VERSION, 1, client_id))
    harness.turn()
    assert code_of(harness, client) == code
    assert harness.latest_offset(topic).offset == (1 if code == NONE else 0)


@pytest.mark.parametrize("refused", [False, True])
def test_without_acknowledgement_a_refused_one_closes_the_connection(
    harness: NodeHarness, *, refused: bool
) -> None:
    client = harness.connect()
    client.submit(VERSION, request([("a", [(0, 1), (1, None if refused else 1)])], acks=0))
    assert client.channel.ending == refused, "what is behind it in the same turn would be done"
    harness.turn()
    assert client.channel.take_ready() == []
    assert client.channel.closing == refused


def test_what_comes_behind_a_refused_one_is_not_answered_and_what_came_before_is(
    harness: NodeHarness,
) -> None:
    client = harness.connect()
    client.submit(VERSION, request([("a", [(1, 1)])]))
    client.submit(VERSION, request([("a", [(0, 1), (9, 1)])], acks=0))
    client.submit(0, ApiVersionsRequest())
    harness.turn()
    answer = client.receive(VERSION, ProduceRequest)
    assert answer.responses[0].partition_responses[0].error_code == NONE
    assert client.channel.closing
    assert (client.channel.pending, client.channel.pending_bytes, client.channel.queued_bytes) == (0, 0, 0)


def test_a_transaction_needs_its_id(harness: NodeHarness) -> None:
    asked = request([("a", [(0, 1), (1, 1)]), ("b", [])])
    asked.topic_data[0].partition_data[1].records = memoryview(
        build(
            [(1_700_000_000_000, None, b"value", [])],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert answered(harness.call(VERSION, asked)) == [("a", [(0, refused), (1, refused)]), ("b", [])]
    assert ends(harness) == [0, 0]


# What is refused, and what is told of it.

Prepare = Callable[[Partition], object]
"""What makes a partition refuse what comes."""
A_PRODUCER = {"producer_id": 1, "producer_epoch": 0}


def rules(**changed: Any) -> Prepare:
    """The topic has other rules."""

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
def test_only_some_refusals_tell_where_the_log_starts(
    harness: NodeHarness, prepare: Prepare, batch: dict[str, Any] | None, code: ErrorCode, start_offset: int
) -> None:
    """As Kafka answers them: some with the start of the log as it is now, the others with -1."""
    harness.call(VERSION, produce_request("a", **A_PRODUCER, base_sequence=0))
    harness.host.advance(1)  # so that the batch below is too old where that matters
    partition = harness.node.led_partition("a", 0)
    partition.log.delete_records_before(1)
    prepare(partition)
    asked = request([("a", [(0, -1)])]) if batch is None else produce_request("a", **batch)
    told = harness.call(VERSION, asked).responses[0].partition_responses[0]
    assert (told.error_code, told.base_offset, told.log_start_offset) == (code, -1, start_offset)


OLD_MS, LATE_MS = 1_700_000_000_000, 1_700_100_000_000


@pytest.mark.parametrize(
    ("found", "code", "says", "at_fault"),
    [
        ([(OLD_MS, None), (OLD_MS, b"k"), (OLD_MS, None)], INVALID, "2 records", {0: "key", 2: "key"}),
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
def test_which_records_are_at_fault_is_told_from_8_on(
    harness: NodeHarness,
    version: int,
    found: list[tuple[int, bytes | None]] | None,
    code: ErrorCode,
    says: str | None,
    at_fault: dict[int, str],
) -> None:
    """KIP-467. Of a batch that is wrong as a whole there is only the code."""
    rules(cleanup_policy={"compact"})(harness.node.led_partition("a", 0))
    asked = request([("a", [(0, -1)])])
    if found is not None:
        batch = build([(timestamp, key, b"value", []) for timestamp, key in found])
        asked.topic_data[0].partition_data[0].records = memoryview(batch)
    told = harness.call(version, asked).responses[0].partition_responses[0]
    assert told.error_code == code
    if version < 8 or says is None:
        assert (told.error_message, told.record_errors) == (None, [])
        return
    assert says in told.error_message
    assert [one.batch_index for one in told.record_errors] == list(at_fault)
    for one, word in zip(told.record_errors, at_fault.values(), strict=True):
        assert word in one.batch_index_error_message


@pytest.mark.parametrize("version", [9, 10, VERSION, 13])
def test_who_leads_what_is_elsewhere_is_told_from_10_on(harness: NodeHarness, version: int) -> None:
    """KIP-951. Of each leader it is told once where it is reached, if that is so by this listener."""
    harness.add_broker(2)
    harness.add_broker(3)
    harness.add_broker(4, listener="ELSEWHERE")
    leaders = [(2, 5), (3, 7), (2, 6), (4, 1), (-1, 8)]
    partitions = [PartitionImage((2, 3, 4), (2, 3, 4), leader, epoch) for leader, epoch in leaders]
    topic_id = harness.add_topic("b", *partitions)
    asked = request([("b", [(index, 1) for index in range(len(leaders))]), ("a", [(0, 1)])])
    asked.topic_data[0].topic_id = topic_id
    asked.topic_data[1].topic_id = harness.node.image.topics["a"].topic_id
    answer = harness.call(version, asked)
    refused, taken = (topic.partition_responses for topic in answer.responses)
    assert [one.error_code for one in refused] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(leaders)
    current = [(one.current_leader.leader_id, one.current_leader.leader_epoch) for one in (*refused, *taken)]
    endpoints = [(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]
    if version < 10:
        assert (set(current), endpoints) == ({(-1, -1)}, [])
    else:
        assert current == [*leaders, (-1, -1)]
        assert endpoints == [(2, "b2", 9092, "r2"), (3, "b3", 9092, "r3")]


# Two replicas: the other one is made up.


def led(harness: NodeHarness, isr: tuple[int, ...] = (1, 2), epoch: int = 1) -> Partition:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.become_leader(PartitionImage(replicas=(1, 2), isr=isr, leader=1, leader_epoch=epoch))
    return partition


def sent(harness: NodeHarness, acks: int) -> VirtualClient:
    client = harness.connect()
    client.submit(VERSION, request([("a", [(0, 1)])], acks))
    harness.turn()
    return client


def code_of(harness: NodeHarness, client: VirtualClient) -> ErrorCode | None:
    answer = client.receive(VERSION, ProduceRequest)
    return None if answer is None else ErrorCode(answered(answer)[0][1][0][1])


def test_what_is_written_is_answered_and_what_is_to_be_replicated_waits(harness: NodeHarness) -> None:
    partition = led(harness)
    assert code_of(harness, sent(harness, acks=1)) == NONE
    waiting = sent(harness, acks=-1)
    timers = harness.host.timers
    assert code_of(harness, waiting) is None
    partition.record_follower_fetch(2, 1)
    assert (code_of(harness, waiting), partition.high_watermark) == (None, 1)
    partition.record_follower_fetch(2, 2)
    assert (code_of(harness, waiting), partition.high_watermark) == (NONE, 2)
    assert harness.host.timers == timers - 1


def test_what_is_not_replicated_in_time_is_told_so_and_stays(harness: NodeHarness) -> None:
    partition = led(harness)
    waiting = sent(harness, acks=-1)
    harness.host.advance(999)
    assert code_of(harness, waiting) is None
    harness.host.advance(1)
    told = waiting.receive(VERSION, ProduceRequest).responses[0].partition_responses[0]
    assert (told.error_code, told.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    partition.record_follower_fetch(2, 1)
    assert (partition.high_watermark, ends(harness)) == (1, [1, 0])


def test_no_timer_is_made_for_what_is_replicated_within_the_turn(harness: NodeHarness) -> None:
    timers = harness.host.timers
    client = harness.connect()
    for acks in (1, -1):
        client.submit(VERSION, request([("a", [(0, 1)])], acks))
    harness.node.end_turn()
    assert harness.host.timers == timers


def test_too_few_in_sync_replicas_take_nothing_for_all(harness: NodeHarness) -> None:
    partition = led(harness, isr=(1,))
    partition.log.config = partition.log.config._replace(min_insync_replicas=2)
    assert code_of(harness, sent(harness, acks=-1)) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert ends(harness) == [0, 0]
    assert code_of(harness, sent(harness, acks=1)) == NONE
    assert partition.high_watermark == 0, "KIP-966: it does not rise"


def test_min_insync_replicas_cannot_ask_for_more_than_there_are(harness: NodeHarness) -> None:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.log.config = partition.log.config._replace(min_insync_replicas=3)
    assert code_of(harness, sent(harness, acks=-1)) == NONE


def test_who_waits_is_sent_away_when_another_broker_leads(harness: NodeHarness) -> None:
    partition = led(harness)
    waiting = sent(harness, acks=-1)
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=2))
    assert code_of(harness, waiting) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(harness, sent(harness, acks=1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    led(harness, isr=(1,), epoch=3)
    assert code_of(harness, sent(harness, acks=-1)) == NONE
    assert ends(harness) == [2, 0]


def test_each_leader_of_elsewhere_is_told_of_with_its_address(
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
    answer = harness.call(VERSION, request([("a", [(0, 1), (1, 1)])], 1))
    leaders = [one.current_leader.leader_id for one in answer.responses[0].partition_responses]
    assert leaders == [one.node_id for one in answer.node_endpoints] == [2, 3]
    assert harness.call(9, request([("a", [(0, 1)])], 1)).node_endpoints == []


def test_a_refused_produce_without_acknowledgement_closes_its_connection(harness: NodeHarness) -> None:
    client = harness.connect()
    request = produce_request(
        "a", acks=0, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    client.submit(VERSION, request)
    harness.turn()
    assert client.channel.take_ready() == []
    assert client.channel.closing


def test_a_duplicate_is_answered_with_its_own_time(harness: NodeHarness) -> None:
    request = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    first = harness.call(VERSION, produce_request("a", **request)).responses[0].partition_responses[0]
    again = harness.call(VERSION, produce_request("a", **request)).responses[0].partition_responses[0]
    assert (first.base_offset, first.log_append_time_ms) == (0, -1)
    assert (again.base_offset, again.log_append_time_ms) == (0, 1_700_000_000_000)
