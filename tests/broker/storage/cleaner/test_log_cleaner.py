"""The cleaner on a disk in memory and virtual time: what it chooses and leaves, and what a kill leaves."""

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

Kept = list[tuple[int, bytes | None, bytes | None]]


class Bench:
    """A broker's logs and their cleaner, on one disk."""

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

    def pass_time(self) -> None:
        """Let the cleaner look once, and finish what it finds."""
        self.host.advance(BACKOFF_MS)

    def names(self) -> list[str]:
        return self.disk.names("/data/t-0")


def kept(log: Log) -> Kept:
    """Offset, key and value of every record that can be read."""
    found: Kept = []
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
def bench() -> Bench:
    bench = Bench()
    bench.create()
    return bench


def fill(bench: Bench, count: int = 30, keys: int = 4) -> None:
    for number in range(count):
        bench.send((b"k%d" % (number % keys), b"v%d" % number))


def test_all_but_the_active_segment_is_compacted(bench: Bench) -> None:
    fill(bench)
    bases = bench.log.segment_base_offsets
    active = bases[-1]
    end = bench.log.log_end_offset
    before = kept(bench.log)
    bench.pass_time()
    after = kept(bench.log)
    assert bench.cleaner.completed_cleanings == 1
    cleaned = {key: offset for offset, key, _ in before if offset < active}
    assert after == [each for each in before if each[0] >= active or cleaned[each[1]] == each[0]]
    assert bench.log.segment_base_offsets == bases  # no two of them fit into one, by their size before
    assert bench.log.log_end_offset == end
    assert bench.cleaner.cleaned_offset(bench.log) == active
    assert read_offsets(bench.disk, f"/data/{CLEANED_OFFSETS}") == {("t", 0): active}
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


def test_every_offset_can_be_read_from_before_and_after_a_reopening(bench: Bench) -> None:
    fill(bench)
    bench.pass_time()
    expected = kept(bench.log)
    bench.manager.shutdown(bench.host.now_ms())
    bench.open()
    assert kept(bench.log) == expected
    log = bench.log
    for offset in range(log.log_end_offset):
        data = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset).read()
        _, header = next(batches(data))
        assert header.last_offset >= offset
        assert not [each for each in expected if offset <= each[0] < header.base_offset]
    found = log.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == expected[0][0]
    assert bench.cleaner.cleaned_offset(log) is not None


def test_a_second_round_goes_on_where_the_first_ended(bench: Bench) -> None:
    fill(bench)
    bench.pass_time()
    first = bench.cleaner.cleaned_offset(bench.log)
    fill(bench, 20)
    bench.pass_time()
    second = bench.cleaner.cleaned_offset(bench.log)
    assert bench.cleaner.completed_cleanings == 2
    assert first is not None
    assert second is not None
    assert second > first
    inactive = [key or b"" for offset, key, _ in kept(bench.log) if offset < second]
    assert sorted(inactive) == [b"k0", b"k1", b"k2", b"k3"]
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 2


def test_nothing_that_is_not_replicated_is_cleaned(bench: Bench) -> None:
    fill(bench)
    before = kept(bench.log)
    bench.log.high_watermark = 0
    bench.pass_time()
    assert kept(bench.log) == before
    fill(bench)
    bases = bench.log.segment_base_offsets
    bench.log.high_watermark = bases[2] + 1
    bench.pass_time()
    assert bench.cleaner.cleaned_offset(bench.log) == bases[2] < bases[-1]


def test_a_log_that_is_not_dirty_enough_waits(bench: Bench) -> None:
    fill(bench)
    bench.log.config = COMPACT._replace(min_cleanable_dirty_ratio=0.5)
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 1
    for number in range(40):
        bench.send((b"unique%d" % number, b"x"))
    bench.log.config = COMPACT._replace(min_cleanable_dirty_ratio=0.99)
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 1
    # KIP-354
    bench.log.config = bench.log.config._replace(max_compaction_lag_ms=BACKOFF_MS)
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 2


