"""What a broker does with its log directories: which moves it takes on, and what it tells the cluster."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.primitives import Uuid
from tests.rig import Rig

BROKER = 4


@pytest.fixture
def rig() -> Rig:
    """The partition a-0 is in /d1, and a-1 in /d2."""
    made = Rig()
    made.create("a", partitions=2)
    assert [made.directory_of("a", index)[:3] for index in range(2)] == ["/d1", "/d2"]
    return made


def cordon(rig: Rig, directories: str) -> None:
    change = AlterableConfig(name="cordoned.log.dirs", config_operation=0, value=directories)
    resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[change])
    assert rig.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0


def ids(rig: Rig) -> list[Uuid | None]:
    return [directory.directory_id for directory in rig.node.log_manager.directories()]


@pytest.mark.parametrize(
    ("topic", "path", "code"),
    [
        ("a" * 240, "/d2", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", "/d3", ErrorCode.LOG_DIR_NOT_FOUND),
        ("a", "/d2/", ErrorCode.LOG_DIR_NOT_FOUND),
        ("b", "/d2", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_moves_that_are_not_taken_on(rig: Rig, topic: str, path: str, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        rig.node.log_dirs.move(topic, 0, path)
    assert refused.value.code == code


def test_a_partition_moves_and_the_cluster_hears_of_it(rig: Rig) -> None:
    rig.produce("a")
    rig.node.log_dirs.move("a", 0, "/d1")
    rig.host.advance(1_000)
    assert rig.directory_of("a") == "/d1/a-0"
    rig.node.log_dirs.move("a", 0, "/d2")
    rig.host.advance(1_000)
    assert rig.directory_of("a") == "/d2/a-0"
    partition = rig.node.image.partition("a", 0)
    assert partition is not None
    assert partition.directories == (ids(rig)[1],)
    assert rig.node.log_dirs.assigned_directory("a", 0) == ids(rig)[1]
    assert rig.latest("a").offset == 1


def test_what_is_asked_for_before_it_is_there_is_made_there(rig: Rig) -> None:
    for index in range(2):
        with pytest.raises(ApiError):
            rig.node.log_dirs.move("b", index, "/d2")
    rig.create("b", partitions=3)
    assert [rig.directory_of("b", index)[:3] for index in range(3)] == ["/d2", "/d2", "/d1"]


def test_a_cordoned_directory_takes_nothing_new_and_the_cluster_hears_of_it(rig: Rig) -> None:
    first, second = ids(rig)
    cordon(rig, "/d2")
    with pytest.raises(ApiError) as refused:
        rig.node.log_dirs.move("a", 0, "/d2")
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert rig.node.image.brokers[1].cordoned_log_dirs == (second,)
    rig.create("b", partitions=2)
    assert [rig.directory_of("b", index)[:3] for index in range(2)] == ["/d1", "/d1"]
    cordon(rig, "*")
    assert set(rig.node.image.brokers[1].cordoned_log_dirs or ()) == {first, second}
    cordon(rig, "")
    assert not rig.node.image.brokers[1].cordoned_log_dirs


def test_a_directory_that_failed_takes_nothing_and_the_cluster_hears_of_it(rig: Rig) -> None:
    rig.disk.broken_directories["/d2"] = True
    rig.produce("a", 1)
    rig.turn()
    with pytest.raises(ApiError) as refused:
        rig.node.log_dirs.move("a", 0, "/d2")
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.node.image.brokers[1].log_dirs == (ids(rig)[0],)


def test_a_copy_goes_with_its_topic(rig: Rig) -> None:
    partition = rig.node.partition("a", 0)
    assert partition is not None
    rig.produce("a")
    held = rig.host.hold_work()
    rig.node.log_dirs.move("a", 0, "/d2")
    assert rig.node.log_manager.future_log("a", 0) is not None
    rig.node.log_dirs.partition_removed(partition)
    assert rig.node.log_manager.future_log("a", 0) is None
    assert len(held) == 2, "the copy's id, and the name that is gone"
