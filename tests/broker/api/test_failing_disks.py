"""A disk that fails at any single operation, in each way that disks fail.

The broker has two log directories. The first contains the metadata log; the second is on the disk that fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk, MemoryFile
from kwire.wire.batch import batches, build, records
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.node_harness import FETCH_VERSION, PRODUCE_VERSION, NodeHarness, fetch_request

FAILING = "/d2/"
MAX_OPERATIONS = 200
REPEATED = 30_000
"""The repetitions of a value's six bytes, so that six records fill a segment."""
NO_SPACE, IO_ERROR, READ_ONLY = "No space left on device", "Input/output error", "Read-only file system"


class FailingFile:
    """A file on the disk that fails."""

    def __init__(self, disk: FailingDisk, path: str, file: MemoryFile) -> None:
        self._disk, self._path, self._file = disk, path, file

    def fileno(self) -> int:
        return self._file.fileno()

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.reads(self._path)
        return self._file.read_at(position, size)

    def write_at(self, position: int, buffers: Any) -> None:
        data = b"".join(buffers)
        try:
            self._disk.writes(self._path)
        except StorageError:
            if self._disk.fault == NO_SPACE:
                # The part that still fits is written.
                self._file.write_at(position, [data[: len(data) // 2]])
            raise
        self._file.write_at(position, [data])

    def truncate(self, size: int) -> None:
        if size > self._file.size() or self._disk.fault != NO_SPACE:
            self._disk.writes(self._path)
        self._file.truncate(size)

    def sync(self) -> float:
        self._disk.writes(self._path)
        return self._file.sync()


class FailingDisk(MemoryDisk):
    """A disk in memory, one directory of which fails permanently after a number of operations."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.left: int | None = None
        self.failed = False

    def writes(self, path: str) -> None:
        if self.left is None or not path.startswith(FAILING):
            return
        if self.left <= 0:
            self.failed = True
            raise StorageError(f"{self.fault} ({path})")
        self.left -= 1

    def reads(self, path: str) -> None:
        if self.fault == IO_ERROR:
            self.writes(path)

    def repair(self) -> None:
        self.left, self.failed = None, False

    def open(self, path: str, *, create: bool = False) -> Any:
        if create and not self.exists(path):
            self.writes(path)
        else:
            self.reads(path)
        file = super().open(path, create=create)
        return FailingFile(self, path, file) if path.startswith(FAILING) else file

    def size(self, path: str) -> int:
        self.reads(path)
        return super().size(path)

    def read(self, path: str) -> bytes:
        self.reads(path)
        return super().read(path)

    def write(self, path: str, content: bytes, *, sync: bool) -> None:
        self.writes(path)
        super().write(path, content, sync=sync)

    def rename(self, old: str, new: str) -> None:
        if self.fault != NO_SPACE:
            self.writes(old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        if self.fault != NO_SPACE:
            self.writes(path)
        super().remove(path)

    def names(self, path: str) -> list[str]:
        self.reads(path + "/")
        return super().names(path)

    def make_directory(self, path: str) -> None:
        self.writes(path)
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.writes(path + "/")
        super().sync_directory(path)


class Workload:
    """Records for a partition on each disk, and their acknowledgments."""

    def __init__(self, harness: NodeHarness) -> None:
        self.harness = harness
        self.sent = {"a": 0, "b": 0}
        self.acknowledged: dict[str, list[int]] = {"a": [], "b": []}

    def send(self, topic: str) -> int:
        sequence = self.sent[topic]
        self.sent[topic] += 1
        value = b"%06d" % sequence * REPEATED
        data = memoryview(build([(self.harness.host.now_ms(), None, value, [])]))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=data)])
            ],
        )
        response = self.harness.call(PRODUCE_VERSION, request).responses[0].partition_responses[0]
        if response.error_code == 0:
            self.acknowledged[topic].append(sequence)
        return int(response.error_code)

    def run(self) -> None:
        """Append to both partitions, roll segments, write checkpoints and flush."""
        for step in range(8):
            assert self.send("b") == 0
            assert self.send("a") in (0, ErrorCode.KAFKA_STORAGE_ERROR)
            if step in (2, 7):
                # Before and after the first roll.
                self.harness.host.advance(6_000)


def read_sequences(harness: NodeHarness, topic: str) -> list[int]:
    """Return the sequence number in each record, and check that the record is complete."""
    log = harness.node.log_manager.get(topic, 0)
    assert log is not None
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        data = memoryview(log.read(offset, max_bytes=1 << 22, up_to_offset=log.high_watermark).read())
        for position, header in batches(data):
            assert header.base_offset == offset
            for record in records(data, position, header):
                value = bytes(record.value or b"")
                assert value == value[:6] * REPEATED
                found.append(int(value[:6]))
            offset = header.next_offset
    return found


def metadata(harness: NodeHarness, topic: str) -> Any:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return harness.call(9, request).topics[0].partitions[0]


def check_partition_is_offline(harness: NodeHarness) -> None:
    """Check the responses for offline partitions, as in Apache Kafka: interop/scenarios/raw_log_dirs.py."""
    produced, latest = harness.produce("a"), harness.latest_offset("a")
    assert produced.error_code == latest.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    fetched = harness.call(FETCH_VERSION, fetch_request("a")).responses[0].partitions[0]
    assert fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    partition = metadata(harness, "a")
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (-1, [], [1])
    directories = harness.call(5, DescribeLogDirsRequest(topics=None)).results
    assert [found.error_code for found in directories] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
    assert metadata(harness, "b").leader_id == 1
    assert harness.latest_offset("b").error_code == 0


def check_after_repair(disk: FailingDisk, workload: Workload) -> None:
    repaired = NodeHarness(disk)
    found = read_sequences(repaired, "a")
    # All acknowledged records are there, in order. Others may be there, but complete and once.
    assert [sequence for sequence in found if sequence in workload.acknowledged["a"]] == (
        workload.acknowledged["a"]
    )
    assert found == sorted(set(found))
    assert read_sequences(repaired, "b") == workload.acknowledged["b"]
    assert repaired.produce("a").base_offset == len(found)
    assert metadata(repaired, "a").leader_id == 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("fault", [NO_SPACE, IO_ERROR, READ_ONLY])
def test_no_acknowledged_record_is_lost_when_a_disk_fails_at_any_operation(fault: str, clean: bool) -> None:
    for operations in range(MAX_OPERATIONS):
        disk = FailingDisk(fault)
        harness = NodeHarness(disk)
        harness.create("b", "a")
        assert harness.directory_of("a") == "/d2/a-0"
        workload = Workload(harness)
        disk.left = operations
        workload.run()
        failed = disk.failed
        assert harness.fatal == []
        if failed:
            check_partition_is_offline(harness)
            harness.create("new", partitions=2)
            assert {harness.directory_of("new", index)[:4] for index in range(2)} == {"/d1/"}
        if clean:
            harness.node.begin_shutdown()
            harness.node.finish_shutdown()
        disk.kill()
        disk.repair()
        check_after_repair(disk, workload)
        if not failed:
            assert operations > 20
            return
    pytest.fail(f"more than {MAX_OPERATIONS} operations")


def test_a_restart_without_the_disk_serves_the_other_disk() -> None:
    disk = FailingDisk(IO_ERROR)
    harness = NodeHarness(disk)
    harness.create("b", "a")
    workload = Workload(harness)
    workload.run()
    harness.node.begin_shutdown()
    harness.node.finish_shutdown()
    disk.left = 0
    restarted = NodeHarness(disk)
    # The metadata says that the partition has no leader, and the broker does not create it again.
    assert restarted.produce("a").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert metadata(restarted, "a").leader_id == -1
    assert read_sequences(restarted, "b") == workload.acknowledged["b"]
    restarted.node.begin_shutdown()
    restarted.node.finish_shutdown()
    disk.repair()
    check_after_repair(disk, workload)


def test_a_waiting_fetch_returns_storage_error() -> None:
    disk = FailingDisk(IO_ERROR)
    harness = NodeHarness(disk)
    harness.create("b", "a")
    waiting = harness.connect()
    waiting.submit(FETCH_VERSION, fetch_request("a"))
    disk.left = 0
    assert harness.produce("a").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    response = waiting.receive(FETCH_VERSION, FetchRequest)
    assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_waiting_fetch_session_returns_all_failed_partitions_at_once() -> None:
    harness = NodeHarness()
    harness.create("t", partitions=4)
    lost = [index for index in range(4) if harness.directory_of("t", index).startswith(FAILING)]
    request = fetch_request("t")
    request.topics[0].partitions = [
        FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in lost
    ]
    request.session_epoch, request.max_wait_ms = 0, 1
    waiting = harness.connect()
    waiting.submit(FETCH_VERSION, request)
    harness.host.advance(1)
    session_id = waiting.receive(FETCH_VERSION, FetchRequest).session_id
    waiting.submit(
        FETCH_VERSION, FetchRequest(session_id=session_id, session_epoch=1, max_wait_ms=60_000, min_bytes=1)
    )
    log = harness.node.log_manager.get("t", lost[0])
    assert log is not None
    harness.node.log_manager.handle_log_failure(log, StorageError("broken"))
    [topic] = waiting.receive(FETCH_VERSION, FetchRequest).responses
    errors = {partition.partition_index: partition.error_code for partition in topic.partitions}
    assert errors == dict.fromkeys(lost, ErrorCode.KAFKA_STORAGE_ERROR)
