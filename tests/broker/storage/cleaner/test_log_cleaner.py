"""The log cleaner on a disk in memory and virtual time: choice of logs, result and crashes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from kwire.broker.storage.checkpoints import CLEANED_OFFSETS, read_offsets, write_offsets
from kwire.broker.storage.cleaner.job import Cleaned, Done, Failed, Job, Report, report_from_line, report_line
from kwire.broker.storage.cleaner.log_cleaner import LogCleaner
from kwire.broker.storage.dirs.future_log import FutureLog
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.batch import batches, build, records
from kwire.wire.compression import Codec
from kwire.wire.primitives import uuid_from_text

BACKOFF_MS = 15_000
TOPIC_ID = uuid_from_text("AAAAAAAAAAAAAAAAAAAABw")
COMPACT = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=800,
    segment_index_bytes=1200,
    index_interval_bytes=1,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.01,
)

ReadableRecords = list[tuple[int, bytes | None, bytes | None]]


class CleanerHarness:
    """The logs of a broker and their cleaner, on one disk."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        config: LogConfig = COMPACT,
        log_dirs: Sequence[str] = ("/data",),
    ) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.config = config
        self.log_dirs = log_dirs
        self.settings = SimpleNamespace(
            log_cleaner_backoff_ms=BACKOFF_MS,
            log_cleaner_dedupe_buffer_size=1 << 20,
            log_cleaner_enable=True,
            log_cleaner_io_buffer_load_factor=0.9,
            log_cleaner_io_buffer_size=1 << 16,
            log_cleaner_io_max_bytes_per_second=1e300,
            log_cleaner_threads=1,
        )
        self.open()
        self.disk.sync_directory("/")

    def open(self) -> None:
        self.host = VirtualHost()
        self.manager = LogManager(
            self.disk,
            self.log_dirs,
            logger=self.host.logger("kwire.storage"),
            rng=random.Random(1),
            config_for=lambda topic: self.config,
        )
        self.manager.open(self.host.now_ms())
        self.cleaner = LogCleaner(self.manager, self.settings, self.host, self.disk)
        self.cleaner.start()

    def create(self, topic: str = "t", partition: int = 0) -> Log:
        log = self.manager.create(topic, partition, TOPIC_ID, self.config, self.host.now_ms())
        self.manager.pending_logs.flush_partition_metadata(self.host)
        self.host.run_pending()
        return log

    @property
    def log(self) -> Log:
        log = self.manager.get("t", 0)
        assert log is not None
        return log

    def send(self, *pairs: tuple[bytes | None, bytes | None], **fields: object) -> None:
        """Append one batch to the log, committed and replicated."""
        log = self.log
        built = build([(self.host.now_ms(), key, value, []) for key, value in pairs], **fields)  # type: ignore[arg-type]
        log.append(memoryview(built), leader_epoch=0, now_ms=self.host.now_ms())
        log.commit()
        log.high_watermark = log.log_end_offset

    def run_cleaner(self) -> None:
        """Let the cleaner run one check and complete its cleanings."""
        self.host.advance(BACKOFF_MS)

    def names(self) -> list[str]:
        return self.disk.names("/data/t-0")


def readable_records(log: Log) -> ReadableRecords:
    """Return offset, key and value of every readable record."""
    found: ReadableRecords = []
    offset = log.log_start_offset
    while True:
        region = log.read(offset, max_bytes=1 << 20, up_to_offset=log.log_end_offset)
        if not region.size_bytes:
            return found
        data = region.read()
        for position, header in batches(data):
            found += [(each.offset, each.key, each.value) for each in records(data, position, header)]
            offset = header.next_offset


@pytest.fixture
def harness() -> CleanerHarness:
    harness = CleanerHarness()
    harness.create()
    return harness


def fill(harness: CleanerHarness, count: int = 30, keys: int = 4) -> None:
    for number in range(count):
        harness.send((b"k%d" % (number % keys), b"v%d" % number))


