"""Snapshots of the metadata: when they are taken, what they hold and let go, and what a crash leaves."""

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


class Bench:
    """The metadata service of one broker on a disk in memory, that can be stopped and started again."""

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
        # Topics get other ids than those of the last run.
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

    def cut_log(self, offset: int) -> None:
        """While it is stopped, lose the end of the metadata log."""
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
        """Let what is being written be finished."""
        self.host.advance(1_000)

    def names(self, suffix: str = ".checkpoint") -> list[str]:
        return [name for name in self.disk.names(DIRECTORY) if name.endswith(suffix)]

    @property
    def image(self) -> MetadataImage:
        return self.metadata.publisher.image


def content(image: MetadataImage) -> dict[str, Any]:
    """What an image says of topics, settings and features; nodes register anew at every start."""
    return {
        part: getattr(image, part)
        for part in ("topics", "topics_by_id", "configs", "features", "next_producer_id")
    }


def test_a_snapshot_is_taken_after_so_many_bytes() -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "10000"})
    assert bench.names() == []
    bench.create("small")
    bench.settle()
    assert bench.names() == []
    bench.create("large", partitions=200)
    before = bench.image
    bench.settle()
    assert bench.names() == [f"{before.offset + 1:020d}-{before.epoch:010d}.checkpoint"]
    assert bench.names(".part") == []


def test_a_snapshot_is_taken_after_a_time_if_anything_changed() -> None:
    bench = Bench(**{"metadata.log.max.snapshot.interval.ms": str(HOUR_MS)})
    bench.host.advance(HOUR_MS)
    bench.settle()
    [first] = bench.names()
    bench.host.advance(5 * HOUR_MS)
    assert bench.names() == [first], "nothing changed"
    bench.create("a")
    bench.settle()
    assert len(bench.names()) == 2, "it was due"


def test_none_is_taken_after_a_time_where_that_is_off() -> None:
    bench = Bench(**{"metadata.log.max.snapshot.interval.ms": "0"})
    bench.create("a")
    bench.host.advance(100 * HOUR_MS)
    assert bench.names() == []


def test_a_start_that_replays_much_takes_a_snapshot_so_that_the_next_does_not() -> None:
    bench = Bench()
    for number in range(60):
        bench.create(*[f"t{number}-{part}" for part in range(10)], partitions=30)
        bench.delete(*[f"t{number}-{part}" for part in range(10)])
    bench.stop()
    assert bench.names() == []
    bench.start()
    bench.settle()
    assert len(bench.names()) == 1
    bench.stop()
    bench.start()
    bench.settle()
    assert len(bench.names()) == 1
    assert bench.quorum.log.unsnapshotted_bytes < 10_000


def test_a_snapshot_has_a_header_and_a_footer_and_tells_the_time_of_the_last_record() -> None:
    bench = Bench()
    bench.host.advance(HOUR_MS // 2)
    bench.create("a", partitions=300)
    written_ms = bench.host.now_ms()
    bench.host.advance(HOUR_MS)
    bench.settle()
    [name] = bench.names()
    data = bench.disk.read(f"{DIRECTORY}/{name}")
    headers = [header for _, header in batches(data)]
    assert [header.is_control for header in headers] == [True, *[False] * (len(headers) - 2), True]
    assert sum(header.size_bytes for header in headers) == len(data)
    offsets = [header.base_offset for header in headers]
    assert offsets == [0, *(header.next_offset for header in headers[:-1])]
    assert {header.leader_epoch for header in headers} == {bench.image.epoch}
    [control] = next(decode_batches(data)).controls
    assert control == SnapshotHeaderRecord(version=0, last_contained_log_timestamp=written_ms)


def test_changes_while_a_snapshot_is_written_are_not_in_it_and_not_lost() -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    bench.create(*[f"t{number}" for number in range(300)])
    assert bench.names() == []
    [part] = bench.names(".part")
    bench.host.advance(1)
    bench.create("late")
    bench.settle()
    [name] = bench.names()
    assert part.startswith(name)
    records = [
        record for batch in decode_batches(bench.disk.read(f"{DIRECTORY}/{name}")) for record in batch.records
    ]
    assert sum(getattr(record, "name", "") == "t7" for record in records) == 1
    assert not any(getattr(record, "name", "") == "late" for record in records)
    bench.stop()
    bench.start()
    assert len(bench.image.topics) == 301


def test_a_start_from_a_snapshot_gives_what_was_there() -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "5000"})
    for round_number in range(8):
        bench.create(f"kept{round_number}", f"gone{round_number}", partitions=20)
        bench.settle()
        bench.delete(f"gone{round_number}")
        bench.settle()
    assert len(bench.names()) >= 2
    before = content(bench.image)
    bench.disk.kill()
    bench.now_ms = bench.host.now_ms()
    bench.start()
    after = content(bench.image)
    assert after["configs"] == before["configs"]
    assert set(after["topics"]) == {f"kept{number}" for number in range(8)}
    for name, topic in before["topics"].items():
        assert after["topics"][name].topic_id == topic.topic_id
        assert len(after["topics"][name].partitions) == len(topic.partitions)


