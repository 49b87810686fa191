"""Fetches that no client of today sends: levels and replicas that are none, fields of other versions."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kwire.wire.primitives import ZERO_UUID, Uuid
from tests.broker.api.test_failures import Rig

NONE, FAILED = ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR
FENCED, UNKNOWN_EPOCH = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.create("a")
    for _ in range(3):
        made.produce("a")
    return made


def fetch(offset: int | None = 0, *, partition: dict[str, Any] | None = None, **fields: Any) -> FetchRequest:
    asked = FetchPartition(
        partition=0, fetch_offset=offset or 0, partition_max_bytes=1 << 20, **(partition or {})
    )
    topics = [] if offset is None else [FetchTopic(topic="a", partitions=[asked])]
    return FetchRequest(**{"max_bytes": 1 << 20, "session_epoch": -1, **fields}, topics=topics)


@pytest.mark.parametrize("level", [-1, 2, 127])
def test_a_level_that_is_none_fails_all_of_a_request(rig: Rig, level: int) -> None:
    for version in (4, 7, 12):
        answer = rig.call(version, fetch(isolation_level=level))
        assert answer.error_code == (FAILED if version >= 7 else NONE)  # a field since version 7
        (found,) = answer.responses[0].partitions
        assert (found.error_code, found.high_watermark) == (FAILED, -1)
    answer = rig.call(13, fetch(None, isolation_level=level))
    assert answer.error_code == NONE, "nobody looks at the level where there is nothing to be read"


def test_a_level_that_is_none_moves_a_session_on(rig: Rig) -> None:
    made = rig.call(12, fetch(session_epoch=0)).session_id
    codes = [
        rig.call(12, fetch(isolation_level=level, session_id=made, session_epoch=epoch)).error_code
        for level, epoch in ((2, 1), (0, 1), (0, 2))
    ]
    assert codes == [FAILED, ErrorCode.INVALID_FETCH_SESSION_EPOCH, NONE]


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (0, UNKNOWN_EPOCH), (1, UNKNOWN_EPOCH)]
)
def test_a_replica_that_is_none_of_the_partition(rig: Rig, epoch: int, code: ErrorCode) -> None:
    request = fetch(replica_id=1, partition={"current_leader_epoch": epoch})
    assert rig.call(12, request).responses[0].partitions[0].error_code == code


def test_a_replica_is_told_of_the_leader_and_not_where_it_is(rig: Rig) -> None:
    topic_id = rig.node.image.topics["a"].topic_id
    request = fetch(replica_state=ReplicaState(replica_id=1))
    request.topics[0].topic_id = topic_id
    answer = rig.call(16, request)
    (found,) = answer.responses[0].partitions
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert found.current_leader.leader_id == 1
    assert answer.node_endpoints == []


def test_a_divergence_that_the_version_has_no_field_for(rig: Rig) -> None:
    at_its_epoch = {"last_fetched_epoch": 0}
    made = rig.call(12, fetch(1, session_epoch=0, partition=at_its_epoch)).session_id
    beyond = rig.call(12, fetch(9, session_id=made, session_epoch=1, partition=at_its_epoch))
    assert beyond.responses[0].partitions[0].diverging_epoch.end_offset == 3
    old = rig.call(11, fetch(None, session_id=made, session_epoch=2))
    assert (old.error_code, old.session_id, old.responses) == (
        ErrorCode.UNSUPPORTED_VERSION,
        made,
        [],
    )
    assert rig.call(12, fetch(None, session_id=made, session_epoch=3)).error_code == NONE


def test_below_the_log_start_nothing_diverges(rig: Rig) -> None:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=2)]
    rig.call(2, DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="a", partitions=partitions)]))
    for offset, code in ((1, ErrorCode.OFFSET_OUT_OF_RANGE), (2, NONE)):
        request = fetch(offset, partition={"last_fetched_epoch": 0})
        assert rig.call(12, request).responses[0].partitions[0].error_code == code


def test_an_id_of_zeros_has_to_be_the_last(rig: Rig) -> None:
    def answered(*topic_ids: Uuid) -> ErrorCode:
        request = fetch(None)
        partitions = [FetchPartition(partition=0, partition_max_bytes=1 << 20)]
        request.topics = [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id in topic_ids]
        return ErrorCode(rig.call(13, request).error_code)

    known, unknown = rig.node.image.topics["a"].topic_id, Uuid(bytes(15) + b"\7")
    assert answered(ZERO_UUID) == answered(ZERO_UUID, known) == answered(unknown, ZERO_UUID) == NONE
    assert answered(ZERO_UUID, unknown) == FAILED


@pytest.mark.parametrize(("replica", "order"), [(-1, [0, 7, 8]), (5, [7, 0, 8])])
def test_clients_are_told_of_ids_first_and_replicas_of_all_in_turn(
    rig: Rig, replica: int, order: list[int]
) -> None:
    known, unknown = rig.node.image.topics["a"].topic_id, Uuid(bytes(15) + b"\7")
    request = fetch(None, replica_id=replica)
    request.topics = [
        FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=index)])
        for topic_id, index in ((known, 7), (unknown, 0), (known, 8))
    ]
    answer = rig.call(13, request)
    assert [one.partition_index for topic in answer.responses for one in topic.partitions] == order
