"""The log directories of a broker: moves, cordoned and failed directories, and their registration."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.primitives import Uuid
from tests.node_harness import NodeHarness

BROKER = 4


@pytest.fixture
def harness() -> NodeHarness:
    """Return a harness with a-0 in /d1 and a-1 in /d2."""
    made = NodeHarness()
    made.create("a", partitions=2)
    assert [made.directory_of("a", index)[:3] for index in range(2)] == ["/d1", "/d2"]
    return made


def cordon(harness: NodeHarness, directories: str) -> None:
    change = AlterableConfig(name="cordoned.log.dirs", config_operation=0, value=directories)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[change])
    assert harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0


def ids(harness: NodeHarness) -> list[Uuid | None]:
    return [directory.directory_id for directory in harness.node.log_manager.directories()]


@pytest.mark.parametrize(
    ("topic", "path", "code"),
    [
        ("a" * 240, "/d2", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", "/d3", ErrorCode.LOG_DIR_NOT_FOUND),
        ("a", "/d2/", ErrorCode.LOG_DIR_NOT_FOUND),
        ("b", "/d2", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_rejected_moves(harness: NodeHarness, topic: str, path: str, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as raised:
        harness.node.log_dirs.move(topic, 0, path)
    assert raised.value.code == code


def test_move_is_written_to_the_metadata(harness: NodeHarness) -> None:
    harness.produce("a")
    harness.node.log_dirs.move("a", 0, "/d1")
    harness.host.advance(1_000)
    assert harness.directory_of("a") == "/d1/a-0"
    harness.node.log_dirs.move("a", 0, "/d2")
    harness.host.advance(1_000)
    assert harness.directory_of("a") == "/d2/a-0"
    partition = harness.node.image.partition("a", 0)
    assert partition is not None
    assert partition.directories == (ids(harness)[1],)
    assert harness.node.log_dirs.assigned_directory("a", 0) == ids(harness)[1]
    assert harness.latest_offset("a").offset == 1


def test_move_of_an_unknown_partition_sets_its_future_directory(harness: NodeHarness) -> None:
    for index in range(2):
        with pytest.raises(ApiError):
            harness.node.log_dirs.move("b", index, "/d2")
    harness.create("b", partitions=3)
    assert [harness.directory_of("b", index)[:3] for index in range(3)] == ["/d2", "/d2", "/d1"]


def test_cordoned_directory_gets_no_new_logs_and_is_in_the_metadata(harness: NodeHarness) -> None:
    first, second = ids(harness)
    cordon(harness, "/d2")
    with pytest.raises(ApiError) as raised:
        harness.node.log_dirs.move("a", 0, "/d2")
    assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert harness.node.image.brokers[1].cordoned_log_dirs == (second,)
    harness.create("b", partitions=2)
    assert [harness.directory_of("b", index)[:3] for index in range(2)] == ["/d1", "/d1"]
    cordon(harness, "*")
    assert set(harness.node.image.brokers[1].cordoned_log_dirs or ()) == {first, second}
    cordon(harness, "")
    assert not harness.node.image.brokers[1].cordoned_log_dirs


def test_failed_directory_rejects_moves_and_leaves_the_registration(harness: NodeHarness) -> None:
    harness.disk.broken_directories["/d2"] = True
    harness.produce("a", 1)
    harness.turn()
    with pytest.raises(ApiError) as raised:
        harness.node.log_dirs.move("a", 0, "/d2")
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.node.image.brokers[1].log_dirs == (ids(harness)[0],)


def test_future_log_is_removed_with_its_partition(harness: NodeHarness) -> None:
    partition = harness.node.partition("a", 0)
    assert partition is not None
    harness.produce("a")
    held = harness.host.hold_work()
    harness.node.log_dirs.move("a", 0, "/d2")
    assert harness.node.log_manager.future_log("a", 0) is not None
    harness.node.log_dirs.partition_removed(partition)
    assert harness.node.log_manager.future_log("a", 0) is None
    assert len(held) == 2, "the future log's directory, and its removed name"
