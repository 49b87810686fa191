"""A leader with followers: ListOffsets, OffsetForLeaderEpoch, DeleteRecords and preferred read replicas."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage, TopicImage
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kwire.wire.primitives import Uuid
from tests.broker.api.records.leader import BATCH_BYTES, NONE, Leader, parts
from tests.node_harness import produce_request

OTHER_LEADER = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5, partition_epoch=5)
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def offsets(harness: Leader, timestamp: int, *, version: int = 9, replica: int = -1, epoch: int = -1) -> Any:
    requested = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(
        replica_id=replica, topics=[ListOffsetsTopic(name="a", partitions=[requested])]
    )
    found = harness.call(version, request).topics[0].partitions[0]
    return found.error_code, found.offset


@pytest.fixture
def new_leader() -> Leader:
    """Return a new leader with a record that is not known to be committed."""
    harness = Leader()
    harness.append()
    harness.become_leader_of(0, epoch=2)
    return harness


def test_a_new_leader_returns_offset_not_available(new_leader: Leader) -> None:
    for timestamp in (LATEST, MAX_TIMESTAMP, 0):
        assert offsets(new_leader, timestamp) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert offsets(new_leader, LATEST, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert offsets(new_leader, EARLIEST) == (NONE, 0)
    assert offsets(new_leader, LATEST, replica=2) == (NONE, 1), "followers get the log end offset"
    new_leader.fetch({0: 1}, partition={"current_leader_epoch": 2})
    assert offsets(new_leader, LATEST) == (NONE, 1)
    new_leader.append()
    assert offsets(new_leader, LATEST) == (NONE, 1), "later appends do not matter"


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_follower_checks_the_leader_epoch_first(epoch: int, code: ErrorCode) -> None:
    harness = Leader()
    harness.partition().become_follower(OTHER_LEADER)
    assert offsets(harness, LATEST, epoch=epoch) == (code, -1)
    requested = OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=1)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic="a", partitions=[requested])]
    )
    assert harness.call(4, request).topics[0].partitions[0].error_code == code


def test_a_follower_lists_offsets_for_the_debugging_consumer() -> None:
    harness = Leader()
    harness.append()
    harness.partition().become_follower(OTHER_LEADER)
    assert offsets(harness, LATEST, replica=-2) == (NONE, 1)


class RemotePartitions(Leader):
    """Broker 1, without a replica of partition a-1, topic b and an internal topic. Broker 2 leads these."""

    def __init__(self) -> None:
        super().__init__()
        image = OTHER_LEADER._replace(replicas=(2,), isr=(2,))
        topic = self.node.image.topics["a"]
        more = {name: TopicImage(name, Uuid(name[:1].encode() * 16), (image,)) for name in ("b", INTERNAL)}
        a = topic._replace(partitions=(*topic.partitions, image))
        self.node.image.topics = {**self.node.image.topics, "a": a, **more}


INTERNAL = "__consumer_offsets"
NOT_LEADER, UNKNOWN = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_consumer_fetch_returns_remote_partitions_at_once() -> None:
    harness = RemotePartitions()

    def fetch(**named: list[int]) -> Any:
        topics = [
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                    for index in indexes
                ],
            )
            for topic, indexes in named.items()
        ]
        client = harness.connect()
        client.send(12, FetchRequest(max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=topics))
        response = client.receive(12, FetchRequest)
        return response and [
            (topic.topic, [(one.partition_index, one.error_code) for one in topic.partitions])
            for topic in response.responses
        ]

    assert fetch(c=[0], a=[1, 0], b=[0]) == [
        ("a", [(1, NOT_LEADER), (0, NONE)]),
        ("b", [(0, NOT_LEADER)]),
        ("c", [(0, UNKNOWN)]),
    ]
    assert fetch(a=[0, 2]) is None, "an unknown partition does not complete the fetch"


def test_a_follower_fetch_returns_remote_partitions() -> None:
    harness = RemotePartitions()
    response = harness.fetch({2: 0, 1: 0, 0: 0})
    assert [(one.partition_index, one.error_code) for one in parts(response)] == [
        (1, NOT_LEADER),
        (0, NONE),
        (2, UNKNOWN),
    ]
    assert harness.fetch({2: 0, 0: 0}) is None


@pytest.mark.parametrize(
    ("topic", "acks", "code", "leader"),
    [
        ("b", 1, NOT_LEADER, 2),
        ("b", 7, ErrorCode.INVALID_REQUIRED_ACKS, -1),
        (INTERNAL, 1, ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
        ("c", 7, UNKNOWN, -1),
    ],
)
def test_produce_is_validated_before_not_leader_is_returned(
    topic: str, acks: int, code: ErrorCode, leader: int
) -> None:
    response = (
        RemotePartitions().call(12, produce_request(topic, acks=acks)).responses[0].partition_responses[0]
    )
    assert (response.error_code, response.current_leader.leader_id) == (code, leader)


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("b", 0, NOT_LEADER),
        (INTERNAL, 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (INTERNAL, 1, UNKNOWN),
        ("c", 0, UNKNOWN),
    ],
)
def test_delete_records_is_validated_before_not_leader_is_returned(
    topic: str, index: int, code: ErrorCode
) -> None:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=0)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)])
    assert RemotePartitions().call(2, request).topics[0].partitions[0].error_code == code


class DeleteRecordsHarness(Leader):
    """A leader with two replicated records, the first of which is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.append()
        self.append()
        self.fetch({0: 2}, max_wait_ms=0)
        self.client = self.connect()

    def delete(self, offset: int = 1) -> Any:
        partitions = [DeleteRecordsPartition(partition_index=0, offset=offset)]
        topics = [DeleteRecordsTopic(name="a", partitions=partitions)]
        self.client.send(2, DeleteRecordsRequest(topics=topics, timeout_ms=1_000))
        return self.result()

    def result(self) -> Any:
        self.turn()
        response = self.client.receive(2, DeleteRecordsRequest)
        if response is None:
            return None
        (found,) = response.topics[0].partitions
        return found.error_code, found.low_watermark