def test_young_segments_wait(bench: Bench) -> None:
    bench.log.config = COMPACT._replace(min_compaction_lag_ms=BACKOFF_MS * 3)
    fill(bench)
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 0
    for _ in range(3):
        bench.pass_time()
    assert bench.cleaner.completed_cleanings == 1


def test_a_log_that_is_not_compacted_is_let_be(bench: Bench) -> None:
    bench.log.config = COMPACT._replace(cleanup_policy=frozenset({"delete"}))
    fill(bench)
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 0


def test_what_is_compacted_and_deleted_grows_old_as_well(bench: Bench) -> None:
    bench.log.config = COMPACT._replace(
        cleanup_policy=frozenset({"compact", "delete"}), retention_ms=BACKOFF_MS * 2
    )
    fill(bench)
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 1
    assert bench.log.log_start_offset == 0
    bench.pass_time()
    bench.pass_time()
    assert bench.log.log_start_offset == bench.log.log_end_offset


def test_tombstones_go_after_their_time(bench: Bench) -> None:
    bench.log.config = COMPACT._replace(delete_retention_ms=BACKOFF_MS * 2)
    bench.send((b"gone", b"1"))
    bench.send((b"gone", None))
    fill(bench)
    bench.pass_time()
    assert (1, b"gone", None) in kept(bench.log)
    assert (0, b"gone", b"1") not in kept(bench.log)
    fill(bench)
    bench.pass_time()
    assert (1, b"gone", None) in kept(bench.log)
    fill(bench)
    bench.pass_time()
    assert b"gone" not in [key for _, key, _ in kept(bench.log)]


def test_a_producer_goes_on_after_its_records_were_cleaned(bench: Bench) -> None:
    for number in range(3):
        bench.send((b"k", b"%d" % number), producer_id=9, producer_epoch=0, base_sequence=number)
    fill(bench)
    bench.send((b"k", b"last"))
    fill(bench)
    bench.pass_time()
    assert [offset for offset, key, _ in kept(bench.log) if offset < 3] == []
    bench.disk.kill()
    for name in bench.names():
        if name.endswith(".snapshot"):
            bench.disk.remove(f"/data/t-0/{name}")
    bench.open()
    bench.log.high_watermark = bench.log.log_end_offset
    end = bench.log.log_end_offset
    bench.send((b"k", b"2"), producer_id=9, producer_epoch=0, base_sequence=2)
    assert bench.log.log_end_offset == end  # known: a duplicate
    bench.send((b"k", b"3"), producer_id=9, producer_epoch=0, base_sequence=3)
    assert bench.log.log_end_offset == end + 1


def test_segments_are_grouped_up_to_the_size_of_one(bench: Bench) -> None:
    for number in range(60):
        bench.send((b"unique%02d" % number, b"x"))
    before = bench.log.segment_base_offsets
    bench.log.config = COMPACT._replace(segment_bytes=1700)
    bench.pass_time()
    assert bench.log.segment_base_offsets[:-1] == before[:-1:2]
    assert len(kept(bench.log)) == 60
    assert max(segment.size_bytes for segment in bench.log.segments) <= 1700


def test_a_log_with_more_keys_than_the_buffer_holds_takes_several_rounds(bench: Bench) -> None:
    bench.settings.log_cleaner_dedupe_buffer_size = 160 * 10
    for _ in range(2):
        for number in range(30):
            bench.send((b"unique%02d" % number, b"x"))
    fill(bench, 3)
    active = bench.log.segment_base_offsets[-1]
    bench.pass_time()
    assert bench.cleaner.completed_cleanings > 3
    assert bench.cleaner.cleaned_offset(bench.log) == active
    assert len([offset for offset, _, _ in kept(bench.log) if offset < active]) <= 33


