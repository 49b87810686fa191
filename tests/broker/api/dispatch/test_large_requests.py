"""Requests that name many partitions or topics, which the broker handles in slices.

The oracle is the response to the same request in parts, each small enough to be handled at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from kwire.broker.api.records.fetch import LARGE_SESSION
from kwire.broker.api.request.context import CODES_PER_SLICE
from kwire.broker.api.request.request_metrics import RequestMetrics
from kwire.broker.api.request.slices import LARGE_REQUEST_BYTES
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.registry import encode_request
from tests.node_harness import FETCH_VERSION, NodeHarness

PARTITIONS = 5_000
WAIT_MS = 60_000
METADATA_VERSION = 9


@pytest.fixture
def broker() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=3)
    return harness


def fetch(*topics: tuple[str, range], wait_ms: int = 0, epoch: int = -1, session_id: int = 0) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=epoch,
        session_id=session_id,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in indexes
                ],
            )
            for topic, indexes in topics
        ],
    )


def frame(version: int, request: Any) -> memoryview:
    return memoryview(bytearray(encode_request(request, version, 1, "me")))[4:]


def begin(broker: NodeHarness, client: VirtualClient, version: int, request: Any) -> None:
    """Let the broker handle the first slice of a large request, without the other turns of its loop."""
    data = frame(version, request)
    assert len(data) > LARGE_REQUEST_BYTES
    broker.node.handle_frame(client.channel, data)
    assert not client.channel.slots[-1].completed


def results(response: Any) -> dict[tuple[str, int], tuple[int, bytes]]:
    found = {
        (topic.topic, data.partition_index): (data.error_code, bytes(data.records or b""))
        for topic in response.responses
        for data in topic.partitions
    }
    assert len(found) == sum(len(topic.partitions) for topic in response.responses)
    return found


def test_large_fetch_returns_what_small_fetches_return(broker: NodeHarness) -> None:
    broker.produce("a", 1)
    expected: dict[tuple[str, int], tuple[int, bytes]] = {}
    for first in range(0, PARTITIONS, 250):
        small = fetch(("a", range(first, first + 250)), ("b", range(first, first + 250)))
        assert len(frame(FETCH_VERSION, small)) < LARGE_REQUEST_BYTES
        expected |= results(broker.call(FETCH_VERSION, small))
    large = fetch(("a", range(PARTITIONS)), ("b", range(PARTITIONS)))
    found = broker.call(FETCH_VERSION, large)
    assert [topic.topic for topic in found.responses] == ["a", "b"]
    assert results(found) == expected
    assert {code for code, _ in expected.values()} == {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert b"value" in expected["a", 1][1]


def list_offsets(first: int, count: int) -> ListOffsetsRequest:
    wanted = [
        ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(first, first + count)
    ]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=wanted)])


def offset_commit(first: int, count: int) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index)
        for index in range(first, first + count)
    ]
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="a", partitions=partitions)],
    )


def metadata(first: int, count: int) -> MetadataRequest:
    names = ["a", *(f"topic-{number}" for number in range(first, first + count))]
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def describe_configs(first: int, count: int) -> DescribeConfigsRequest:
    names = ["a", *(f"topic-{number}" for number in range(first, first + count))]
    resources = [DescribeConfigsResource(resource_type=2, resource_name=name) for name in names]
    return DescribeConfigsRequest(resources=resources)


@pytest.mark.parametrize(
    ("version", "build", "entries"),
    [
        (6, list_offsets, lambda response: response.topics[0].partitions),
        (8, offset_commit, lambda response: response.topics[0].partitions),
        (METADATA_VERSION, metadata, lambda response: response.topics),
        (4, describe_configs, lambda response: response.results),
    ],
    ids=["ListOffsets", "OffsetCommit", "Metadata", "DescribeConfigs"],
)
def test_large_request_returns_what_small_requests_return(
    broker: NodeHarness,
    version: int,
    build: Callable[[int, int], Any],
    entries: Callable[[Any], list[Any]],
) -> None:
    broker.produce("a", 1)
    for _ in range(2):  # the first call creates the topic of the group coordinator
        broker.call(3, FindCoordinatorRequest(key="g", key_type=0))
    expected: dict[Any, Any] = {}
    for first in range(0, PARTITIONS, 500):
        small = build(first, 500)
        assert len(frame(version, small)) < LARGE_REQUEST_BYTES
        expected |= {repr(entry): entry for entry in entries(broker.call(version, small))}
    client = broker.connect()
    begin(broker, client, version, build(0, PARTITIONS))
    broker.turn()
    found = entries(client.receive(version, type(build(0, 0))))
    assert {repr(entry): entry for entry in found} == expected
    assert len(found) == len(expected) >= PARTITIONS


@pytest.mark.parametrize("request_name", ["Fetch", "Metadata"])
def test_other_connections_are_served_during_a_large_request(broker: NodeHarness, request_name: str) -> None:
    client, other = broker.connect(), broker.connect()
    names = [MetadataRequestTopic(name=f"topic-{number}") for number in range(PARTITIONS)]
    version, request = {
        "Fetch": (FETCH_VERSION, fetch(("b", range(PARTITIONS)))),
        "Metadata": (METADATA_VERSION, MetadataRequest(topics=names, allow_auto_topic_creation=False)),
    }[request_name]
    begin(broker, client, version, request)
    broker.node.handle_frame(other.channel, frame(METADATA_VERSION, MetadataRequest(topics=[])))
    assert other.channel.slots[-1].completed
    assert not client.channel.slots[-1].completed
    broker.turn()
    assert client.receive(version, type(request)) is not None


def test_request_behind_a_large_request_waits(broker: NodeHarness) -> None:
    client = broker.connect()
    names = [MetadataRequestTopic(name=f"topic-{number}") for number in range(PARTITIONS)]
    begin(broker, client, METADATA_VERSION, MetadataRequest(topics=names, allow_auto_topic_creation=False))
    assert broker.node.must_wait(client.channel, frame(METADATA_VERSION, MetadataRequest(topics=[])))
    broker.turn()
    assert not broker.node.must_wait(client.channel, frame(METADATA_VERSION, MetadataRequest(topics=[])))


def test_request_behind_a_large_fetch_ends_its_wait(broker: NodeHarness) -> None:
    """The Fetch waits for records of one partition. It completes when another request follows."""
    client = broker.connect()
    begin(broker, client, FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    broker.turn()
    assert client.take_bytes() == b""
    behind = frame(METADATA_VERSION, MetadataRequest(topics=[]))
    assert not broker.node.must_wait(client.channel, behind)
    broker.node.handle_frame(client.channel, behind)
    broker.turn()
    assert all(context.completed for context in client.channel.slots)
    assert len(client.take_bytes()) > PARTITIONS


@pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
def test_request_behind_a_large_fetch_has_no_effect_before_the_fetch_has_read(
    broker: NodeHarness, wait_ms: int
) -> None:
    for _ in range(5):
        broker.produce("a", 0)
    delete = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(name="a", partitions=[DeleteRecordsPartition(partition_index=0, offset=5)])
        ]
    )
    client = broker.connect()
    begin(broker, client, FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=wait_ms))
    behind = frame(2, delete)
    assert broker.node.must_wait(client.channel, behind)
    while broker.node.must_wait(client.channel, behind):
        broker.turn()
    code, records = results(client.receive(FETCH_VERSION, FetchRequest))["a", 0]
    assert code == ErrorCode.NONE
    assert b"value" in records


def test_queued_large_fetches_of_a_session_are_read_in_order(broker: NodeHarness) -> None:
    """Another request ends the waits of all of them, and is handled after the last."""
    client = broker.connect()
    client.send(FETCH_VERSION, fetch(("a", range(3)), wait_ms=WAIT_MS, epoch=0))
    for _ in range(2):
        client.send(FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    assert client.take_bytes() == b""
    behind = frame(METADATA_VERSION, MetadataRequest(topics=[]))
    turns = 0
    while broker.node.must_wait(client.channel, behind):
        broker.turn()
        turns += 1
        assert turns < 1000
    assert all(context.completed for context in client.channel.slots)


def test_large_fetch_waits_for_records(broker: NodeHarness) -> None:
    client = broker.connect()
    client.send(FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    assert client.receive(FETCH_VERSION, FetchRequest) is None
    broker.produce("a", 2)
    found = results(client.receive(FETCH_VERSION, FetchRequest))
    assert len(found) == PARTITIONS
    assert b"value" in found["a", 2][1]


def test_large_fetch_behind_a_waiting_fetch_waits_for_its_turn(broker: NodeHarness) -> None:
    client = broker.connect()
    for _ in range(2):
        client.send(FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    client.send(FETCH_VERSION, fetch(("a", range(3)), wait_ms=WAIT_MS))
    for number in (PARTITIONS, PARTITIONS, 3):
        broker.host.advance(WAIT_MS - 1)
        assert client.take_bytes() == b""
        broker.host.advance(1)
        assert len(results(client.receive(FETCH_VERSION, FetchRequest))) == number


def test_shutdown_completes_a_large_fetch(broker: NodeHarness) -> None:
    client = broker.connect()
    begin(broker, client, FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    broker.node.begin_shutdown()
    broker.turn()
    assert len(results(client.receive(FETCH_VERSION, FetchRequest))) == PARTITIONS


def test_large_fetch_creates_a_session(broker: NodeHarness) -> None:
    """The second request has few bytes, but its session has many partitions."""
    assert PARTITIONS > LARGE_SESSION
    full = broker.call(FETCH_VERSION, fetch(("a", range(PARTITIONS)), epoch=0))
    assert (full.session_id != 0, len(results(full))) == (True, PARTITIONS)
    broker.produce("a", 1)
    client = broker.connect()
    request = fetch(epoch=1, session_id=full.session_id)
    broker.node.handle_frame(client.channel, frame(FETCH_VERSION, request))
    assert not client.channel.slots[-1].completed
    broker.turn()
    found = results(client.receive(FETCH_VERSION, FetchRequest))
    records = {key for key, (_, data) in found.items() if data}
    assert records == {("a", 1)}
    assert len(found) == PARTITIONS - 2, "unknown partitions are repeated, and the quiet ones are not"


def test_session_that_advances_during_a_large_fetch_is_an_error(broker: NodeHarness) -> None:
    full = broker.call(FETCH_VERSION, fetch(("a", range(PARTITIONS)), epoch=0))
    first, second = broker.connect(), broker.connect()
    for epoch, client in ((1, first), (2, second)):
        request = fetch(epoch=epoch, session_id=full.session_id)
        broker.node.handle_frame(client.channel, frame(FETCH_VERSION, request))
    broker.turn()
    codes = [client.receive(FETCH_VERSION, FetchRequest).error_code for client in (first, second)]
    assert codes == [ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.NONE]


def test_malformed_large_request_closes_the_connection(
    broker: NodeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    client = broker.connect()
    broker.node.handle_frame(client.channel, frame(FETCH_VERSION, fetch(("b", range(PARTITIONS))))[:-1])
    with caplog.at_level(logging.WARNING):
        broker.turn()
    assert client.take_bytes() == b""
    assert client.channel.closing
    assert "FetchRequest v12 is truncated" in caplog.text


def test_large_request_that_cannot_be_decoded_for_lack_of_memory_closes_the_connection(
    broker: NodeHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the decoded request, the broker cannot build an error response."""

    def decode(*_: object) -> Iterator[None]:
        yield
        raise MemoryError

    client = broker.connect()
    monkeypatch.setattr("kwire.broker.api.dispatch.dispatcher.decode_request_in_slices", decode)
    with caplog.at_level(logging.WARNING):
        client.send(FETCH_VERSION, fetch(("b", range(PARTITIONS))))
    assert client.take_bytes() == b""
    assert client.channel.closing
    assert "Closing connection to 127.0.0.1" in caplog.text


