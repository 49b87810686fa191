"""DescribeTopicPartitions: pages, and the cursors that lead from one to the next. KIP-966."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from tests.node_harness import NodeHarness


@pytest.fixture
def harness() -> NodeHarness:
    made = NodeHarness()
    made.create("a", partitions=3)
    made.create("b", partitions=2)
    return made


def ask(harness: NodeHarness, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    at = None if cursor is None else RequestCursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [TopicRequest(name=name) for name in names]
    return harness.call(
        0, DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=at)
    )


def shown(answer: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [one.partition_index for one in topic.partitions]) for topic in answer.topics]


@pytest.mark.parametrize("names", [(), ("b", "a"), ("a", "b", "a")])
def test_page_by_page(harness: NodeHarness, names: tuple[str, ...]) -> None:
    pages, cursor = [], None
    while True:
        answer = ask(harness, *names, limit=2, cursor=cursor)
        pages.append(shown(answer))
        if answer.next_cursor is None:
            break
        cursor = answer.next_cursor.topic_name, answer.next_cursor.partition_index
    assert pages == [[("a", [0, 1])], [("a", [2]), ("b", [0])], [("b", [1])]]


def test_what_is_not_there(harness: NodeHarness) -> None:
    answer = ask(harness, "gone", "a b", "", "a")
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", ErrorCode.NONE),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("cursor", [("a", -1), ("aa", 0)])
def test_cursors_that_nobody_was_given(harness: NodeHarness, cursor: tuple[str, int]) -> None:
    answer = ask(harness, "a", "b", cursor=cursor)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_cursor_behind_the_last_partition(harness: NodeHarness) -> None:
    assert shown(ask(harness, "a", "b", cursor=("a", 2**31 - 1))) == [("a", []), ("b", [0, 1])]
    assert len(shown(ask(harness, "a", limit=0))[0][1]) == 1
