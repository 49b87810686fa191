"""What a leader with followers answers to others: offsets, ends of epochs, deletions, where to fetch from."""

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
from tests.broker.api.records.leader import NONE, ONE, Leader, parts
from tests.node_harness import produce_request

ELSEWHERE = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5, partition_epoch=5)
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def offsets(harness: Leader, timestamp: int, *, version: int = 9, replica: int = -1, epoch: int = -1) -> Any:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=replica, topics=[ListOffsetsTopic(name="a", partitions=[asked])])
    found = harness.call(version, request).topics[0].partitions[0]
    return found.error_code, found.offset


@pytest.fixture
def behind() -> Leader:
    """A leader of a new epoch, which began with a record of which it does not know that it is committed."""
    harness = Leader()
    harness.append()
    harness.lead(0, epoch=2)
    return harness


def test_who_leads_anew_tells_of_no_offsets_that_may_be_too_low(behind: Leader) -> None:
    for timestamp in (LATEST, MAX_TIMESTAMP, 0):
        assert offsets(behind, timestamp) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert offsets(behind, LATEST, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert offsets(behind, EARLIEST) == (NONE, 0)
    assert offsets(behind, LATEST, replica=2) == (NONE, 1), "followers are told of the end of the log"
    behind.fetch({0: 1}, partition={"current_leader_epoch": 2})
    assert offsets(behind, LATEST) == (NONE, 1)
    behind.append()
    assert offsets(behind, LATEST) == (NONE, 1), "what is appended since is no reason"


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_follower_tells_of_a_wrong_epoch_first(epoch: int, code: ErrorCode) -> None:
    harness = Leader()
    harness.partition().become_follower(ELSEWHERE)
    assert offsets(harness, LATEST, epoch=epoch) == (code, -1)
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=1)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic="a", partitions=[asked])]
    )
    assert harness.call(4, request).topics[0].partitions[0].error_code == code


def test_a_follower_answers_who_looks_for_faults() -> None:
    harness = Leader()
    harness.append()
    harness.partition().become_follower(ELSEWHERE)
    assert offsets(harness, LATEST, replica=-2) == (NONE, 1)


class Elsewhere(Leader):
    """With a partition a-1, an internal topic and another one that broker 2 has and broker 1 has not."""

    def __init__(self) -> None:
        super().__init__()
        image = ELSEWHERE._replace(replicas=(2,), isr=(2,))
        here = self.node.image.topics["a"]
        more = {name: TopicImage(name, Uuid(name[:1].encode() * 16), (image,)) for name in ("b", INTERNAL)}
        a = here._replace(partitions=(*here.partitions, image))
        self.node.image.topics = {**self.node.image.topics, "a": a, **more}


INTERNAL = "__consumer_offsets"
NOT_LEADER, UNKNOWN = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_consumer_is_told_at_once_and_in_its_place_what_is_elsewhere() -> None:
    harness = Elsewhere()

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
        answer = client.receive(12, FetchRequest)
        return answer and [
            (topic.topic, [(one.partition_index, one.error_code) for one in topic.partitions])
            for topic in answer.responses
        ]

    assert fetch(c=[0], a=[1, 0], b=[0]) == [
        ("a", [(1, NOT_LEADER), (0, NONE)]),
        ("b", [(0, NOT_LEADER)]),
        ("c", [(0, UNKNOWN)]),
    ]
    assert fetch(a=[0, 2]) is None, "what does not exist is no reason to answer"


def test_who_fetches_as_a_follower_is_told_what_is_elsewhere() -> None:
    harness = Elsewhere()
    answer = harness.fetch({2: 0, 1: 0, 0: 0})
    assert [(one.partition_index, one.error_code) for one in parts(answer)] == [
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
def test_what_is_produced_is_checked_before_it_is_sent_elsewhere(
    topic: str, acks: int, code: ErrorCode, leader: int
) -> None:
    answer = Elsewhere().call(12, produce_request(topic, acks=acks)).responses[0].partition_responses[0]
    assert (answer.error_code, answer.current_leader.leader_id) == (code, leader)


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("b", 0, NOT_LEADER),
        (INTERNAL, 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (INTERNAL, 1, UNKNOWN),
        ("c", 0, UNKNOWN),
    ],
)
def test_what_is_deleted_is_checked_before_it_is_sent_elsewhere(
    topic: str, index: int, code: ErrorCode
) -> None:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=0)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=partitions)])
    assert Elsewhere().call(2, request).topics[0].partitions[0].error_code == code


