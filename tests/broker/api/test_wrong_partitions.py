"""Requests that name partitions which are not there, twice, or not at all, and levels that do not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kwire.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.api.test_failures import Rig

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
INVALID, FAILED = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_SERVER_ERROR
SKIPPED, NOBODY = ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST

Named = list[tuple[str, list[int]]]


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.create("a", partitions=2)
    return made


@pytest.mark.parametrize(
    ("name", "index", "code", "said"),
    [
        ("a", 1, NONE, None),
        ("a", 2, UNKNOWN, None),
        ("a", -1, UNKNOWN, None),
        ("b", 0, UNKNOWN, "This server does not host this topic-partition."),
        ("a b", 0, INVALID, "Topic name is invalid: 'a b' contains one or more characters"),
        ("", 0, INVALID, "Topic name is invalid: the empty string is not allowed"),
    ],
)
def test_producers_of_what_is_not_there(
    rig: Rig, name: str, index: int, code: ErrorCode, said: str | None
) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[index])])
    (found,) = rig.call(0, request).topics[0].partitions
    assert found.error_code == code
    assert found.error_message == said or found.error_message.startswith(said)


@pytest.mark.parametrize(("level", "code"), [(-1, FAILED), (0, NONE), (1, NONE), (2, FAILED)])
def test_isolation_levels_of_list_offsets(rig: Rig, level: int, code: ErrorCode) -> None:
    asked = ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    for version in range(2, 12):
        request = ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=[asked])
        (found,) = rig.call(version, request).topics[0].partitions
        assert (found.error_code, found.offset) == (code, 0 if code == NONE else -1)


@pytest.mark.parametrize("verify_only", [False, True])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ([("a", [0, 2]), ("b", [0])], [("a", {0: SKIPPED, 2: UNKNOWN}), ("b", {0: UNKNOWN})]),
        ([("a", []), ("b", [0])], [("b", {0: UNKNOWN})]),
        ([("a", [1]), ("b", [0, 0]), ("a", [0])], [("a", {1: SKIPPED, 0: SKIPPED}), ("b", {0: UNKNOWN})]),
        ([("a", [0, 1])], [("a", {0: NOBODY, 1: NOBODY})]),
    ],
)
def test_partitions_of_a_transaction_are_there_before_it_is_looked_at(
    rig: Rig, verify_only: bool, asked: Named, answered: list[tuple[str, dict[int, ErrorCode]]]
) -> None:
    topics = [AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in asked]
    transaction = AddPartitionsToTxnTransaction(verify_only=verify_only, topics=topics)
    for version in (4, 5):
        (found,) = rig.call(
            version, AddPartitionsToTxnRequest(transactions=[transaction])
        ).results_by_transaction
        assert [
            (
                topic.name,
                {one.partition_index: one.partition_error_code for one in topic.results_by_partition},
            )
            for topic in found.topic_results
        ] == answered


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_clients_cannot_add_internal_topics(rig: Rig, version: int) -> None:
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=[0])
        for name in ("a", "b", "__consumer_offsets", "__transaction_state", "__share_group_state")
    ]
    found = rig.call(version, AddPartitionsToTxnRequest(v3_and_below_topics=topics))
    assert [
        (topic.name, [one.partition_error_code for one in topic.results_by_partition])
        for topic in found.results_by_topic_v3_and_below
    ] == [
        ("a", [SKIPPED]),
        ("b", [UNKNOWN]),
        *((topic.name, [ErrorCode.TOPIC_AUTHORIZATION_FAILED]) for topic in topics[2:]),
    ]


def marker(
    producer_id: int, *named: tuple[str, list[int]], epoch: int = 0, coordinator: int = 0
) -> WritableTxnMarker:
    return WritableTxnMarker(
        coordinator_epoch=coordinator,
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in named],
    )


def written(rig: Rig, *markers: WritableTxnMarker) -> dict[int, Any]:
    answer = rig.call(1, WriteTxnMarkersRequest(markers=list(markers)))
    assert len({one.producer_id for one in answer.markers}) == len(answer.markers)
    return {
        one.producer_id: [
            (topic.name, partition.partition_index, partition.error_code)
            for topic in one.topics
            for partition in topic.partitions
        ]
        for one in answer.markers
    }


def ends(rig: Rig) -> list[int]:
    logs = [rig.node.log_manager.get("a", index) for index in range(2)]
    return [log.log_end_offset for log in logs if log is not None]


def test_markers_are_answered_by_producer(rig: Rig) -> None:
    assert written(rig) == written(rig, marker(7)) == written(rig, marker(-1, ("a", []))) == {}
    assert written(rig, marker(7, ("a", [0])), marker(7, ("a", [1]), ("b", [0])), marker(8)) == {
        7: [("a", 0, NONE), ("a", 1, NONE), ("b", 0, UNKNOWN)]
    }
    assert ends(rig) == [1, 1]
    # Each marker is written, but none of them twice.
    assert written(rig, marker(7, ("a", [0])), marker(7, ("a", [0]))) == {7: [("a", 0, NONE)]}
    assert ends(rig) == [3, 1]
    assert written(rig, marker(7, ("a", [1, 1]), ("a", [1]))) == {7: [("a", 1, NONE)]}
    assert ends(rig) == [3, 2]


def test_markers_of_no_producer_are_refused(rig: Rig) -> None:
    assert written(
        rig, marker(-1, ("a", [0]), ("b", [0])), marker(7, ("a", [0])), marker(8, ("a", [1]), epoch=-1)
    ) == {
        -1: [("a", 0, NOBODY), ("b", 0, NOBODY)],
        7: [("a", 0, NONE)],
        8: [("a", 1, NOBODY)],
    }
    assert ends(rig) == [1, 0]


def test_a_marker_that_is_refused_has_rolled_the_segment(rig: Rig) -> None:
    log = rig.node.log_manager.get("a", 0)
    assert log is not None
    log.config = replace(log.config, segment_ms=1_000)
    assert written(rig, marker(7, ("a", [0]), epoch=1)) == {7: [("a", 0, NONE)]}
    rig.host.advance(2_000)
    assert written(rig, marker(7, ("a", [0]))) == {7: [("a", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]}
    assert (log.segment_base_offsets, log.log_end_offset) == ([0, 1], 1)


def test_markers_of_nobody_are_written(rig: Rig) -> None:
    assert written(rig, marker(7, ("a", [0]), epoch=-2)) == {7: [("a", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]}
    assert written(rig, marker(-2, ("a", [0]), epoch=-2)) == {-2: [("a", 0, NONE)]}
    assert ends(rig) == [1, 0]