def test_old_snapshots_go_with_the_log_before_them() -> None:
    bench = Bench(
        **{
            "metadata.log.max.record.bytes.between.snapshots": "5000",
            "metadata.max.retention.bytes": "30000",
            "internal.metadata.log.segment.bytes": "8000",
        }
    )
    for number in range(40):
        bench.create(f"t{number}", partitions=20)
        bench.settle()
        bench.delete(f"t{number}")
        bench.settle()
    log = bench.quorum.log.log
    assert log.log_start_offset > 0
    snapshots = bench.quorum.log.snapshots
    assert log.log_start_offset == snapshots.known[0].end_offset
    assert log.segment_base_offsets[0] > 0
    assert bench.names(".checkpoint.deleted") != []
    bench.host.advance(120_000)
    assert bench.names(".checkpoint.deleted") == []
    total = log.size_bytes + sum(map(snapshots.size, snapshots.known))
    assert total <= 30_000 or len(snapshots.known) == 1
    bench.stop()
    bench.start()
    assert bench.image.topics == {}
    bench.create("again")


def test_old_snapshots_go_after_a_time() -> None:
    bench = Bench(
        **{
            "metadata.max.retention.bytes": "-1",
            "metadata.max.retention.ms": str(3 * HOUR_MS),
        }
    )
    for number in range(6):
        bench.create(f"t{number}")
        bench.host.advance(HOUR_MS)
    ages_ms = [
        bench.host.now_ms() - bench.quorum.log.snapshots.last_timestamp_ms(snapshot)
        for snapshot in bench.quorum.log.snapshots.known
    ]
    assert len(ages_ms) >= 2
    assert max(ages_ms) <= 3 * HOUR_MS + 120_000
    bench.host.advance(10 * HOUR_MS)
    assert len(bench.names()) == 1, "the last one stays, however old"


@pytest.mark.parametrize("advanced_ms", range(6))
def test_a_crash_at_any_step_leaves_the_log_or_a_whole_snapshot(advanced_ms: int) -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    bench.create(*[f"t{number}" for number in range(300)])
    bench.host.advance(advanced_ms)
    bench.crash()
    assert len(bench.image.topics) == 300
    assert bench.names(".part") == [] or bench.quorum.log.unsnapshotted_bytes < 20_000
    bench.settle()
    assert len(bench.names()) >= 1, "the replayed log is long enough for one"


def test_a_disk_that_fails_costs_the_snapshot_alone() -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    bench.create(*[f"t{number}" for number in range(300)])
    bench.disk.fails_after = 0
    bench.host.advance(2)
    bench.disk.fails_after = None
    assert bench.names() == []
    bench.create(*[f"u{number}" for number in range(300)])
    bench.settle()
    assert len(bench.names()) == 1
    assert not bench.quorum.failed


def test_a_stop_gives_up_what_is_not_finished() -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "20000"})
    bench.create(*[f"t{number}" for number in range(300)])
    assert len(bench.names(".part")) == 1
    bench.stop()
    assert bench.names(".part") == []
    assert bench.host.timers == 0


def test_a_log_without_its_beginning_is_refused() -> None:
    bench = Bench(
        **{
            "metadata.log.max.record.bytes.between.snapshots": "5000",
            "metadata.max.retention.bytes": "10000",
            "internal.metadata.log.segment.bytes": "5000",
        }
    )
    for number in range(20):
        bench.create(f"t{number}", partitions=20)
        bench.settle()
    assert bench.quorum.log.log.log_start_offset == 0, "who follows has no time to come past the snapshots"
    bench.host.advance(CLEAN_DELAY_MS)
    bench.stop()
    for name in bench.names():
        bench.disk.remove(f"{DIRECTORY}/{name}")
    with pytest.raises(CorruptMetadata, match=r"starts at offset \d+ and has no snapshot"):
        bench.start()


@pytest.mark.parametrize("read_bytes", [1, 5_000, 5_001, 100_000])
def test_a_log_larger_than_one_read_is_read_whole(monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    bench = Bench()
    for number in range(20):
        bench.create(f"t{number}", partitions=20)
    bench.stop()
    monkeypatch.setattr("kwire.broker.raft.metadata_log.READ_BYTES", read_bytes)
    bench.start()
    assert sum(len(topic.partitions) for topic in bench.image.topics.values()) == 400


def test_a_feature_level_of_a_release_to_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.stop()
    known = FEATURES["metadata.version"]._replace(max_level=29)
    monkeypatch.setitem(FEATURES, "metadata.version", known)
    with pytest.raises(
        CorruptMetadata, match=r"metadata\.version at level 30, and this release supports 7 to 29"
    ):
        bench.start()


@pytest.mark.parametrize("lost_epoch", [False, True])
def test_a_log_whose_end_was_lost_starts_anew_at_a_snapshot_that_knows_more(lost_epoch: bool) -> None:
    bench = Bench(**{"metadata.log.max.record.bytes.between.snapshots": "10000"})
    bench.create("early")
    bench.stop()
    bench.start()
    first_of_epoch = bench.quorum.log.end_offset - 1
    bench.create("large", partitions=200)
    bench.settle()
    [name] = bench.names()
    before = {topic.name: (topic.topic_id, len(topic.partitions)) for topic in bench.image.topics.values()}
    bench.stop()
    bench.cut_log(first_of_epoch if lost_epoch else first_of_epoch + 2)

    bench.start()
    after = {topic.name: (topic.topic_id, len(topic.partitions)) for topic in bench.image.topics.values()}
    assert after == before
    assert bench.names() == [name]
    log = bench.quorum.log.log
    assert f"{log.log_start_offset:020d}" == name.partition("-")[0]
    assert bench.quorum.epoch > before_epoch(name)
    bench.create("late")
    bench.stop()
    bench.start()
    assert {"early", "large", "late"} <= set(bench.image.topics)


def before_epoch(name: str) -> int:
    """The epoch in which a snapshot of this name was written."""
    return int(name.partition("-")[2].partition(".")[0])