def test_delete_records_completes_when_all_live_replicas_have_deleted() -> None:
    harness = DeleteRecordsHarness()
    assert harness.delete() is None
    (found,) = parts(harness.fetch({0: 2}, max_wait_ms=0))
    assert (found.log_start_offset, harness.result()) == (1, None)
    harness.fetch({0: 2}, max_wait_ms=0, partition={"log_start_offset": 1})
    assert harness.result() == (NONE, 1)
    assert harness.delete() == (NONE, 1), "a repeated deletion"
    assert harness.delete(3) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize("outcome", ["in time", "fenced", "resigned", "too late"])
def test_a_waiting_delete_records_completes(outcome: str) -> None:
    harness = DeleteRecordsHarness()
    assert harness.delete() is None
    if outcome == "resigned":
        harness.partition().become_follower(OTHER_LEADER)
        assert harness.result() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    elif outcome == "fenced":
        brokers = harness.node.image.brokers
        harness.node.image.brokers = {**brokers, 2: brokers[2]._replace(fenced=True)}
        harness.partition().maybe_shrink_isr()
        assert harness.result() == (NONE, 1)
    elif outcome == "too late":
        harness.host.advance(1_000)
        assert harness.result() == (ErrorCode.REQUEST_TIMED_OUT, 0)
    else:
        harness.fetch({0: 2}, max_wait_ms=0, partition={"log_start_offset": 1})
        assert harness.result() == (NONE, 1)
    harness.fetch({0: 2}, max_wait_ms=0, partition={"log_start_offset": 1})
    harness.host.advance(2_000)
    assert harness.result() is None


SELECTOR = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.rack": "one",
}


def fetch_as_consumer(
    harness: Leader, offset: int = 0, *, rack: str = "two", version: int = 12, wait_ms: int = 0
) -> Any:
    requested = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        rack_id=rack,
        topics=[FetchTopic(topic="a", partitions=[requested])],
    )
    found = harness.call(version, request).responses[0].partitions[0]
    return found.preferred_read_replica, len(found.records or b"")


def test_a_consumer_is_redirected_to_a_follower_in_its_rack() -> None:
    harness = Leader(1, **SELECTOR)
    harness.append()
    assert fetch_as_consumer(harness) == (-1, 0), "a follower that has not fetched is not chosen"
    harness.fetch({0: 1}, max_wait_ms=0)
    assert fetch_as_consumer(harness, wait_ms=500) == (2, 0)
    assert (
        fetch_as_consumer(harness, rack="")
        == fetch_as_consumer(harness, rack="one")
        == fetch_as_consumer(harness, rack="three")
        == (-1, BATCH_BYTES)
    )
    assert fetch_as_consumer(harness, version=10) == (-1, BATCH_BYTES), "version 10 has no rack"
    harness.append()
    assert fetch_as_consumer(harness, 2) == (-1, 0), "the follower does not have that offset"
    assert fetch_as_consumer(harness, 1, wait_ms=500) == (2, 0)
    brokers = harness.node.image.brokers
    harness.node.image.brokers = {**brokers, 2: brokers[2]._replace(fenced=True)}
    assert fetch_as_consumer(harness, 0) == (-1, BATCH_BYTES)


def test_without_a_replica_selector_consumers_stay_at_the_leader() -> None:
    harness = Leader()
    harness.append()
    harness.fetch({0: 1}, max_wait_ms=0)
    assert fetch_as_consumer(harness) == (-1, BATCH_BYTES)


def test_with_a_replica_selector_the_high_watermark_is_sent_at_once() -> None:
    for settings, news in ((SELECTOR, True), ({}, False)):
        harness = Leader(1, **settings)
        harness.partition().become_leader(
            PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=2, partition_epoch=2)
        )
        harness.append()
        epoch = {"current_leader_epoch": 2}
        session_id = harness.fetch({0: 1}, partition=epoch, session_epoch=0, max_wait_ms=0).session_id
        assert harness.fetch(session_id=session_id, session_epoch=1) is None
        harness.partition().record_follower_fetch(3, 1)
        harness.turn()
        assert (harness.received() is not None) == news
