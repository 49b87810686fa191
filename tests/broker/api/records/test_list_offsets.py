"""ListOffsets: isolation levels, and partitions that are named twice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.node_harness import NodeHarness

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

INVALID, REFUSED = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_REQUEST


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


@pytest.mark.parametrize(("level", "code"), [(-1, REFUSED), (0, NONE), (1, NONE), (2, REFUSED)])
def test_an_unknown_isolation_level_is_refused(harness: NodeHarness, level: int, code: ErrorCode) -> None:
    requested = ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    for version in range(2, 12):
        request = ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=[requested])
        (found,) = harness.call(version, request).topics[0].partitions
        assert (found.error_code, found.offset) == (code, 0 if code == NONE else -1)


def offsets_request(*topics: tuple[str, Iterable[int]]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=name,
                partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes],
            )
            for name, indexes in topics
        ]
    )


def test_a_partition_named_twice_is_refused(harness: NodeHarness) -> None:
    harness.create("lo10", partitions=10)
    response = harness.call(7, offsets_request(("lo10", [0, 2, 0]), ("lo10", [77])))
    (topic,) = response.topics
    assert {partition.partition_index: partition.error_code for partition in topic.partitions} == {
        0: ErrorCode.INVALID_REQUEST,
        2: ErrorCode.NONE,
        77: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
