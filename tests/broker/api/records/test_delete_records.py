"""DeleteRecords: what of a log may go, and what is answered to the rest."""

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
    made = NodeHarness()
    made.create("a", partitions=2)
    for _ in range(5):
        made.produce("a")
    return made


def delete(harness: NodeHarness, *places: tuple[str, int, int], version: int = 2) -> Any:
    """(error, low watermark) of each."""
    topics = [
        DeleteRecordsTopic(
            name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        for name, index, offset in places
    ]
    answer = harness.call(version, DeleteRecordsRequest(topics=topics, timeout_ms=1_000))
    return {
        (topic.name, one.partition_index): (one.error_code, one.low_watermark)
        for topic in answer.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("offset", "low_watermark"), [(0, 0), (3, 3), (5, 5), (-1, 5)])
def test_the_log_begins_later(harness: NodeHarness, version: int, offset: int, low_watermark: int) -> None:
    assert delete(harness, ("a", 0, offset), version=version) == {("a", 0): (0, low_watermark)}
    log = harness.node.log_manager.get("a", 0)
    assert log is not None
    assert (log.log_start_offset, harness.latest_offset("a").offset) == (low_watermark, 5)


def test_what_is_gone_does_not_come_back(harness: NodeHarness) -> None:
    delete(harness, ("a", 0, 3))
    assert delete(harness, ("a", 0, 1)) == {("a", 0): (0, 3)}


def test_each_partition_has_its_answer(harness: NodeHarness) -> None:
    assert delete(harness, ("a", 0, 6), ("a", 0, -2), ("a", 1, -1), ("a", 2, 0), ("b", 0, 0)) == {
        ("a", 0): (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ("a", 1): (0, 0),
        ("a", 2): (UNKNOWN, -1),
        ("b", 0): (UNKNOWN, -1),
    }


@pytest.mark.parametrize(("policy", "code"), [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", 0)])
def test_of_what_is_only_compacted_nothing_is_deleted(harness: NodeHarness, policy: str, code: int) -> None:
    change = AlterableConfig(name="cleanup.policy", config_operation=0, value=policy)
    resource = AlterConfigsResource(resource_type=2, resource_name="a", configs=[change])
    harness.call(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert delete(harness, ("a", 0, 1))["a", 0][0] == code


def test_a_directory_that_failed_is_told(harness: NodeHarness) -> None:
    harness.disk.broken_directories[harness.directory_of("a")[:3]] = True
    harness.produce("a")
    harness.call(FETCH_VERSION, fetch_request("a"))
    assert delete(harness, ("a", 0, 1)) == {("a", 0): (ErrorCode.KAFKA_STORAGE_ERROR, -1)}
