"""Metadata snapshots: when they are taken, their content, retention, and crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.config import load
from kwire.broker.controller.commands import CreateTopics, DeleteTopics, TopicToDelete
from kwire.broker.metadata.batches import CorruptMetadata, decode_batches
from kwire.broker.metadata.features import FEATURES
from kwire.broker.metadata.image import MetadataImage
from kwire.broker.node.format import all_directories, format_directories
from kwire.broker.node.metadata import NodeMetadata
from kwire.broker.raft.metadata_log import metadata_log_config
from kwire.broker.raft.snapshotter import CLEAN_DELAY_MS
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import batches
from kwire.wire.messages.create_topics import CreatableTopic
from kwire.wire.records.raft import SnapshotHeaderRecord

DIRECTORY = "/data/__cluster_metadata-0"
HOUR_MS = 3_600_000


class MetadataHarness:
    """The metadata service of one broker on a disk in memory, which can be restarted."""

    def __init__(self, **settings: str) -> None:
        properties = {"log.dirs": "/data", "node.id": "1"}
        self.config = load(
            None, {}, properties | {name.replace("_", "."): value for name, value in settings.items()}
        )
        self.disk = MemoryDisk()
        self.now_ms = 1_700_000_000_000
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        # Topic ids differ from those of the last run.
        self.host = VirtualHost(seed=self.starts, now_ms=self.now_ms)
        now_ms = self.host.now_ms()
        format_directories(
            self.config, self.disk, self.host.random("directories"), now_ms, ignore_formatted=True
        )
        self.logs = LogManager(
            self.disk,
            all_directories(self.config),
            logger=self.host.logger("kwire.storage"),
            rng=self.host.random("directories"),
        )
        self.logs.lock()
        self.logs.load_meta_properties()
        self.metadata = NodeMetadata(self.config, self.host, self.logs, self.disk)
        self.quorum = self.metadata.quorum
        self.metadata.start({})
        self.logs.open_logs(now_ms)
        self.metadata.opened()

    def stop(self) -> None:
        self.metadata.shutdown()
        self.logs.shutdown(self.host.now_ms(), broker_epoch=self.metadata.lifecycle.broker_epoch)
        self.now_ms = self.host.now_ms() + 1

    def truncate_log(self, offset: int) -> None:
        """Truncate the metadata log of a stopped broker."""
        logs = LogManager(
            self.disk,
            all_directories(self.config),
            logger=self.host.logger("kwire.storage"),
            rng=random.Random(0),
        )
        logs.lock()
        logs.load_meta_properties()
        log = logs.open_metadata_log(metadata_log_config(self.config), self.now_ms)
        assert log.truncate_to(offset)
        logs.shutdown(self.now_ms)

    def crash(self) -> None:
        self.disk.power_cut(random.Random(3))
        self.now_ms = self.host.now_ms() + 1
        self.start()

    def run(self, command: Any) -> Any:
        replies: list[Any] = []
        self.metadata.controller.submit(command, replies.append)
        self.host.run_pending()
        return replies[0]

    def create(self, *names: str, partitions: int = 1) -> None:
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
        ]
        for result in self.run(CreateTopics(topics)):
            assert result.error_code == 0, result

    def delete(self, *names: str) -> None:
        self.run(DeleteTopics([TopicToDelete(name, None) for name in names]))

    def settle(self) -> None:
        """Let pending writes complete."""
        self.host.advance(1_000)

    def names(self, suffix: str = ".checkpoint") -> list[str]:
        return [name for name in self.disk.names(DIRECTORY) if name.endswith(suffix)]

    @property
    def image(self) -> MetadataImage:
        return self.metadata.publisher.image


def content(image: MetadataImage) -> dict[str, Any]:
    """Return the parts of an image that survive a restart; registrations do not."""
    return {
        part: getattr(image, part)
        for part in ("topics", "topics_by_id", "configs", "features", "next_producer_id")
    }


def test_snapshot_is_taken_after_max_record_bytes() -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "10000"})
    assert harness.names() == []
    harness.create("small")
    harness.settle()
    assert harness.names() == []
    harness.create("large", partitions=200)
    before = harness.image
    harness.settle()
    assert harness.names() == [f"{before.offset + 1:020d}-{before.epoch:010d}.checkpoint"]
    assert harness.names(".part") == []


def test_snapshot_is_taken_after_the_interval_if_the_metadata_changed() -> None:
    harness = MetadataHarness(**{"metadata.log.max.snapshot.interval.ms": str(HOUR_MS)})
    harness.host.advance(HOUR_MS)
    harness.settle()
    [first] = harness.names()
    harness.host.advance(5 * HOUR_MS)
    assert harness.names() == [first], "nothing changed"
    harness.create("a")
    harness.settle()
    assert len(harness.names()) == 2, "the interval had passed"


def test_interval_of_0_disables_periodic_snapshots() -> None:
    harness = MetadataHarness(**{"metadata.log.max.snapshot.interval.ms": "0"})
    harness.create("a")
    harness.host.advance(100 * HOUR_MS)
    assert harness.names() == []


def test_start_with_a_long_replay_takes_a_snapshot() -> None:
    harness = MetadataHarness()
    for number in range(60):
        harness.create(*[f"t{number}-{part}" for part in range(10)], partitions=30)
        harness.delete(*[f"t{number}-{part}" for part in range(10)])
    harness.stop()
    assert harness.names() == []
    harness.start()
    harness.settle()
    assert len(harness.names()) == 1
    harness.stop()
    harness.start()
    harness.settle()
    assert len(harness.names()) == 1
    assert harness.quorum.log.unsnapshotted_bytes < 10_000


def test_snapshot_has_header_and_footer_and_the_timestamp_of_the_last_record() -> None:
    harness = MetadataHarness()
    harness.host.advance(HOUR_MS // 2)
    harness.create("a", partitions=300)
    written_ms = harness.host.now_ms()
    harness.host.advance(HOUR_MS)
    harness.settle()
    [name] = harness.names()
    data = harness.disk.read(f"{DIRECTORY}/{name}")
    headers = [header for _, header in batches(data)]
    assert [header.is_control for header in headers] == [True, *[False] * (len(headers) - 2), True]
    assert sum(header.size_bytes for header in headers) == len(data)
    offsets = [header.base_offset for header in headers]
    assert offsets == [0, *(header.next_offset for header in headers[:-1])]
    assert {header.leader_epoch for header in headers} == {harness.image.epoch}
    [control] = next(decode_batches(data)).controls
    assert control == SnapshotHeaderRecord(version=0, last_contained_log_timestamp=written_ms)


def test_changes_during_a_snapshot_are_not_in_it_but_in_the_log() -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    harness.create(*[f"t{number}" for number in range(300)])
    assert harness.names() == []
    [part] = harness.names(".part")
    harness.host.advance(1)
    harness.create("late")
    harness.settle()
    [name] = harness.names()
    assert part.startswith(name)
    records = [
        record
        for batch in decode_batches(harness.disk.read(f"{DIRECTORY}/{name}"))
        for record in batch.records
    ]
    assert sum(getattr(record, "name", "") == "t7" for record in records) == 1
    assert not any(getattr(record, "name", "") == "late" for record in records)
    harness.stop()
    harness.start()
    assert len(harness.image.topics) == 301


def test_start_from_a_snapshot_restores_the_image() -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "5000"})
    for round_number in range(8):
        harness.create(f"kept{round_number}", f"gone{round_number}", partitions=20)
        harness.settle()
        harness.delete(f"gone{round_number}")
        harness.settle()
    assert len(harness.names()) >= 2
    before = content(harness.image)
    harness.disk.kill()
    harness.now_ms = harness.host.now_ms()
    harness.start()
    after = content(harness.image)
    assert after["configs"] == before["configs"]
    assert set(after["topics"]) == {f"kept{number}" for number in range(8)}
    for name, topic in before["topics"].items():
        assert after["topics"][name].topic_id == topic.topic_id
        assert len(after["topics"][name].partitions) == len(topic.partitions)


def test_retention_bytes_deletes_old_snapshots_and_the_log_before_them() -> None:
    harness = MetadataHarness(
        **{
            "metadata.log.max.record.bytes.between.snapshots": "5000",
            "metadata.max.retention.bytes": "30000",
            "internal.metadata.log.segment.bytes": "8000",
        }
    )
    for number in range(40):
        harness.create(f"t{number}", partitions=20)
        harness.settle()
        harness.delete(f"t{number}")
        harness.settle()
    log = harness.quorum.log.log
    assert log.log_start_offset > 0
    snapshots = harness.quorum.log.snapshots
    assert log.log_start_offset == snapshots.known[0].end_offset
    assert log.segment_base_offsets[0] > 0
    assert harness.names(".checkpoint.deleted") != []
    harness.host.advance(120_000)
    assert harness.names(".checkpoint.deleted") == []
    total = log.size_bytes + sum(map(snapshots.size, snapshots.known))
    assert total <= 30_000 or len(snapshots.known) == 1
    harness.stop()
    harness.start()
    assert harness.image.topics == {}
    harness.create("again")


def test_retention_ms_deletes_old_snapshots_except_the_last() -> None:
    harness = MetadataHarness(
        **{
            "metadata.max.retention.bytes": "-1",
            "metadata.max.retention.ms": str(3 * HOUR_MS),
        }
    )
    for number in range(6):
        harness.create(f"t{number}")
        harness.host.advance(HOUR_MS)
    ages_ms = [
        harness.host.now_ms() - harness.quorum.log.snapshots.last_timestamp_ms(snapshot)
        for snapshot in harness.quorum.log.snapshots.known
    ]
    assert len(ages_ms) >= 2
    assert max(ages_ms) <= 3 * HOUR_MS + 120_000
    harness.host.advance(10 * HOUR_MS)
    assert len(harness.names()) == 1, "the last snapshot is kept"


@pytest.mark.parametrize("advanced_ms", range(6))
def test_crash_at_any_step_leaves_the_log_or_a_complete_snapshot(advanced_ms: int) -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    harness.create(*[f"t{number}" for number in range(300)])
    harness.host.advance(advanced_ms)
    harness.crash()
    assert len(harness.image.topics) == 300
    assert harness.names(".part") == [] or harness.quorum.log.unsnapshotted_bytes < 20_000
    harness.settle()
    assert len(harness.names()) >= 1, "the replayed log is long enough for a snapshot"


def test_disk_error_during_a_snapshot_does_not_fail_the_quorum() -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    harness.create(*[f"t{number}" for number in range(300)])
    harness.disk.fails_after = 0
    harness.host.advance(2)
    harness.disk.fails_after = None
    assert harness.names() == []
    harness.create(*[f"u{number}" for number in range(300)])
    harness.settle()
    assert len(harness.names()) == 1
    assert not harness.quorum.failed


def test_stop_deletes_an_unfinished_snapshot() -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    harness.create(*[f"t{number}" for number in range(300)])
    assert len(harness.names(".part")) == 1
    harness.stop()
    assert harness.names(".part") == []
    assert harness.host.timers == 0


def test_start_fails_if_the_log_start_has_no_snapshot() -> None:
    harness = MetadataHarness(
        **{
            "metadata.log.max.record.bytes.between.snapshots": "5000",
            "metadata.max.retention.bytes": "10000",
            "internal.metadata.log.segment.bytes": "5000",
        }
    )
    for number in range(20):
        harness.create(f"t{number}", partitions=20)
        harness.settle()
    assert harness.quorum.log.log.log_start_offset == 0, "followers need time to fetch the snapshot"
    harness.host.advance(CLEAN_DELAY_MS)
    harness.stop()
    for name in harness.names():
        harness.disk.remove(f"{DIRECTORY}/{name}")
    with pytest.raises(CorruptMetadata, match=r"starts at offset \d+ and has no snapshot"):
        harness.start()


@pytest.mark.parametrize("read_bytes", [1, 5_000, 5_001, 100_000])
def test_log_larger_than_one_read_is_replayed_completely(
    monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    harness = MetadataHarness()
    for number in range(20):
        harness.create(f"t{number}", partitions=20)
    harness.stop()
    monkeypatch.setattr("kwire.broker.raft.metadata_log.READ_BYTES", read_bytes)
    harness.start()
    assert sum(len(topic.partitions) for topic in harness.image.topics.values()) == 400


def test_start_fails_for_a_metadata_version_of_a_later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = MetadataHarness()
    harness.stop()
    known = FEATURES["metadata.version"]._replace(max_level=29)
    monkeypatch.setitem(FEATURES, "metadata.version", known)
    with pytest.raises(
        CorruptMetadata, match=r"metadata\.version at level 30, and this release supports 7 to 29"
    ):
        harness.start()


@pytest.mark.parametrize("lost_epoch", [False, True])
def test_log_that_ends_before_a_snapshot_restarts_after_the_snapshot(lost_epoch: bool) -> None:
    harness = MetadataHarness(**{"metadata.log.max.record.bytes.between.snapshots": "10000"})
    harness.create("early")
    harness.stop()
    harness.start()
    first_of_epoch = harness.quorum.log.end_offset - 1
    harness.create("large", partitions=200)
    harness.settle()
    [name] = harness.names()
    before = {topic.name: (topic.topic_id, len(topic.partitions)) for topic in harness.image.topics.values()}
    harness.stop()
    harness.truncate_log(first_of_epoch if lost_epoch else first_of_epoch + 2)

    harness.start()
    after = {topic.name: (topic.topic_id, len(topic.partitions)) for topic in harness.image.topics.values()}
    assert after == before
    assert harness.names() == [name]
    log = harness.quorum.log.log
    assert f"{log.log_start_offset:020d}" == name.partition("-")[0]
    assert harness.quorum.epoch > epoch_of_snapshot(name)
    harness.create("late")
    harness.stop()
    harness.start()
    assert {"early", "large", "late"} <= set(harness.image.topics)


def epoch_of_snapshot(name: str) -> int:
    """Return the epoch in the name of a snapshot."""
    return int(name.partition("-")[2].partition(".")[0])
