"""Fetch: errors, versions, limits, isolation levels and waiting."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kwire.wire.primitives import ZERO_UUID, Uuid
from tests.node_harness import NodeHarness, produce_request

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
FENCED, UNKNOWN_EPOCH = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.fixture
def harness() -> NodeHarness:
    session_id = NodeHarness()
    session_id.create("a")
    for _ in range(3):
        session_id.produce("a")
    return session_id


def fetch(offset: int | None = 0, *, partition: dict[str, Any] | None = None, **fields: Any) -> FetchRequest:
    requested = FetchPartition(
        partition=0, fetch_offset=offset or 0, partition_max_bytes=1 << 20, **(partition or {})
    )
    topics = [] if offset is None else [FetchTopic(topic="a", partitions=[requested])]
    return FetchRequest(**{"max_bytes": 1 << 20, "session_epoch": -1, **fields}, topics=topics)


@pytest.mark.parametrize("level", [-1, 2, 127])
def test_an_unknown_isolation_level_is_refused(harness: NodeHarness, level: int) -> None:
    for version in (4, 7, 12):
        response = harness.call(version, fetch(isolation_level=level))
        assert response.error_code == (INVALID if version >= 7 else NONE)  # a field since version 7
        (found,) = response.responses[0].partitions
        assert (found.error_code, found.high_watermark) == (INVALID, -1)


def test_an_unknown_isolation_level_does_not_advance_the_session(harness: NodeHarness) -> None:
    session_id = harness.call(12, fetch(session_epoch=0)).session_id
    codes = [
        harness.call(12, fetch(isolation_level=level, session_id=session_id, session_epoch=epoch)).error_code
        for level, epoch in ((2, 1), (0, 1), (0, 2))
    ]
    assert codes == [INVALID, NONE, NONE]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (0, UNKNOWN_EPOCH),
        (1, UNKNOWN_EPOCH),
    ],
)
def test_a_fetch_of_a_foreign_replica_is_an_error(harness: NodeHarness, epoch: int, code: ErrorCode) -> None:
    request = fetch(replica_id=1, partition={"current_leader_epoch": epoch})
    assert harness.call(12, request).responses[0].partitions[0].error_code == code


def test_a_replica_gets_the_leader_id_without_its_endpoint(harness: NodeHarness) -> None:
    topic_id = harness.node.image.topics["a"].topic_id
    request = fetch(replica_state=ReplicaState(replica_id=1))
    request.topics[0].topic_id = topic_id
    response = harness.call(16, request)
    (found,) = response.responses[0].partitions
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert found.current_leader.leader_id == 1
    assert response.node_endpoints == []


def test_a_divergence_is_an_error_in_versions_without_its_field(harness: NodeHarness) -> None:
    at_its_epoch = {"last_fetched_epoch": 0}
    session_id = harness.call(12, fetch(1, session_epoch=0, partition=at_its_epoch)).session_id
    beyond = harness.call(12, fetch(9, session_id=session_id, session_epoch=1, partition=at_its_epoch))
    assert beyond.responses[0].partitions[0].diverging_epoch.end_offset == 3
    old = harness.call(11, fetch(None, session_id=session_id, session_epoch=2))
    assert (old.error_code, old.session_id, old.responses) == (
        ErrorCode.UNSUPPORTED_VERSION,
        session_id,
        [],
    )
    assert harness.call(12, fetch(None, session_id=session_id, session_epoch=3)).error_code == NONE


def test_a_fetch_below_the_log_start_is_out_of_range(harness: NodeHarness) -> None:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=2)]
    harness.call(2, DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="a", partitions=partitions)]))
    for offset, code in ((1, ErrorCode.OFFSET_OUT_OF_RANGE), (2, NONE)):
        request = fetch(offset, partition={"last_fetched_epoch": 0})
        assert harness.call(12, request).responses[0].partitions[0].error_code == code


BATCH_BYTES = 73
"""The size of a batch that `NodeHarness.produce` sends."""


def sizes(response: Any) -> list[int]:
    return [len(one.records or b"") for topic in response.responses for one in topic.partitions]


def test_unknown_partitions_come_last_in_the_response(harness: NodeHarness) -> None:
    known, unknown = harness.node.image.topics["a"].topic_id, Uuid(bytes(15) + b"\7")
    request = fetch(None)
    request.topics = [
        FetchTopic(
            topic_id=topic_id, partitions=[FetchPartition(partition=index, partition_max_bytes=1 << 20)]
        )
        for topic_id, index in ((known, 7), (unknown, 0), (ZERO_UUID, 1), (known, 0))
    ]
    response = harness.call(13, request)
    assert [
        (one.partition_index, one.error_code) for topic in response.responses for one in topic.partitions
    ] == [
        (0, NONE),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.UNKNOWN_TOPIC_ID),
        (1, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("offset", [0, 3], ids=["with more to read", "at the end"])
@pytest.mark.parametrize(
    ("created_again", "code"),
    [(True, ErrorCode.INCONSISTENT_TOPIC_ID), (False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_a_session_does_not_read_a_recreated_topic(
    harness: NodeHarness, code: ErrorCode, offset: int, *, created_again: bool
) -> None:
    """The consumer gets an error instead of records of the new topic.

    A fetch at the log end also gets the error, although its fetch offset is valid in the new topic.
    """
    by_id = fetch(offset, session_epoch=0)
    by_id.topics[0].topic_id = harness.node.image.topics["a"].topic_id
    session_id = harness.call(13, by_id).session_id
    harness.call(6, DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1_000))
    if created_again:
        harness.create("a")
        for _ in range(3):
            harness.produce("a")
    response = harness.call(13, fetch(None, session_id=session_id, session_epoch=1))
    assert [one.error_code for topic in response.responses for one in topic.partitions] == [code]
    assert sizes(response) == [0]
    # Without a session, the topic id is unknown.
    (found,) = harness.call(13, by_id).responses[0].partitions
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_topics_are_named_by_name_and_from_v13_by_id(harness: NodeHarness, version: int) -> None:
    request = fetch(1)
    request.topics[0].topic_id = harness.node.image.topics["a"].topic_id
    response = harness.call(version, request)
    (found,) = response.responses[0].partitions
    assert (found.error_code, found.high_watermark, found.log_start_offset) == (
        NONE,
        3,
        0 if version >= 5 else -1,
    )
    assert sizes(response) == [2 * BATCH_BYTES]


@pytest.mark.parametrize(
    ("offset", "code"),
    [(0, NONE), (3, NONE), (4, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
def test_offsets_up_to_the_log_end_are_valid(harness: NodeHarness, offset: int, code: ErrorCode) -> None:
    (found,) = harness.call(12, fetch(offset)).responses[0].partitions
    assert found.error_code == code


@pytest.mark.parametrize(("epoch", "code"), [(-1, NONE), (0, NONE), (1, UNKNOWN_EPOCH)])
def test_a_client_with_a_newer_leader_epoch_gets_an_error(
    harness: NodeHarness, epoch: int, code: ErrorCode
) -> None:
    request = fetch(partition={"current_leader_epoch": epoch})
    assert harness.call(12, request).responses[0].partitions[0].error_code == code


@pytest.mark.parametrize(
    ("partition_bytes", "all_bytes", "size"),
    [
        (1 << 20, 1 << 20, 3 * BATCH_BYTES),
        (BATCH_BYTES + 1, 1 << 20, BATCH_BYTES + 1),
        (1 << 20, 1, BATCH_BYTES),
        (0, 0, BATCH_BYTES),
        (-5, -5, BATCH_BYTES),
    ],
)
def test_the_first_batch_is_complete_despite_the_limits(
    harness: NodeHarness, partition_bytes: int, all_bytes: int, size: int
) -> None:
    request = fetch(max_bytes=all_bytes)
    request.topics[0].partitions[0].partition_max_bytes = partition_bytes
    assert sizes(harness.call(12, request)) == [size]


def test_read_committed_stops_at_an_open_transaction(harness: NodeHarness) -> None:
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    opened = build(
        [(1_700_000_000_000, None, b"open", [])],
        base_offset=3,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append_stored(memoryview(opened))
    log.commit()
    log.high_watermark = log.log_end_offset
    uncommitted, committed = (harness.call(12, fetch(2, isolation_level=level)) for level in (0, 1))
    assert (len(uncommitted.responses[0].partitions[0].records), sizes(committed)) == (
        BATCH_BYTES + len(opened),
        [BATCH_BYTES],
    )
    (found,) = committed.responses[0].partitions
    assert (found.high_watermark, found.last_stable_offset, found.aborted_transactions) == (4, 3, [])
    (found,) = harness.call(12, fetch(3, isolation_level=1, max_wait_ms=0)).responses[0].partitions
    assert found.records in (b"", None)


def test_min_bytes_counts_all_partitions(harness: NodeHarness) -> None:
    harness.create("b")
    harness.produce("b")
    request = fetch(1, min_bytes=4 * BATCH_BYTES, max_wait_ms=60_000)
    request.topics.append(
        FetchTopic(topic="b", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
    )
    client = harness.connect()
    client.submit(12, request)
    harness.turn()
    assert client.receive(12, FetchRequest) is None
    harness.produce("b")
    assert sizes(client.receive(12, FetchRequest)) == [2 * BATCH_BYTES, 2 * BATCH_BYTES]


def test_a_negative_leader_epoch_is_ignored(harness: NodeHarness) -> None:
    client = harness.connect()
    client.send(12, fetch(3, max_wait_ms=500, min_bytes=10_000, partition={"current_leader_epoch": -7}))
    harness.produce("a")
    assert client.receive(12, FetchRequest) is None
    harness.host.advance(500)
    assert sizes(client.receive(12, FetchRequest)) != [0]


def test_a_fetch_waits_up_to_max_wait_ms(harness: NodeHarness) -> None:
    client = harness.connect()
    client.submit(12, fetch(3, min_bytes=1, max_wait_ms=500))
    harness.turn()
    harness.host.advance(499)
    assert client.receive(12, FetchRequest) is None
    harness.host.advance(1)
    assert sizes(client.receive(12, FetchRequest)) == [0]


def test_waiting_v10_fetch_returns_not_leader_after_a_leader_change(harness: NodeHarness) -> None:
    client = harness.connect()
    client.submit(10, fetch(3, min_bytes=1, max_wait_ms=60_000))
    harness.turn()
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5))
    for response in (client.receive(10, FetchRequest), harness.call(10, fetch(0))):
        (found,) = response.responses[0].partitions
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_serves_fetches_of_consumers(harness: NodeHarness) -> None:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    client_with_epoch = harness.connect()
    client_with_epoch.submit(
        12, fetch(3, min_bytes=1, max_wait_ms=60_000, partition={"current_leader_epoch": 0})
    )
    client = harness.connect()
    client.submit(12, fetch(3, min_bytes=1, max_wait_ms=60_000))
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5))
    harness.turn()
    fenced = client_with_epoch.receive(12, FetchRequest).responses[0].partitions[0]
    assert fenced.error_code == FENCED, "a client with the old leader epoch gets an error"
    assert sizes(harness.call(12, fetch(0))) == [3 * BATCH_BYTES]
    assert client.receive(12, FetchRequest) is None
    partition.log.append(memoryview(bytearray(build([(1, None, b"value", [])]))), leader_epoch=5, now_ms=1)
    partition.log.commit()
    assert sizes(harness.call(12, fetch(3))) == [0]
    partition.log.high_watermark = 4
    partition.wake()
    assert sizes(client.receive(12, FetchRequest)) == [BATCH_BYTES]


def test_consumers_read_up_to_the_high_watermark(harness: NodeHarness) -> None:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.become_leader(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=1))
    client = harness.connect()
    client.submit(12, fetch(3, min_bytes=1, max_wait_ms=60_000))
    produced = harness.call(12, produce_request("a", acks=1)).responses[0].partition_responses[0]
    assert (produced.error_code, produced.base_offset) == (NONE, 3)
    assert client.receive(12, FetchRequest) is None
    partition.record_follower_fetch(2, 4)
    harness.turn()
    assert sizes(client.receive(12, FetchRequest)) == [BATCH_BYTES]
