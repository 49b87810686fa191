"""Answers about many topics or partitions, some of which are refused, or asked for in an unusual way."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.api.test_failures import Rig

NO_OPERATIONS = -(2**31)


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


def described(*names: str, cursor: RequestCursor | None = None) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], cursor=cursor, response_partition_limit=9
    )


def test_an_empty_name_without_a_cursor_fails_the_whole_description(rig: Rig) -> None:
    rig.create("t")
    answer = rig.call(0, described("t", "", "a b", "t"))
    assert [topic.name for topic in answer.topics] == ["t", "", "a b", "t"]
    for topic in answer.topics:
        assert topic.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert topic.topic_authorized_operations == NO_OPERATIONS
        assert topic.partitions == []
    assert answer.next_cursor is None


def test_an_empty_name_under_a_cursor_is_an_invalid_one(rig: Rig) -> None:
    rig.create("t")
    answer = rig.call(0, described("t", "", cursor=RequestCursor(topic_name="", partition_index=0)))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("t", ErrorCode.NONE),
    ]
    answer = rig.call(0, described("t", "", cursor=RequestCursor(topic_name="t", partition_index=0)))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("t", ErrorCode.NONE)]


def test_topics_are_described_in_the_order_of_javas_strings(rig: Rig) -> None:
    rig.create("t")
    later, sooner = "\uffff", "\U00010000"
    answer = rig.call(0, described(later, "t", sooner))
    assert [topic.name for topic in answer.topics] == ["t", sooner, later]
    answer = rig.call(0, described(later, "t", sooner, cursor=RequestCursor(topic_name=sooner)))
    assert [topic.name for topic in answer.topics] == [sooner, later]
    answer = rig.call(0, described(later, "t", sooner, cursor=RequestCursor(topic_name=later)))
    assert [topic.name for topic in answer.topics] == [later]


@pytest.mark.parametrize(
    ("index", "after"), [(2**31 - 1, -(2**31) + 8), (2**31 - 9, -(2**31)), (2**31 - 10, None)]
)
def test_a_cursor_whose_page_runs_over_goes_on_below_zero(rig: Rig, index: int, after: int | None) -> None:
    rig.create("t", "u")
    cursor = RequestCursor(topic_name="t", partition_index=index)
    answer = rig.call(0, described("t", "u", cursor=cursor))
    assert answer.topics[0].partitions == []
    if after is None:
        assert [topic.name for topic in answer.topics] == ["t", "u"]
        assert answer.next_cursor is None
    else:
        assert [topic.name for topic in answer.topics] == ["t"]
        assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("t", after)