def test_all_segments_except_the_active_one_are_compacted(harness: CleanerHarness) -> None:
    fill(harness)
    bases = harness.log.segment_base_offsets
    active = bases[-1]
    end = harness.log.log_end_offset
    before = readable_records(harness.log)
    harness.run_cleaner()
    after = readable_records(harness.log)
    assert harness.cleaner.completed_cleanings == 1
    cleaned = {key: offset for offset, key, _ in before if offset < active}
    assert after == [each for each in before if each[0] >= active or cleaned[each[1]] == each[0]]
    assert (
        harness.log.segment_base_offsets == bases
    )  # no two segments fit into one, by their size before the cleaning
    assert harness.log.log_end_offset == end
    assert harness.cleaner.cleaned_offset(harness.log) == active
    assert read_offsets(harness.disk, f"/data/{CLEANED_OFFSETS}") == {("t", 0): active}
    assert not [name for name in harness.names() if name.endswith((".cleaned", ".swap"))]


def test_every_offset_is_readable_before_and_after_reopening(harness: CleanerHarness) -> None:
    fill(harness)
    harness.run_cleaner()
    expected = readable_records(harness.log)
    harness.manager.shutdown(harness.host.now_ms())
    harness.open()
    assert readable_records(harness.log) == expected
    log = harness.log
    for offset in range(log.log_end_offset):
        data = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset).read()
        _, header = next(batches(data))
        assert header.last_offset >= offset
        assert not [each for each in expected if offset <= each[0] < header.base_offset]
    found = log.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == expected[0][0]
    assert harness.cleaner.cleaned_offset(log) is not None


def test_second_cleaning_starts_where_the_first_ended(harness: CleanerHarness) -> None:
    fill(harness)
    harness.run_cleaner()
    first = harness.cleaner.cleaned_offset(harness.log)
    fill(harness, 20)
    harness.run_cleaner()
    second = harness.cleaner.cleaned_offset(harness.log)
    assert harness.cleaner.completed_cleanings == 2
    assert first is not None
    assert second is not None
    assert second > first
    inactive = [key or b"" for offset, key, _ in readable_records(harness.log) if offset < second]
    assert sorted(inactive) == [b"k0", b"k1", b"k2", b"k3"]
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 2


def test_records_above_the_high_watermark_are_not_cleaned(harness: CleanerHarness) -> None:
    fill(harness)
    before = readable_records(harness.log)
    harness.log.high_watermark = 0
    harness.run_cleaner()
    assert readable_records(harness.log) == before
    fill(harness)
    bases = harness.log.segment_base_offsets
    harness.log.high_watermark = bases[2] + 1
    harness.run_cleaner()
    assert harness.cleaner.cleaned_offset(harness.log) == bases[2] < bases[-1]


def test_log_below_the_dirty_ratio_is_not_cleaned(harness: CleanerHarness) -> None:
    fill(harness)
    harness.log.config = COMPACT._replace(min_cleanable_dirty_ratio=0.5)
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 1
    for number in range(40):
        harness.send((b"unique%d" % number, b"x"))
    harness.log.config = COMPACT._replace(min_cleanable_dirty_ratio=0.99)
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 1
    # KIP-354
    harness.log.config = harness.log.config._replace(max_compaction_lag_ms=BACKOFF_MS)
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 2


def test_segments_within_the_compaction_lag_are_not_cleaned(harness: CleanerHarness) -> None:
    harness.log.config = COMPACT._replace(min_compaction_lag_ms=BACKOFF_MS * 3)
    fill(harness)
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 0
    for _ in range(3):
        harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 1


def test_log_without_compaction_is_not_cleaned(harness: CleanerHarness) -> None:
    harness.log.config = COMPACT._replace(cleanup_policy=frozenset({"delete"}))
    fill(harness)
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 0


def test_compact_delete_log_also_has_retention(harness: CleanerHarness) -> None:
    harness.log.config = COMPACT._replace(
        cleanup_policy=frozenset({"compact", "delete"}), retention_ms=BACKOFF_MS * 2
    )
    fill(harness)
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 1
    assert harness.log.log_start_offset == 0
    harness.run_cleaner()
    harness.run_cleaner()
    assert harness.log.log_start_offset == harness.log.log_end_offset


