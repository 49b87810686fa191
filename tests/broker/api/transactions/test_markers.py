"""WriteTxnMarkers: responses, and markers in the logs."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.node_harness import NodeHarness

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

SKIPPED, INVALID = ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


def marker(
    producer_id: int, *topics: tuple[str, list[int]], epoch: int = 0, coordinator: int = 0
) -> WritableTxnMarker:
    return WritableTxnMarker(
        coordinator_epoch=coordinator,
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
    )


def write_markers(harness: NodeHarness, *markers: WritableTxnMarker) -> dict[int, Any]:
    response = harness.call(1, WriteTxnMarkersRequest(markers=list(markers)))
    assert len({one.producer_id for one in response.markers}) == len(response.markers)
    return {
        one.producer_id: [
            (topic.name, partition.partition_index, partition.error_code)
            for topic in one.topics
            for partition in topic.partitions
        ]
        for one in response.markers
    }


def ends(harness: NodeHarness) -> list[int]:
    logs = [harness.node.log_manager.get("a", index) for index in range(2)]
    return [log.log_end_offset for log in logs if log is not None]


def test_marker_results_are_grouped_by_producer(harness: NodeHarness) -> None:
    assert (
        write_markers(harness)
        == write_markers(harness, marker(7))
        == write_markers(harness, marker(-1, ("a", [])))
        == {}
    )
    assert write_markers(harness, marker(7, ("a", [0])), marker(7, ("a", [1]), ("b", [0])), marker(8)) == {
        7: [("a", 0, NONE), ("a", 1, NONE), ("b", 0, UNKNOWN)]
    }
    assert ends(harness) == [1, 1]
    # Each marker is written, but no marker twice.
    assert write_markers(harness, marker(7, ("a", [0])), marker(7, ("a", [0]))) == {7: [("a", 0, NONE)]}
    assert ends(harness) == [3, 1]
    assert write_markers(harness, marker(7, ("a", [1, 1]), ("a", [1]))) == {7: [("a", 1, NONE)]}
    assert ends(harness) == [3, 2]


def test_markers_without_a_producer_are_refused(harness: NodeHarness) -> None:
    assert write_markers(
        harness, marker(-1, ("a", [0]), ("b", [0])), marker(7, ("a", [0])), marker(8, ("a", [1]), epoch=-1)
    ) == {
        -1: [("a", 0, INVALID), ("b", 0, INVALID)],
        7: [("a", 0, NONE)],
        8: [("a", 1, INVALID)],
    }
    assert ends(harness) == [1, 0]


def test_a_refused_marker_still_rolls_the_segment(harness: NodeHarness) -> None:
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    log.config = log.config._replace(segment_ms=1_000)
    assert write_markers(harness, marker(7, ("a", [0]), epoch=1)) == {7: [("a", 0, NONE)]}
    harness.host.advance(2_000)
    assert write_markers(harness, marker(7, ("a", [0]))) == {7: [("a", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]}
    assert (log.segment_base_offsets, log.log_end_offset) == ([0, 1], 1)


def test_markers_with_producer_id_minus_2_are_written(harness: NodeHarness) -> None:
    assert write_markers(harness, marker(7, ("a", [0]), epoch=-2)) == {
        7: [("a", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]
    }
    assert write_markers(harness, marker(-2, ("a", [0]), epoch=-2)) == {-2: [("a", 0, NONE)]}
    assert ends(harness) == [1, 0]