@pytest.mark.parametrize("codec", list(Codec))
def test_any_log_reads_as_it_should(codec: Codec, bench: Bench) -> None:
    rng = random.Random(int(codec))
    expected: dict[bytes, tuple[int, bytes | None]] = {}
    for _ in range(4):
        for _ in range(60):
            pairs: list[tuple[bytes | None, bytes | None]] = []
            for _ in range(rng.randint(1, 5)):
                key = b"key%d" % rng.randint(0, 40) * rng.choice([1, 1, 20])
                value = None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, 40))
                expected[key] = (bench.log.log_end_offset + len(pairs), value)
                pairs.append((key, value))
            bench.send(*pairs, codec=codec)
        bench.pass_time()
    active = bench.log.segment_base_offsets[-1]
    found = kept(bench.log)
    assert {key: (offset, value) for offset, key, value in found} == expected
    rolled = [key for offset, key, _ in found if offset < active]
    assert len(set(rolled)) == len(rolled)


# When things go wrong.


def test_damage_is_not_touched(bench: Bench) -> None:
    fill(bench)
    first = bench.log.segments[0]
    bench.disk.corrupt(first.log_path, 70)
    before = bench.disk.tree("/data/t-0")
    bench.pass_time()
    assert bench.disk.tree("/data/t-0") == before
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 0
    assert bench.log.failure is None


