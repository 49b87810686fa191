"""DeleteRecords: new log start offsets, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.node_harness import FETCH_VERSION, NodeHarness, fetch_request

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    for _ in range(5):
        harness.produce("a")
    return harness


def delete(harness: NodeHarness, *partitions_and_offsets: tuple[str, int, int], version: int = 2) -> Any:
    """Return the error and the low watermark of each partition."""
    topics = [
        DeleteRecordsTopic(
            name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        for name, index, offset in partitions_and_offsets
    ]
    response = harness.call(version, DeleteRecordsRequest(topics=topics, timeout_ms=1_000))
    return {
        (topic.name, one.partition_index): (one.error_code, one.low_watermark)
        for topic in response.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("offset", "low_watermark"), [(0, 0), (3, 3), (5, 5), (-1, 5)])
def test_the_log_starts_at_the_requested_offset(
    harness: NodeHarness, version: int, offset: int, low_watermark: int
) -> None:
    assert delete(harness, ("a", 0, offset), version=version) == {("a", 0): (0, low_watermark)}
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    assert (log.log_start_offset, harness.latest_offset("a").offset) == (low_watermark, 5)


def test_the_log_start_offset_never_decreases(harness: NodeHarness) -> None:
    delete(harness, ("a", 0, 3))
    assert delete(harness, ("a", 0, 1)) == {("a", 0): (0, 3)}


def test_each_partition_has_its_error(harness: NodeHarness) -> None:
    assert delete(harness, ("a", 0, 6), ("a", 0, -2), ("a", 1, -1), ("a", 2, 0), ("b", 0, 0)) == {
        ("a", 0): (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ("a", 1): (0, 0),
        ("a", 2): (UNKNOWN, -1),
        ("b", 0): (UNKNOWN, -1),
    }


@pytest.mark.parametrize(("policy", "code"), [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", 0)])
def test_records_of_a_compacted_topic_are_not_deleted(harness: NodeHarness, policy: str, code: int) -> None:
    change = AlterableConfig(name="cleanup.policy", config_operation=0, value=policy)
    resource = AlterConfigsResource(resource_type=2, resource_name="a", configs=[change])
    harness.call(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert delete(harness, ("a", 0, 1))["a", 0][0] == code


def test_a_failed_log_directory_returns_storage_error(harness: NodeHarness) -> None:
    harness.disk.broken_directories[harness.directory_of("a")[:3]] = True
    harness.produce("a")
    harness.call(FETCH_VERSION, fetch_request("a"))
    assert delete(harness, ("a", 0, 1)) == {("a", 0): (ErrorCode.KAFKA_STORAGE_ERROR, -1)}
