"""A node that serves never waits for its disks: what syncs does so in a worker."""

from __future__ import annotations

import pytest

from kwire.testing.disk import MemoryDisk
from kwire.testing.media import Content
from kwire.testing.virtual import Work
from kwire.wire.batch import build
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
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.rig import PRODUCE_VERSION, Rig

MINUTE_MS = 60_000
TOPIC = 2


class WatchedDisk(MemoryDisk):
    """Notes what is synced outside of workers."""

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

    def make_durable(self, content: Content, path: str) -> None:
        self._note_sync(path)
        super().make_durable(content, path)

    def sync_directory(self, path: str) -> None:
        self._note_sync(path)
        super().sync_directory(path)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    disk = WatchedDisk()
    work = Work.run

    def run(self: Work) -> None:
        disk.in_worker = True
        work(self)
        disk.in_worker = False

    monkeypatch.setattr(Work, "run", run)
    rig = Rig(disk, **{"log.cleaner.min.cleanable.ratio": "0", "log.roll.ms": "1000"})
    rig.host.advance(MINUTE_MS)
    disk.on_loop.clear()
    return rig


def test_nothing_is_synced_on_the_loop(rig: Rig) -> None:
    disk = rig.disk
    assert isinstance(disk, WatchedDisk)
    rig.create("plain", "compacted", partitions=4)
    for topic, key, value in (("plain", "flush.messages", "1"), ("compacted", "cleanup.policy", "compact")):
        change = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[change])
        assert rig.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0
    rig.call(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["group"]))
    for _ in range(4):
        for index in range(4):
            assert rig.produce("plain", index).error_code == 0
        records = memoryview(build([(rig.host.now_ms(), b"key", b"value", [])]))
        data = PartitionProduceData(index=0, records=records)
        topics = [TopicProduceData(name="compacted", partition_data=[data])]
        answer = rig.call(PRODUCE_VERSION, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
        assert answer.responses[0].partition_responses[0].error_code == 0
        rig.host.advance(MINUTE_MS)
    cut = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="plain", partitions=[cut])], timeout_ms=1000
    )
    assert rig.call(2, request).topics[0].partitions[0].error_code == 0
    rig.host.advance(10 * MINUTE_MS)
    assert rig.node.cleaner.rounds
    assert rig.call(5, DeleteTopicsRequest(topic_names=["compacted"], timeout_ms=1000)).responses
    rig.host.advance(10 * MINUTE_MS)
    assert disk.on_loop == []
    kinds = {path.rpartition("/")[2] for path in disk.in_workers}
    assert kinds >= {
        "partition.metadata.tmp",
        "recovery-point-offset-checkpoint.next.tmp",
        "log-start-offset-checkpoint.next.tmp",
        "cleaner-offset-checkpoint.next.tmp",
        "00000000000000000000.log",
    }