class Reluctant:
    """A worker whose reports a test gives."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.killed = False
        self.reports: list[Report] = []

    def next_report(self) -> Report:
        return self.reports.pop(0) if self.reports else Failed("was killed", is_permanent=False)

    def kill(self) -> None:
        self.killed = True


def test_a_worker_that_dies_is_tried_again_later(bench: Bench) -> None:
    launched: list[Job] = []
    real = bench.cleaner.workers.start

    def launch(job: Job) -> object:
        launched.append(job)
        return Reluctant(job) if len(launched) == 1 else real(job)

    bench.cleaner.workers.start = launch  # type: ignore[assignment]
    fill(bench)
    bench.pass_time()
    bench.pass_time()
    assert len(launched) == 1
    bench.host.advance(60_000)
    assert (len(launched), bench.cleaner.completed_cleanings) == (2, 1)


@pytest.mark.parametrize("event", ["truncated", "retention", "deleted", "failed"])
def test_a_log_that_changes_under_the_worker_is_let_be(bench: Bench, event: str) -> None:
    fill(bench)
    real = bench.cleaner.workers.start

    def launch(job: Job) -> object:
        worker = real(job)
        report = worker.next_report()
        assert isinstance(report, Cleaned)
        log = bench.log
        if event == "truncated":
            log.truncate_to(3)
        elif event == "retention":
            log.delete_records_before(log.segment_base_offsets[1])
            log.delete_old_segments(bench.host.now_ms())
        elif event == "deleted":
            bench.manager.delete(log, bench.host.now_ms())
        else:
            log.fail(StorageError("gone"))
        reluctant = Reluctant(job)
        reluctant.reports = [report]
        return reluctant

    bench.cleaner.workers.start = launch  # type: ignore[assignment]
    log = bench.log
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 0
    assert bench.cleaner.cleaning == []
    if event in ("truncated", "retention"):
        assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]
        assert kept(log)[0][0] == log.log_start_offset


def test_a_topic_that_was_made_anew_is_not_taken_for_clean(bench: Bench) -> None:
    fill(bench)
    bench.pass_time()
    bench.manager.delete(bench.log, bench.host.now_ms())
    bench.create()
    fill(bench)
    assert bench.cleaner.cleaned_offset(bench.log) is None
    bench.pass_time()
    assert bench.cleaner.completed_cleanings == 2


def checkpoints(bench: Bench) -> dict[str, dict[tuple[str, int], int]]:
    """What the file of each directory says."""
    return {path: read_offsets(bench.disk, f"{path}/{CLEANED_OFFSETS}") for path in bench.log_dirs}


def in_two_directories() -> Bench:
    """A log in the first of two directories, cleaned."""
    bench = Bench(log_dirs=("/one", "/two"))
    bench.create()
    fill(bench)
    bench.pass_time()
    assert list(checkpoints(bench)["/one"]) == [("t", 0)]
    assert not checkpoints(bench)["/two"]
    assert bench.disk.read(f"/two/{CLEANED_OFFSETS}") == b""
    return bench


def test_a_log_that_moves_takes_its_entry_along() -> None:
    bench = in_two_directories()
    cleaned = checkpoints(bench)["/one"]
    old = bench.log
    target = bench.manager.directory("/two")
    assert target is not None
    placed: list[str] = []
    rename = bench.disk.rename

    def noted(old_path: str, path: str) -> None:
        placed.append(path)
        rename(old_path, path)

    bench.disk.rename = noted  # type: ignore[method-assign]
    copy = FutureLog(bench.manager, old, target, bench.host.now_ms())
    copy.log.flush()
    arrival = copy.replace_source(bench.host.now_ms())
    new = arrival.log
    bench.cleaner.handle_log_replaced(old, new)
    arrival.finish()
    bench.host.run_pending()
    assert checkpoints(bench) == {"/one": {}, "/two": cleaned}
    # One that dies between the two leaves an entry too few: Kafka's cleaner dies of one too many.
    names = [path for path in placed if path.endswith(CLEANED_OFFSETS)]
    assert names == [f"/one/{CLEANED_OFFSETS}", f"/two/{CLEANED_OFFSETS}"]
    assert bench.cleaner.cleaned_offset(new) == cleaned["t", 0]


def test_what_is_deleted_leaves_no_entry_behind() -> None:
    bench = in_two_directories()
    bench.manager.delete(bench.log, bench.host.now_ms())
    bench.cleaner.handle_logs_deleted()
    bench.host.run_pending()
    assert checkpoints(bench) == {"/one": {}, "/two": {}}


def test_an_entry_of_a_log_that_is_not_there_goes_at_the_next_start() -> None:
    bench = in_two_directories()
    cleaned = checkpoints(bench)["/one"]
    write_offsets(bench.disk, f"/one/{CLEANED_OFFSETS}", {**cleaned, ("gone", 3): 5})
    write_offsets(bench.disk, f"/two/{CLEANED_OFFSETS}", {("t", 0): 3})
    bench.cleaner.stop()
    bench.manager.shutdown(bench.host.now_ms())
    bench.open()
    assert checkpoints(bench) == {"/one": cleaned, "/two": {}}
    assert bench.cleaner.cleaned_offset(bench.log) == cleaned["t", 0]


def test_a_garbled_checkpoint_is_made_anew() -> None:
    bench = in_two_directories()
    bench.disk.write(f"/one/{CLEANED_OFFSETS}", b"0\n7\n", sync=True)
    bench.cleaner.stop()
    bench.manager.shutdown(bench.host.now_ms())
    bench.open()
    assert checkpoints(bench) == {"/one": {}, "/two": {}}
    assert bench.cleaner.cleaned_offset(bench.log) is None


def test_a_round_that_changes_nothing_tells_what_stays(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        bench.send((b"k%d" % number, b"v"))
    rolled = sum(segment.size_bytes for segment in bench.log.segments[:-1])
    with caplog.at_level(logging.INFO, "kwire.cleaner"):
        bench.pass_time()
    assert f"{rolled} of {rolled} bytes" in caplog.text


def test_stopping_amid_a_swap_completes_it(bench: Bench) -> None:
    fill(bench)
    syncs: list[Callable[[], None]] = []
    real = bench.host.run_in_worker

    def hold(work: Callable[[], object], done: Callable[[object], None]) -> None:
        if "sync" in getattr(work, "__name__", ""):
            syncs.append(lambda: real(work, done))
            if len(syncs) == 2:
                return
        real(work, done)

    bench.host.run_in_worker = hold  # type: ignore[method-assign, assignment]
    bench.host.advance(BACKOFF_MS)
    assert len(syncs) == 2
    assert [name for name in bench.names() if name.endswith(".swap")]
    expected = kept(bench.log)
    bench.cleaner.stop()
    assert not [name for name in bench.names() if name.endswith(".swap")]
    assert kept(bench.log) == expected


@pytest.mark.parametrize(
    "report", [Cleaned(5, [5, 7], 100, 3, 6), Done(9, 1, 2, 3, 4, 5), Failed("reason", is_permanent=True)]
)
def test_reports_travel_as_lines(report: Report) -> None:
    assert report_from_line(report_line(report)) == report
    assert isinstance(report_from_line(""), Failed)
    assert isinstance(report_from_line("nonsense"), Failed)