class Deleting(Leader):
    """With two records that are replicated, of which the first is to go."""

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
        return self.told()

    def told(self) -> Any:
        self.turn()
        answer = self.client.receive(2, DeleteRecordsRequest)
        if answer is None:
            return None
        (found,) = answer.topics[0].partitions
        return found.error_code, found.low_watermark


def test_records_are_deleted_when_all_that_live_have() -> None:
    harness = Deleting()
    assert harness.delete() is None
    (found,) = parts(harness.fetch({0: 2}, max_wait_ms=0))
    assert (found.log_start_offset, harness.told()) == (1, None)
    harness.fetch({0: 2}, max_wait_ms=0, partition={"log_start_offset": 1})
    assert harness.told() == (NONE, 1)
    assert harness.delete() == (NONE, 1), "once more"
    assert harness.delete(3) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize("how", ["in time", "fenced", "resigned", "too late"])
def test_a_deletion_that_waits(how: str) -> None:
    harness = Deleting()
    assert harness.delete() is None
    if how == "resigned":
        harness.partition().become_follower(ELSEWHERE)
        assert harness.told() == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    elif how == "fenced":
        brokers = harness.node.image.brokers
        harness.node.image.brokers = {**brokers, 2: brokers[2]._replace(fenced=True)}
        harness.partition().maybe_shrink_isr()
        assert harness.told() == (NONE, 1)
    elif how == "too late":
        harness.host.advance(1_000)
        assert harness.told() == (ErrorCode.REQUEST_TIMED_OUT, 0)
    else:
        harness.fetch({0: 2}, max_wait_ms=0, partition={"log_start_offset": 1})
        assert harness.told() == (NONE, 1)
    harness.fetch({0: 2}, max_wait_ms=0, partition={"log_start_offset": 1})
    harness.host.advance(2_000)
    assert harness.told() is None


SELECTOR = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.rack": "one",
}


def consume(
    harness: Leader, offset: int = 0, *, rack: str = "two", version: int = 12, wait_ms: int = 0
) -> Any:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        rack_id=rack,
        topics=[FetchTopic(topic="a", partitions=[asked])],
    )
    found = harness.call(version, request).responses[0].partitions[0]
    return found.preferred_read_replica, len(found.records or b"")


def test_a_consumer_is_sent_to_a_follower_in_its_rack() -> None:
    harness = Leader(**SELECTOR)
    harness.append()
    assert consume(harness) == (-1, 0), "of a follower that has not fetched nothing is known"
    harness.fetch({0: 1}, max_wait_ms=0)
    assert consume(harness, wait_ms=500) == (2, 0)
    assert (
        consume(harness, rack="")
        == consume(harness, rack="one")
        == consume(harness, rack="three")
        == (-1, ONE)
    )
    assert consume(harness, version=10) == (-1, ONE), "an old one has no rack"
    harness.append()
    assert consume(harness, 2) == (-1, 0), "it does not have that offset"
    assert consume(harness, 1, wait_ms=500) == (2, 0)
    brokers = harness.node.image.brokers
    harness.node.image.brokers = {**brokers, 2: brokers[2]._replace(fenced=True)}
    assert consume(harness, 0) == (-1, ONE)


def test_without_a_selector_nobody_is_sent_away() -> None:
    harness = Leader()
    harness.append()
    harness.fetch({0: 1}, max_wait_ms=0)
    assert consume(harness) == (-1, ONE)


def test_with_a_selector_followers_hear_of_the_high_watermark_at_once() -> None:
    for settings, news in ((SELECTOR, True), ({}, False)):
        harness = Leader(**settings)
        harness.partition().become_leader(
            PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=2, partition_epoch=2)
        )
        harness.append()
        epoch = {"current_leader_epoch": 2}
        made = harness.fetch({0: 1}, partition=epoch, session_epoch=0, max_wait_ms=0).session_id
        assert harness.fetch(session_id=made, session_epoch=1) is None
        harness.partition().record_follower_fetch(3, 1)
        harness.turn()
        assert (harness.received() is not None) == news
