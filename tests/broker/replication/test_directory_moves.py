"""Moves of partitions between log directories during produce, fetch, restarts and crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import batches, build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.delete_topics import DeleteTopicsRequest
from kwire.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.wire.messages.fetch import FetchRequest
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.node_harness import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    NodeHarness,
    fetch_request,
    produce_request,
)

LIMIT = "replica.alter.log.dirs.io.max.bytes.per.second"


def move(harness: NodeHarness, path: str, topic: str = "a", *indexes: int) -> list[int]:
    asked = AlterReplicaLogDirTopic(name=topic, partitions=list(indexes or (0,)))
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[asked])])
    client = harness.connect()
    client.submit(2, request)
    harness.node.end_turn()
    answer = client.receive(2, AlterReplicaLogDirsRequest)
    return [partition.error_code for result in answer.results for partition in result.partitions]


def set_config(harness: NodeHarness, name: str, value: str) -> int:
    change = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    code = harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code
    assert isinstance(code, int)
    return code


def describe_log_dirs(harness: NodeHarness) -> dict[str, Any]:
    """Return the lag of each partition by directory; future logs are marked."""
    answer = harness.call(5, DescribeLogDirsRequest(topics=None))
    return {
        result.log_dir: {
            f"{topic.name}-{partition.partition_index}{' future' if partition.is_future_key else ''}": (
                partition.offset_lag
            )
            for topic in result.topics
            for partition in topic.partitions
        }
        for result in answer.results
    }


def offsets(harness: NodeHarness, topic: str = "a") -> list[int]:
    """Return the base offset of every batch that the partition serves."""
    log = harness.node.log_manager.get(topic, 0)
    assert log is not None
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        data = log.read(offset, max_bytes=1 << 20, up_to_offset=log.high_watermark).read()
        for _, header in batches(memoryview(data)):
            found.append(header.base_offset)
            offset = header.next_offset
    return found


def fill(harness: NodeHarness, count: int, size: int = 1000, topic: str = "a", **fields: Any) -> None:
    for sequence in range(count):
        if "producer_id" in fields:
            fields["base_sequence"] = sequence
        records = memoryview(build([(1_700_000_000_000, None, bytes(size), [])], **fields))
        data = PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        answer = harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
        assert answer.error_code == 0


def restart(harness: NodeHarness, *, clean: bool = True) -> NodeHarness:
    if clean:
        harness.node.begin_shutdown()
        harness.node.finish_shutdown()
    else:
        harness.disk.kill()
    return NodeHarness(harness.disk)


def throttle_moves(harness: NodeHarness) -> None:
    """Limit moves to 1 byte per second."""
    assert set_config(harness, LIMIT, "1") == 0


@pytest.fixture
def harness() -> NodeHarness:
    made = NodeHarness()
    made.create("a")
    assert made.directory_of("a") == "/d1/a-0"
    return made


def test_follower_replica_moves() -> None:
    harness = NodeHarness()
    harness.create("a")
    partition = harness.node.partition("a", 0)
    assert partition is not None
    partition.become_follower(PartitionImage(replicas=(1, 2), isr=(2,), leader=2, leader_epoch=1))
    old = harness.directory_of("a")
    other = "/d2" if old.startswith("/d1") else "/d1"
    assert move(harness, other) == [0]
    harness.turn()
    assert harness.directory_of("a").startswith(other)


def test_invalid_moves_return_errors(harness: NodeHarness) -> None:
    assert move(harness, "/nowhere") == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert move(harness, "/d2/") == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert move(harness, "/d2", "nothing") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert move(harness, "/d2", "a", 1, -1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert move(harness, "/d2", "n" * 249) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert move(harness, "/d1") == [ErrorCode.NONE]
    assert describe_log_dirs(harness) == {"/d1": {"a-0": 0}, "/d2": {}}


def test_partition_moves_with_all_its_records(harness: NodeHarness) -> None:
    fill(harness, 300, 10_000)
    assert move(harness, "/d2") == [0]
    harness.host.advance(1000)
    assert describe_log_dirs(harness) == {"/d1": {}, "/d2": {"a-0": 0}}
    assert offsets(harness) == list(range(300))
    assert harness.produce("a").base_offset == 300
    assert (
        harness.node.log_dirs.assigned_directory("a", 0)
        == harness.node.log_manager.directories()[1].directory_id
    )
    harness.host.advance(120_000)
    assert not harness.disk.tree("/d1/a-0")
    assert not [name for name in harness.disk.names("/d1") if name.startswith("a-0")]
    again = restart(harness)
    assert offsets(again) == list(range(301))
    assert describe_log_dirs(again) == {"/d1": {}, "/d2": {"a-0": 0}}


def test_produce_during_a_move(harness: NodeHarness) -> None:
    fill(harness, 50, 100_000)
    assert move(harness, "/d2") == [0]
    clients = []
    while harness.directory_of("a") == "/d1/a-0":
        # A request follows each turn of the move; the move completes nevertheless.
        for _ in range(3):
            if harness.host.events.soon:
                harness.host.events.soon.popleft()()
        clients.append(harness.connect())
        clients[-1].submit(PRODUCE_VERSION, produce_request("a"))
        harness.node.end_turn()
        assert len(clients) < 1000
    harness.turn()
    answers = [client.receive(PRODUCE_VERSION, ProduceRequest) for client in clients]
    written = 50 + len(clients)
    assert [answer.responses[0].partition_responses[0].base_offset for answer in answers] == [
        *range(50, written)
    ]
    assert offsets(harness) == list(range(written))
    assert offsets(restart(harness, clean=False)) == list(range(written))


def test_future_log_is_described_until_complete_or_canceled(harness: NodeHarness) -> None:
    fill(harness, 100, 10_000)
    throttle_moves(harness)
    assert move(harness, "/d2") == [0]
    assert describe_log_dirs(harness)["/d2"]["a-0 future"] > 0
    harness.turn()
    lag = describe_log_dirs(harness)["/d2"]["a-0 future"]
    assert 0 < lag < 100
    assert move(harness, "/d2") == [0]
    assert harness.produce("a").base_offset == 100
    assert describe_log_dirs(harness) == {"/d1": {"a-0": 0}, "/d2": {"a-0 future": lag + 1}}
    assert move(harness, "/d1") == [0]
    assert describe_log_dirs(harness) == {"/d1": {"a-0": 0}, "/d2": {}}
    assert [name.endswith("-delete") for name in harness.disk.names("/d2") if name.startswith("a-0")] == [
        True
    ]
    harness.host.advance(120_000)
    assert not [name for name in harness.disk.names("/d2") if name.startswith("a-0")]
    assert offsets(harness) == list(range(101))


def test_move_completes_after_the_throttle_is_raised(harness: NodeHarness) -> None:
    fill(harness, 100, 10_000)
    throttle_moves(harness)
    assert move(harness, "/d2") == [0]
    harness.host.advance(10_000)
    assert "a-0 future" in describe_log_dirs(harness)["/d2"]
    assert set_config(harness, LIMIT, "100000") == 0
    harness.host.advance(5_000)
    assert "a-0 future" in describe_log_dirs(harness)["/d2"]
    harness.host.advance(10_000)
    assert describe_log_dirs(harness) == {"/d1": {}, "/d2": {"a-0": 0}}


@pytest.mark.parametrize("clean", [True, False])
def test_restart_resumes_a_move(harness: NodeHarness, clean: bool) -> None:
    fill(harness, 100, 10_000)
    throttle_moves(harness)
    assert move(harness, "/d2") == [0]
    harness.turn()
    copied = describe_log_dirs(harness)["/d2"]["a-0 future"]
    again = restart(harness, clean=clean)
    assert again.directory_of("a") == "/d1/a-0"
    assert describe_log_dirs(again)["/d2"]["a-0 future"] <= copied
    assert again.produce("a").base_offset == 100
    assert set_config(again, LIMIT, "1000000000") == 0
    again.host.advance(2000)
    assert describe_log_dirs(again) == {"/d1": {}, "/d2": {"a-0": 0}}
    assert offsets(again) == list(range(101))


def test_restart_completes_a_move_whose_future_log_was_not_renamed(
    harness: NodeHarness,
) -> None:
    fill(harness, 100, 100)
    assert move(harness, "/d2") == [0]
    harness.host.advance(1000)
    assert harness.directory_of("a") == "/d2/a-0"
    assert [name.endswith("-delete") for name in harness.disk.names("/d1") if name.startswith("a-0")] == [
        True
    ]
    harness.disk.kill()
    harness.disk.rename("/d2/a-0", f"/d2/a-0.{7:032x}-future")
    again = restart(harness, clean=False)
    assert again.directory_of("a") == "/d2/a-0"
    assert offsets(again) == list(range(100))
    again.host.advance(120_000)
    assert not [name for name in again.disk.names("/d1") if name.startswith("a-0")]
    assert offsets(again) == list(range(100))


def test_topic_deletion_deletes_the_future_log(harness: NodeHarness) -> None:
    fill(harness, 100, 10_000)
    throttle_moves(harness)
    assert move(harness, "/d2") == [0]
    harness.turn()
    harness.call(5, DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000))
    assert describe_log_dirs(harness) == {"/d1": {}, "/d2": {}}
    harness.host.advance(120_000)
    for directory in ("/d1", "/d2"):
        assert not [name for name in harness.disk.names(directory) if name.startswith("a-0")]


def test_delete_records_during_a_move_applies_to_the_new_log(harness: NodeHarness) -> None:
    fill(harness, 100, 10_000)
    throttle_moves(harness)
    assert move(harness, "/d2") == [0]
    harness.turn()
    for offset in (50, 90):
        partition = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="a", partitions=[partition])], timeout_ms=1000
        )
        assert harness.call(2, request).topics[0].partitions[0].low_watermark == offset
    assert set_config(harness, LIMIT, "1000000000") == 0
    harness.host.advance(3000)
    assert describe_log_dirs(harness) == {"/d1": {}, "/d2": {"a-0": 0}}
    assert offsets(harness) == list(range(90, 100))


def test_producer_state_moves_with_the_log(harness: NodeHarness) -> None:
    producer: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
    fill(harness, 8, 100, **producer)
    assert move(harness, "/d2") == [0]
    harness.host.advance(1000)
    assert harness.directory_of("a") == "/d2/a-0"
    again = harness
    for _ in range(2):
        for sequence in (4, 7):
            repeated = again.call(PRODUCE_VERSION, produce_request("a", base_sequence=sequence, **producer))
            assert repeated.responses[0].partition_responses[0].base_offset == sequence
        gap = again.call(PRODUCE_VERSION, produce_request("a", base_sequence=11, **producer))
        code = gap.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        again = restart(again, clean=False)


def test_delayed_fetch_completes_after_a_move(harness: NodeHarness) -> None:
    poll = harness.connect()
    request = fetch_request("a")
    request.min_bytes = 1
    poll.submit(FETCH_VERSION, request)
    assert move(harness, "/d2") == [0]
    harness.host.advance(1000)
    assert harness.directory_of("a") == "/d2/a-0"
    assert harness.produce("a").error_code == 0
    answer = poll.receive(FETCH_VERSION, FetchRequest)
    assert answer.responses[0].partitions[0].high_watermark == 1


def test_move_of_an_unknown_partition_sets_its_future_directory(harness: NodeHarness) -> None:
    assert move(harness, "/d1", "later", 0, 1, 2) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    harness.create("later", partitions=4)
    assert [harness.directory_of("later", index)[:3] for index in range(4)] == ["/d1"] * 3 + ["/d2"]


def test_cordoned_directory_gets_no_new_partitions(harness: NodeHarness) -> None:
    assert set_config(harness, "cordoned.log.dirs", "/nowhere") == ErrorCode.INVALID_REQUEST
    assert set_config(harness, "cordoned.log.dirs", "/d2") == 0
    harness.create("b", partitions=3)
    assert {harness.directory_of("b", index)[:3] for index in range(3)} == {"/d1"}
    assert move(harness, "/d2") == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    answer = harness.call(5, DescribeLogDirsRequest(topics=None))
    assert [result.is_cordoned for result in answer.results] == [False, True]
    assert set_config(harness, "cordoned.log.dirs", "") == 0
    harness.create("c", partitions=3)
    assert {harness.directory_of("c", index)[:3] for index in range(3)} == {"/d2"}


MOST_OPERATIONS = 400


@pytest.mark.parametrize("power", [False, True])
def test_crash_at_every_disk_operation_of_a_move_loses_nothing(power: bool) -> None:
    """At every disk operation: acknowledged records are present once, and the partition can move again."""
    for operations in range(MOST_OPERATIONS):
        disk = MemoryDisk()
        harness = NodeHarness(disk)
        harness.create("a")
        fill(harness, 40, 1000)
        log = harness.node.log_manager.get("a", 0)
        assert log is not None
        log.flush()
        disk.fails_after = operations
        move(harness, "/d2")
        harness.host.advance(1000)
        finished = disk.fails_after is not None and disk.fails_after > 0
        if power:
            disk.power_cut(random.Random(operations))
        else:
            disk.kill()
        again = NodeHarness(disk)
        assert offsets(again) == list(range(40)), operations
        assert again.produce("a").base_offset == 40
        again.host.advance(2000)
        target = "/d1" if again.directory_of("a").startswith("/d2") else "/d2"
        assert move(again, target) == [0]
        again.host.advance(2000)
        assert again.directory_of("a") == f"{target}/a-0"
        assert offsets(again) == list(range(41)), operations
        if finished:
            return
    pytest.fail(f"more than {MOST_OPERATIONS} operations")
