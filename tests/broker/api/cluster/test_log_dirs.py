"""DescribeLogDirs, and errors of AlterReplicaLogDirs."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kwire.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tests.node_harness import NodeHarness


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_are_described_for_all_or_some_partitions(version: int) -> None:
    harness = NodeHarness()
    harness.create("a", partitions=3)

    def directories(topics: list[DescribableLogDirTopic] | None) -> dict[int, str]:
        results = harness.call(version, DescribeLogDirsRequest(topics=topics)).results
        assert [(one.log_dir, one.error_code) for one in results] == [("/d1", 0), ("/d2", 0)]
        return {
            partition.partition_index: one.log_dir
            for one in results
            for topic in one.topics
            for partition in topic.partitions
        }

    all_partitions = directories(None)
    assert all_partitions == {
        index: harness.directory_of("a", index).rpartition("/")[0] for index in range(3)
    }
    assert directories([DescribableLogDirTopic(topic="a", partitions=[1, 9])]) == {1: all_partitions[1]}
    assert directories([]) == {}


def test_altering_to_an_unknown_log_dir_is_an_error() -> None:
    harness = NodeHarness()
    harness.create("a")
    topic = AlterReplicaLogDirTopic(name="a", partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/nowhere", topics=[topic])])
    (response,) = harness.call(2, request).results
    assert [one.error_code for one in response.partitions] == [ErrorCode.LOG_DIR_NOT_FOUND]