def test_tombstones_are_removed_after_delete_retention_ms(harness: CleanerHarness) -> None:
    harness.log.config = COMPACT._replace(delete_retention_ms=BACKOFF_MS * 2)
    harness.send((b"gone", b"1"))
    harness.send((b"gone", None))
    fill(harness)
    harness.run_cleaner()
    assert (1, b"gone", None) in readable_records(harness.log)
    assert (0, b"gone", b"1") not in readable_records(harness.log)
    fill(harness)
    harness.run_cleaner()
    assert (1, b"gone", None) in readable_records(harness.log)
    fill(harness)
    harness.run_cleaner()
    assert b"gone" not in [key for _, key, _ in readable_records(harness.log)]


def test_producer_continues_after_its_records_are_cleaned(harness: CleanerHarness) -> None:
    for number in range(3):
        harness.send((b"k", b"%d" % number), producer_id=9, producer_epoch=0, base_sequence=number)
    fill(harness)
    harness.send((b"k", b"last"))
    fill(harness)
    harness.run_cleaner()
    assert [offset for offset, key, _ in readable_records(harness.log) if offset < 3] == []
    harness.disk.kill()
    for name in harness.names():
        if name.endswith(".snapshot"):
            harness.disk.remove(f"/data/t-0/{name}")
    harness.open()
    harness.log.high_watermark = harness.log.log_end_offset
    end = harness.log.log_end_offset
    harness.send((b"k", b"2"), producer_id=9, producer_epoch=0, base_sequence=2)
    assert harness.log.log_end_offset == end  # a duplicate
    harness.send((b"k", b"3"), producer_id=9, producer_epoch=0, base_sequence=3)
    assert harness.log.log_end_offset == end + 1


def test_small_segments_are_merged_up_to_segment_bytes(harness: CleanerHarness) -> None:
    for number in range(60):
        harness.send((b"unique%02d" % number, b"x"))
    before = harness.log.segment_base_offsets
    harness.log.config = COMPACT._replace(segment_bytes=1700)
    harness.run_cleaner()
    assert harness.log.segment_base_offsets[:-1] == before[:-1:2]
    assert len(readable_records(harness.log)) == 60
    assert max(segment.size_bytes for segment in harness.log.segments) <= 1700


def test_log_with_more_keys_than_the_buffer_takes_several_cleanings(harness: CleanerHarness) -> None:
    harness.settings.log_cleaner_dedupe_buffer_size = 160 * 10
    for _ in range(2):
        for number in range(30):
            harness.send((b"unique%02d" % number, b"x"))
    fill(harness, 3)
    active = harness.log.segment_base_offsets[-1]
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings > 3
    assert harness.cleaner.cleaned_offset(harness.log) == active
    assert len([offset for offset, _, _ in readable_records(harness.log) if offset < active]) <= 33


@pytest.mark.parametrize("codec", list(Codec))
def test_cleaned_log_reads_as_expected(codec: Codec, harness: CleanerHarness) -> None:
    rng = random.Random(int(codec))
    expected: dict[bytes, tuple[int, bytes | None]] = {}
    for _ in range(4):
        for _ in range(60):
            pairs: list[tuple[bytes | None, bytes | None]] = []
            for _ in range(rng.randint(1, 5)):
                key = b"key%d" % rng.randint(0, 40) * rng.choice([1, 1, 20])
                value = None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, 40))
                expected[key] = (harness.log.log_end_offset + len(pairs), value)
                pairs.append((key, value))
            harness.send(*pairs, codec=codec)
        harness.run_cleaner()
    active = harness.log.segment_base_offsets[-1]
    found = readable_records(harness.log)
    assert {key: (offset, value) for offset, key, value in found} == expected
    rolled = [key for offset, key, _ in found if offset < active]
    assert len(set(rolled)) == len(rolled)


# When things go wrong.


