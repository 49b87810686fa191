"""A running node never waits for disk syncs on its loop: workers sync."""

from __future__ import annotations

import pytest

from kwire.testing.disk import MemoryDisk
from kwire.testing.power_loss import FileContent
from kwire.testing.virtual_host import WorkerTask
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.batch import build
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kwire.wire.messages.delete_topics import DeleteTopicsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.replication.test_directory_moves import move
from tests.node_harness import PRODUCE_VERSION, NodeHarness, produce_request

MINUTE_MS = 60_000
TOPIC = 2


class WatchedDisk(MemoryDisk):
    """A disk that records the syncs outside of workers."""

    def __init__(self) -> None:
        super().__init__()
        self.in_worker = False
        self.on_loop: list[str] = []
        self.in_workers: set[str] = set()

    def _note_sync(self, path: str) -> None:
        if self.in_worker:
            self.in_workers.add(path)
        else:
            self.on_loop.append(path)

    def sync_content(self, content: FileContent, path: str) -> None:
        self._note_sync(path)
        super().sync_content(content, path)

    def sync_directory(self, path: str) -> None:
        self._note_sync(path)
        super().sync_directory(path)


def create_request(topic: str) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=topic, num_partitions=1, replication_factor=1)]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000)


def send_produce(harness: NodeHarness, topic: str) -> VirtualClient:
    """Send a produce request and return its client."""
    client = harness.connect()
    client.submit(PRODUCE_VERSION, produce_request(topic))
    harness.turn()
    return client


def acknowledged_offset(client: VirtualClient) -> int | None:
    """Return the acknowledged offset, or None without a response."""
    answer = client.receive(PRODUCE_VERSION, ProduceRequest)
    return None if answer is None else answer.responses[0].partition_responses[0].base_offset


def run_workers(harness: NodeHarness, held: list[WorkerTask]) -> int:
    """Run all queued work, including the work that it queues, and return the number of tasks."""
    count = 0
    while held:
        held.pop(0).deliver()
        harness.turn()
        count += 1
    return count


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> NodeHarness:
    disk = WatchedDisk()
    work = WorkerTask.run

    def run(self: WorkerTask) -> None:
        disk.in_worker = True
        work(self)
        disk.in_worker = False

    monkeypatch.setattr(WorkerTask, "run", run)
    harness = NodeHarness(disk, **{"log.cleaner.min.cleanable.ratio": "0", "log.roll.ms": "1000"})
    harness.host.advance(MINUTE_MS)
    disk.on_loop.clear()
    return harness


def test_no_sync_on_the_loop(harness: NodeHarness) -> None:
    disk = harness.disk
    assert isinstance(disk, WatchedDisk)
    harness.create("plain", "compacted", partitions=4)
    for topic, key, value in (("plain", "flush.messages", "1"), ("compacted", "cleanup.policy", "compact")):
        change = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[change])
        assert (
            harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0
        )
    harness.call(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["group"]))
    for _ in range(4):
        for index in range(4):
            assert harness.produce("plain", index).error_code == 0
        records = memoryview(build([(harness.host.now_ms(), b"key", b"value", [])]))
        data = PartitionProduceData(index=0, records=records)
        topics = [TopicProduceData(name="compacted", partition_data=[data])]
        answer = harness.call(PRODUCE_VERSION, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
        assert answer.responses[0].partition_responses[0].error_code == 0
        harness.host.advance(MINUTE_MS)
    cut = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="plain", partitions=[cut])], timeout_ms=1000
    )
    assert harness.call(2, request).topics[0].partitions[0].error_code == 0
    harness.host.advance(10 * MINUTE_MS)
    assert harness.node.cleaner.completed_cleanings
    assert move(harness, "/d2", "plain", 0, 1, 2, 3) == [0] * 4
    harness.host.advance(MINUTE_MS)
    assert {harness.directory_of("plain", index)[:3] for index in range(4)} == {"/d2"}
    assert harness.call(5, DeleteTopicsRequest(topic_names=["compacted"], timeout_ms=1000)).responses
    harness.host.advance(10 * MINUTE_MS)
    harness.create("compacted")
    assert harness.produce("compacted").base_offset == 0
    assert disk.on_loop == []
    kinds = {path.rpartition("/")[2] for path in disk.in_workers}
    assert kinds >= {
        "partition.metadata.tmp",
        "recovery-point-offset-checkpoint.next.tmp",
        "log-start-offset-checkpoint.next.tmp",
        "cleaner-offset-checkpoint.next.tmp",
        "00000000000000000000.log",
    }


@pytest.mark.parametrize("is_second", [False, True])
def test_append_waits_until_the_log_directory_is_named(harness: NodeHarness, is_second: bool) -> None:
    """The append waits for partition.metadata, which a worker writes.

    If a log of the same name was deleted before, the worker first writes checkpoints without the deleted log.
    """
    disk = harness.disk
    assert isinstance(disk, WatchedDisk)
    if is_second:
        harness.create("new")
        assert harness.produce("new").base_offset == 0
        harness.host.advance(MINUTE_MS)
    held = harness.host.hold_work()
    if is_second:
        harness.connect().submit(5, DeleteTopicsRequest(topic_names=["new"], timeout_ms=1000))
        harness.turn()
        run_workers(harness, held)
    harness.connect().submit(7, create_request("new"))
    harness.turn()
    while harness.node.log_manager.get("new", 0) is None:
        held.pop(0).deliver()
        harness.turn()
    client = send_produce(harness, "new")
    log = harness.node.log_manager.get("new", 0)
    assert log is not None
    assert (acknowledged_offset(client), log.log_end_offset, log.high_watermark) == (None, 1, 0)
    assert run_workers(harness, held) >= (3 if is_second else 1)
    assert (acknowledged_offset(client), log.high_watermark) == (0, 1)
    assert disk.on_loop == []


def test_damaged_index_is_rebuilt_without_waiting_for_its_sync(harness: NodeHarness) -> None:
    harness.create("plain")
    for _ in range(3):
        assert harness.produce("plain").error_code == 0
        harness.host.advance(MINUTE_MS)
    harness.node.begin_shutdown()
    harness.node.finish_shutdown()
    again = NodeHarness(harness.disk)
    disk = again.disk
    assert isinstance(disk, WatchedDisk)
    log = again.node.log_manager.get("plain", 0)
    assert log is not None
    path = f"{log.directory}/{0:020d}.timeindex"
    whole = disk.read(path)
    disk.open(path).truncate(len(whole) - 1)
    disk.on_loop.clear()
    earliest = ListOffsetsPartition(partition_index=0, timestamp=1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="plain", partitions=[earliest])])
    assert again.call(5, request).topics[0].partitions[0].offset == 0
    assert disk.read(path) == whole
    assert disk.on_loop == []
    assert not disk.is_synced(path)
    again.node.begin_shutdown()
    again.node.finish_shutdown()
    assert disk.is_synced(path), "the next start trusts it"
