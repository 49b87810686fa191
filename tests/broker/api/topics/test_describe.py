"""DescribeTopicPartitions: pages and cursors. KIP-966."""

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
    harness = NodeHarness()
    harness.create("a", partitions=3)
    harness.create("b", partitions=2)
    return harness


def describe(
    harness: NodeHarness, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    request_cursor = (
        None if cursor is None else RequestCursor(topic_name=cursor[0], partition_index=cursor[1])
    )
    topics = [TopicRequest(name=name) for name in names]
    return harness.call(
        0,
        DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=request_cursor),
    )


def partitions_of(response: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [one.partition_index for one in topic.partitions]) for topic in response.topics]


@pytest.mark.parametrize("names", [(), ("b", "a"), ("a", "b", "a")])
def test_all_pages_return_every_partition(harness: NodeHarness, names: tuple[str, ...]) -> None:
    pages, cursor = [], None
    while True:
        response = describe(harness, *names, limit=2, cursor=cursor)
        pages.append(partitions_of(response))
        if response.next_cursor is None:
            break
        cursor = response.next_cursor.topic_name, response.next_cursor.partition_index
    assert pages == [[("a", [0, 1])], [("a", [2]), ("b", [0])], [("b", [1])]]


def test_unknown_and_invalid_topics_have_an_error(harness: NodeHarness) -> None:
    response = describe(harness, "gone", "a b", "", "a")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", ErrorCode.NONE),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("cursor", [("a", -1), ("aa", 0)])
def test_an_invalid_cursor_is_an_error(harness: NodeHarness, cursor: tuple[str, int]) -> None:
    response = describe(harness, "a", "b", cursor=cursor)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_cursor_after_the_last_partition_continues_with_the_next_topic(harness: NodeHarness) -> None:
    assert partitions_of(describe(harness, "a", "b", cursor=("a", 2**31 - 1))) == [("a", []), ("b", [0, 1])]
    assert len(partitions_of(describe(harness, "a", limit=0))[0][1]) == 1
