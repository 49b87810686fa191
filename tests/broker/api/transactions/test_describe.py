"""DescribeProducers: errors, and the response of a follower."""

from __future__ import annotations

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tests.node_harness import NodeHarness

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

INVALID, FAILED = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


@pytest.mark.parametrize(
    ("name", "index", "code", "message"),
    [
        ("a", 1, NONE, None),
        ("a", 2, UNKNOWN, None),
        ("a", -1, UNKNOWN, None),
        ("b", 0, UNKNOWN, "This server does not host this topic-partition."),
        ("a b", 0, INVALID, "Topic name is invalid: 'a b' contains one or more characters"),
        ("", 0, INVALID, "Topic name is invalid: the empty string is not allowed"),
    ],
)
def test_describe_producers_of_unknown_partitions_is_an_error(
    harness: NodeHarness, name: str, index: int, code: ErrorCode, message: str | None
) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[index])])
    (found,) = harness.call(0, request).topics[0].partitions
    assert found.error_code == code
    assert found.error_message == message or found.error_message.startswith(message)


def test_a_follower_describes_its_producers(harness: NodeHarness) -> None:
    partition = harness.node.partition("a", 1)
    assert partition is not None
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=5))
    request = DescribeProducersRequest(topics=[TopicRequest(name="a", partition_indexes=[1])])
    (found,) = harness.call(0, request).topics[0].partitions
    assert found.error_code == NONE
