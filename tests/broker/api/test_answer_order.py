"""Answers about many topics or partitions, some of which are refused, or asked for in an unusual way."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.api.test_failures import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def offsets_asked(*topics: tuple[str, Iterable[int]]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=name,
                partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes],
            )
            for name, indexes in topics
        ]
    )


def test_what_is_refused_of_offsets_keeps_its_answer(rig: Rig) -> None:
    rig.create("lo10", partitions=10)
    answer = rig.call(7, offsets_asked(("lo10", [0, 2, 0]), ("lo10", [77])))
    (topic,) = answer.topics
    assert {partition.partition_index: partition.error_code for partition in topic.partitions} == {
        0: ErrorCode.INVALID_REQUEST,
        2: ErrorCode.NONE,
        77: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("counts", [(10_000, 1), (9_999, 1)], ids=["too many partitions", "too many records"])
def test_new_topics_that_are_too_much_are_refused_entry_by_entry(rig: Rig, counts: tuple[int, int]) -> None:
    asked = [("twice", 1), ("a", counts[0]), ("__cluster_metadata", 1), ("twice", 1), ("b", counts[1])]
    topics = [CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in asked]
    answer = rig.call(7, CreateTopicsRequest(topics=topics, timeout_ms=1_000))
    assert [topic.name for topic in answer.topics] == [name for name, _ in asked]
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}
    assert len({topic.error_message for topic in answer.topics}) == 1
    assert not rig.node.image.topics
