"""Produce requests that name a partition twice: one batch goes into the log, and one answer comes back."""

from __future__ import annotations

import pytest

from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.api.test_failures import Rig

NONE, INVALID, CORRUPT = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
VERSION = 12

Asked = list[tuple[str, list[tuple[int, int | None]]]]
"""Topics, their partitions, and of each how many records; None: what is no batch, -1: one that is torn."""


@pytest.fixture
def rig() -> Rig:
    made = Rig()
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


@pytest.mark.parametrize(
    ("asked", "answered", "ends"),
    [
        ([("a", [(0, 1), (0, 3)])], [("a", [(0, NONE)])], [3, 0]),
        ([("a", [(0, 1)]), ("a", [(0, 3), (1, 1)])], [("a", [(0, NONE), (1, NONE)])], [3, 1]),
        ([("a", [(0, 3), (0, None)])], [("a", [(0, INVALID)])], [3, 0]),
        ([("a", [(0, None), (0, 2)])], [("a", [(0, INVALID)])], [2, 0]),
        ([("a", [(0, None), (0, None)])], [("a", [(0, INVALID)])], [0, 0]),
        ([("a", [(0, 2), (0, -1)])], [("a", [(0, CORRUPT)])], [0, 0]),
        ([("a", [(0, None), (0, -1)])], [("a", [(0, INVALID)])], [0, 0]),
        ([("a", [(7, 1), (7, None)])], [("a", [(7, UNKNOWN)])], [0, 0]),
        ([("a", []), ("b", [(0, 1)]), ("c", [])], [("b", [(0, UNKNOWN)])], [0, 0]),
        ([("a", [])], [], [0, 0]),
    ],
)
def test_each_partition_is_appended_to_once(
    rig: Rig, asked: Asked, answered: list[tuple[str, list[tuple[int, ErrorCode]]]], ends: list[int]
) -> None:
    answer = rig.call(VERSION, request(asked))
    assert [
        (topic.name, [(partition.index, partition.error_code) for partition in topic.partition_responses])
        for topic in answer.responses
    ] == answered
    found = [rig.node.log_manager.get("a", index) for index in (0, 1)]
    assert [log.log_end_offset for log in found if log is not None] == ends


@pytest.mark.parametrize(("second", "closes"), [(3, False), (None, True)])
def test_without_acknowledgement_a_refused_one_closes_the_connection(
    rig: Rig, second: int | None, closes: bool
) -> None:
    channel = rig.channel()
    rig.send(channel, VERSION, request([("a", [(0, 1), (0, second)])], acks=0))
    assert channel.ending == closes, "what is behind it in the same turn would be done"
    rig.turn()
    assert channel.take_ready() == []
    assert channel.closing == closes


def test_what_comes_behind_a_refused_one_is_not_answered_and_what_came_before_is(rig: Rig) -> None:
    channel = rig.channel()
    rig.send(channel, VERSION, request([("a", [(1, 1)])]))
    rig.send(channel, VERSION, request([("a", [(0, 1), (9, 1)])], acks=0))
    rig.send(channel, 0, ApiVersionsRequest())
    rig.turn()
    answer = rig.reply(channel, VERSION, ProduceRequest)
    assert answer.responses[0].partition_responses[0].error_code == NONE
    assert channel.closing
    assert (channel.pending, channel.pending_bytes, channel.queued_bytes) == (0, 0, 0)


def test_a_refusal_of_the_whole_request_names_each_partition_once(rig: Rig) -> None:
    batch = memoryview(
        build(
            [(1_700_000_000_000, None, b"value", [])],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )
    asked = request([("a", [(0, 1), (0, 1)]), ("b", [])])
    asked.topic_data[0].partition_data[1].records = batch
    answer = rig.call(VERSION, asked)
    ((found,),) = [topic.partition_responses for topic in answer.responses]
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