def test_damaged_log_is_not_changed(harness: CleanerHarness) -> None:
    fill(harness)
    first = harness.log.segments[0]
    harness.disk.corrupt(first.log_path, 70)
    before = harness.disk.tree("/data/t-0")
    harness.run_cleaner()
    assert harness.disk.tree("/data/t-0") == before
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 0
    assert harness.log.failure is None


class ScriptedWorker:
    """A worker whose reports the test gives."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.killed = False
        self.reports: list[Report] = []

    def next_report(self) -> Report:
        return self.reports.pop(0) if self.reports else Failed("was killed", is_permanent=False)

    def kill(self) -> None:
        self.killed = True


def test_dead_worker_is_retried_later(harness: CleanerHarness) -> None:
    launched: list[Job] = []
    real = harness.cleaner.workers.start

    def launch(job: Job) -> object:
        launched.append(job)
        return ScriptedWorker(job) if len(launched) == 1 else real(job)

    harness.cleaner.workers.start = launch  # type: ignore[assignment]
    fill(harness)
    harness.run_cleaner()
    harness.run_cleaner()
    assert len(launched) == 1
    harness.host.advance(60_000)
    assert (len(launched), harness.cleaner.completed_cleanings) == (2, 1)


@pytest.mark.parametrize("event", ["truncated", "retention", "deleted", "failed"])
def test_log_changed_during_a_cleaning_is_not_replaced(harness: CleanerHarness, event: str) -> None:
    fill(harness)
    real = harness.cleaner.workers.start

    def launch(job: Job) -> object:
        worker = real(job)
        report = worker.next_report()
        assert isinstance(report, Cleaned)
        log = harness.log
        if event == "truncated":
            log.truncate_to(3)
        elif event == "retention":
            log.delete_records_before(log.segment_base_offsets[1])
            log.delete_old_segments(harness.host.now_ms())
        elif event == "deleted":
            harness.manager.delete(log, harness.host.now_ms())
        else:
            log.fail(StorageError("gone"))
        scripted = ScriptedWorker(job)
        scripted.reports = [report]
        return scripted

    harness.cleaner.workers.start = launch  # type: ignore[assignment]
    log = harness.log
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 0
    assert harness.cleaner.cleaning == []
    if event in ("truncated", "retention"):
        assert not [name for name in harness.names() if name.endswith((".cleaned", ".swap"))]
        assert readable_records(log)[0][0] == log.log_start_offset


def test_recreated_topic_is_cleaned_from_its_start(harness: CleanerHarness) -> None:
    fill(harness)
    harness.run_cleaner()
    harness.manager.delete(harness.log, harness.host.now_ms())
    harness.create()
    fill(harness)
    assert harness.cleaner.cleaned_offset(harness.log) is None
    harness.run_cleaner()
    assert harness.cleaner.completed_cleanings == 2


def checkpoints(harness: CleanerHarness) -> dict[str, dict[tuple[str, int], int]]:
    """Return the checkpoint of each directory."""
    return {path: read_offsets(harness.disk, f"{path}/{CLEANED_OFFSETS}") for path in harness.log_dirs}


def harness_with_two_directories() -> CleanerHarness:
    """Return a harness with a cleaned log in the first of two directories."""
    harness = CleanerHarness(log_dirs=("/one", "/two"))
    harness.create()
    fill(harness)
    harness.run_cleaner()
    assert list(checkpoints(harness)["/one"]) == [("t", 0)]
    assert not checkpoints(harness)["/two"]
    assert harness.disk.read(f"/two/{CLEANED_OFFSETS}") == b""
    return harness


def test_checkpoint_entry_moves_with_its_log() -> None:
    harness = harness_with_two_directories()
    cleaned = checkpoints(harness)["/one"]
    old = harness.log
    target = harness.manager.directory("/two")
    assert target is not None
    placed: list[str] = []
    rename = harness.disk.rename

    def recording(old_path: str, path: str) -> None:
        placed.append(path)
        rename(old_path, path)

    harness.disk.rename = recording  # type: ignore[assignment, method-assign]
    copy = FutureLog(harness.manager, old, target, harness.host.now_ms())
    copy.log.flush()
    arrival = copy.replace_source(harness.host.now_ms())
    new = arrival.log
    harness.cleaner.handle_log_replaced(old, new)
    arrival.finish()
    harness.host.run_pending()
    assert checkpoints(harness) == {"/one": {}, "/two": cleaned}
    # A crash between the two writes loses an entry, which is safe; Kafka's cleaner fails on a duplicate.
    names = [path for path in placed if path.endswith(CLEANED_OFFSETS)]
    assert names == [f"/one/{CLEANED_OFFSETS}", f"/two/{CLEANED_OFFSETS}"]
    assert harness.cleaner.cleaned_offset(new) == cleaned["t", 0]


def test_checkpoint_entry_is_removed_with_its_log() -> None:
    harness = harness_with_two_directories()
    harness.manager.delete(harness.log, harness.host.now_ms())
    harness.cleaner.handle_logs_deleted()
    harness.host.run_pending()
    assert checkpoints(harness) == {"/one": {}, "/two": {}}


def test_checkpoint_entry_of_a_missing_log_is_removed_at_start() -> None:
    harness = harness_with_two_directories()
    cleaned = checkpoints(harness)["/one"]
    write_offsets(harness.disk, f"/one/{CLEANED_OFFSETS}", {**cleaned, ("gone", 3): 5})
    write_offsets(harness.disk, f"/two/{CLEANED_OFFSETS}", {("t", 0): 3})
    harness.cleaner.stop()
    harness.manager.shutdown(harness.host.now_ms())
    harness.open()
    assert checkpoints(harness) == {"/one": cleaned, "/two": {}}
    assert harness.cleaner.cleaned_offset(harness.log) == cleaned["t", 0]


def test_corrupt_checkpoint_is_rewritten() -> None:
    harness = harness_with_two_directories()
    harness.disk.write(f"/one/{CLEANED_OFFSETS}", b"0\n7\n", sync=True)
    harness.cleaner.stop()
    harness.manager.shutdown(harness.host.now_ms())
    harness.open()
    assert checkpoints(harness) == {"/one": {}, "/two": {}}
    assert harness.cleaner.cleaned_offset(harness.log) is None


def test_cleaning_without_effect_logs_the_kept_bytes(
    harness: CleanerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        harness.send((b"k%d" % number, b"v"))
    rolled = sum(segment.size_bytes for segment in harness.log.segments[:-1])
    with caplog.at_level(logging.INFO, "kwire.cleaner"):
        harness.run_cleaner()
    assert f"{rolled} of {rolled} bytes" in caplog.text


def test_stop_during_a_swap_completes_the_swap(harness: CleanerHarness) -> None:
    fill(harness)
    syncs: list[Callable[[], None]] = []
    real = harness.host.run_in_worker

    def hold(work: Callable[[], object], done: Callable[[object], None]) -> None:
        if "sync" in getattr(work, "__name__", ""):
            syncs.append(lambda: real(work, done))
            if len(syncs) == 2:
                return
        real(work, done)

    harness.host.run_in_worker = hold  # type: ignore[method-assign, assignment]
    harness.host.advance(BACKOFF_MS)
    assert len(syncs) == 2
    assert [name for name in harness.names() if name.endswith(".swap")]
    expected = readable_records(harness.log)
    harness.cleaner.stop()
    assert not [name for name in harness.names() if name.endswith(".swap")]
    assert readable_records(harness.log) == expected


@pytest.mark.parametrize(
    "report", [Cleaned(5, [5, 7], 100, 3, 6), Done(9, 1, 2, 3, 4, 5), Failed("reason", is_permanent=True)]
)
def test_reports_round_trip_as_lines(report: Report) -> None:
    assert report_from_line(report_line(report)) == report
    assert isinstance(report_from_line(""), Failed)
    assert isinstance(report_from_line("nonsense"), Failed)
