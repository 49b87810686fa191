"""Produce requests for many partitions, which the broker handles in slices.

The oracle is the response to the same request in parts, each small enough to be handled at once.
"""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.records.produce import LARGE_PRODUCE, handle
from kwire.broker.api.request.context import Channel
from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.slices import LARGE_PRODUCE_BYTES, SLICE_PARTITIONS, InSlices
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.registry import RequestHeader, encode_request
from tests.node_harness import PRODUCE_VERSION, NodeHarness, produce_request

NOW_MS = 1_700_000_000_000
EXISTING = 300
"""The number of partitions of topic a, more than a slice has."""
FEW_BYTES, MANY_BYTES = LARGE_PRODUCE + 500, 20_000
"""Numbers of partitions in a request below and above `LARGE_PRODUCE_BYTES`."""


@pytest.fixture
def broker() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=EXISTING)
    return harness


def produce(*topics: tuple[str, range], acks: int = -1, **batch: Any) -> ProduceRequest:
    records = bytes(build([(NOW_MS, None, b"value", [])], **batch))
    return ProduceRequest(
        acks=acks,
        timeout_ms=1_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=index, records=memoryview(bytearray(records)))
                    for index in indexes
                ],
            )
            for topic, indexes in topics
        ],
    )


def frame(version: int, request: Any) -> memoryview:
    return memoryview(bytearray(encode_request(request, version, 1, "me")))[4:]


def begin(broker: NodeHarness, client: VirtualClient, request: ProduceRequest) -> None:
    """Let the broker handle the first slice, without the other turns of its loop."""
    broker.node.handle_frame(client.channel, frame(PRODUCE_VERSION, request))
    assert not client.channel.slots[-1].completed


def results(response: Any) -> list[tuple[str, list[tuple[int, int, int]]]]:
    return [
        (topic.name, [(one.index, one.error_code, one.base_offset) for one in topic.partition_responses])
        for topic in response.responses
    ]


def end_offsets(broker: NodeHarness) -> list[int]:
    found = []
    for index in range(EXISTING):
        partition = broker.node.partition("a", index)
        assert partition is not None
        found.append(partition.log.log_end_offset)
    return found


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("count", [FEW_BYTES, MANY_BYTES])
def test_large_produce_returns_what_small_produces_return(broker: NodeHarness, acks: int, count: int) -> None:
    topics = [("a", range(100)), ("none", range(0)), ("b", range(count)), ("a", range(100, EXISTING + 5))]
    expected = []
    for topic, indexes in topics:
        of_topic: list[tuple[int, int, int]] = []
        for first in range(0, len(indexes), 500):
            part = broker.call(PRODUCE_VERSION, produce((topic, indexes[first : first + 500]), acks=acks))
            of_topic += results(part)[0][1]
        expected.append((topic, of_topic))
    large = produce(*topics, acks=acks)
    assert (len(frame(PRODUCE_VERSION, large)) > LARGE_PRODUCE_BYTES) == (count == MANY_BYTES)
    found = results(broker.call(PRODUCE_VERSION, large))
    appended_before = [
        (topic, [(index, code, offset - (code == 0)) for index, code, offset in of_topic])
        for topic, of_topic in found
    ]
    assert appended_before == expected
    assert {code for _, of_topic in found for _, code, _ in of_topic} == {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert end_offsets(broker) == [2] * EXISTING


def test_other_connections_are_served_during_a_large_produce(broker: NodeHarness) -> None:
    client, other = broker.connect(), broker.connect()
    begin(broker, client, produce(("b", range(FEW_BYTES))))
    broker.node.handle_frame(other.channel, frame(9, MetadataRequest(topics=[])))
    assert other.channel.slots[-1].completed
    assert not client.channel.slots[-1].completed


def test_produce_behind_a_large_produce_waits_until_it_has_appended(broker: NodeHarness) -> None:
    """As behind a small produce, it does not wait for the response of the produce before it."""
    client = broker.connect()
    begin(broker, client, produce(("b", range(FEW_BYTES)), ("a", range(EXISTING))))
    behind = frame(PRODUCE_VERSION, produce_request("a"))
    notified: list[Channel] = []
    client.channel.on_ready = notified.append
    assert broker.node.must_wait(client.channel, behind)
    while broker.node.must_wait(client.channel, behind):
        broker.host.events.soon.popleft()()
    assert not client.channel.slots[-1].completed
    assert notified == [client.channel]
    broker.node.handle_frame(client.channel, behind)
    broker.turn()
    assert all(context.completed for context in client.channel.slots)
    assert end_offsets(broker) == [2, *[1] * (EXISTING - 1)]


@pytest.mark.parametrize("acks", [0, 1])
def test_large_produce_is_appended_after_the_client_has_disconnected(broker: NodeHarness, acks: int) -> None:
    client = broker.connect()
    begin(broker, client, produce(("b", range(FEW_BYTES)), ("a", range(EXISTING)), acks=acks))
    broker.node.channel_closed(client.channel)
    broker.turn()
    assert end_offsets(broker) == [1] * EXISTING
    assert not client.channel.fetches.is_slicing


def test_large_commit_is_made_after_the_client_has_disconnected(broker: NodeHarness) -> None:
    for _ in range(2):  # the first call creates the topic of the group coordinator
        broker.call(3, FindCoordinatorRequest(key="g", key_type=0))
    commits = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index) for index in range(5_000)
    ]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="a", partitions=commits)],
    )
    client = broker.connect()
    broker.node.handle_frame(client.channel, frame(8, request))
    broker.node.channel_closed(client.channel)
    broker.turn()
    fetch = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="a", partition_indexes=[7])]
    )
    assert broker.call(7, fetch).topics[0].partitions[0].committed_offset == 7


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (produce(("b", range(FEW_BYTES)), ("b", range(1))), ErrorCode.INVALID_REQUEST),
        (
            produce(
                ("a", range(EXISTING)),
                ("b", range(FEW_BYTES)),
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            ),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
    ids=["partition named twice", "transaction without id"],
)
def test_error_of_a_large_produce_is_returned_for_every_partition(
    broker: NodeHarness, request_: ProduceRequest, code: ErrorCode
) -> None:
    found = results(broker.call(PRODUCE_VERSION, request_))
    assert {one for _, of_topic in found for _, one, _ in of_topic} == {code}
    assert end_offsets(broker) == [0] * EXISTING


def test_error_of_a_whole_large_produce_is_in_slices(broker: NodeHarness) -> None:
    request = produce(("b", range(FEW_BYTES - 1)), ("b", range(1)))
    header = RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "me")
    context = broker.connect().channel.open_slot(header, 0)
    context.request = request
    large = handle(broker.node, context, request)
    assert isinstance(large, InSlices)
    assert sum(1 for _ in large.steps) == 2 * (FEW_BYTES // SLICE_PARTITIONS)


def test_wait_of_a_large_produce_for_its_write_is_remote_time(broker: NodeHarness) -> None:
    now = [0.0]
    client = broker.connect()
    client.channel.request_metrics = metrics = RequestMetrics(lambda: now[0])
    begin(broker, client, produce(("b", range(FEW_BYTES)), ("a", range(EXISTING))))
    now[0] = 0.25
    while client.channel.fetches.is_slicing:
        broker.host.events.soon.popleft()()
    now[0] = 1.0
    broker.turn()
    assert client.take_bytes()
    [times] = metrics.apis.values()
    assert (list(times.recent), list(times.recent_delays)) == ([1.0], [0.75])