def test_closed_connection_ends_a_large_request(broker: NodeHarness) -> None:
    client = broker.connect()
    begin(broker, client, FETCH_VERSION, fetch(("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    broker.node.channel_closed(client.channel)
    broker.turn()
    partition = broker.node.partition("a", 0)
    assert partition is not None
    assert not partition.delayed_fetches
    assert client.channel.fetches.complete is None


class Timed:
    """A connection with request metrics on a clock that the test sets."""

    def __init__(self, broker: NodeHarness) -> None:
        self.broker = broker
        self.now = 0.0
        self.metrics = RequestMetrics(lambda: self.now)
        self.client = broker.connect()
        self.client.channel.request_metrics = self.metrics

    def begin(self, version: int, request: Any) -> None:
        self.broker.node.handle_frame(self.client.channel, frame(version, request))
        assert not self.client.channel.slots[-1].completed

    def turn_at(self, now: float) -> None:
        self.now = now
        self.broker.turn()

    def local_and_remote(self) -> tuple[float, float]:
        """Return the local and the remote time of the only request, which is completed."""
        assert self.client.take_bytes()
        [times] = self.metrics.apis.values()
        [total], [remote] = times.recent, times.recent_delays
        return total - remote, remote


def test_slices_of_a_large_request_are_local_time(broker: NodeHarness) -> None:
    timed = Timed(broker)
    timed.begin(6, list_offsets(0, PARTITIONS))
    timed.turn_at(0.25)
    assert timed.local_and_remote() == (0.25, 0)


def test_wait_of_a_large_fetch_for_records_is_remote_time(broker: NodeHarness) -> None:
    timed = Timed(broker)
    timed.begin(FETCH_VERSION, fetch(("a", range(3)), ("a", range(PARTITIONS)), wait_ms=WAIT_MS))
    timed.turn_at(0.25)
    timed.now = 1.0
    broker.produce("a", 2)
    assert timed.local_and_remote() == (0.25, 0.75)


def test_wait_of_a_large_commit_for_its_records_is_remote_time(broker: NodeHarness) -> None:
    for _ in range(2):  # the first call creates the topic of the group coordinator
        broker.call(3, FindCoordinatorRequest(key="g", key_type=0))
    timed = Timed(broker)
    timed.begin(8, offset_commit(0, PARTITIONS))
    timed.turn_at(0.25)
    timed.turn_at(1.0)
    assert timed.local_and_remote() == (0.25, 0.75)


def test_slices_of_a_small_request_of_a_large_session_are_local_time(broker: NodeHarness) -> None:
    full = broker.call(FETCH_VERSION, fetch(("a", range(3)), ("b", range(PARTITIONS)), epoch=0))
    timed = Timed(broker)
    timed.begin(FETCH_VERSION, fetch(epoch=1, session_id=full.session_id))
    timed.turn_at(0.25)
    assert timed.local_and_remote() == (0.25, 0)


def test_errors_of_a_large_response_are_counted_in_slices(broker: NodeHarness) -> None:
    timed = Timed(broker)
    count = 2 * CODES_PER_SLICE
    timed.begin(6, list_offsets(0, count))
    found = [0]
    while not timed.client.channel.slots[-1].completed:
        broker.host.events.soon.popleft()()
        found.append(timed.metrics.errors[ApiKey.LIST_OFFSETS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    existing = 3
    assert found[-1] == count - existing
    assert max(after - before for before, after in pairwise(found)) <= CODES_PER_SLICE
