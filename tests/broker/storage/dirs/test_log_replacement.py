"""A copy comes to the place of its log, for which it serves already."""

from __future__ import annotations

import random

import pytest

from kwire.broker.storage.checkpoints import OffsetCheckpoints
from kwire.broker.storage.dirs.future_log import FutureLog
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.dirs.log_replacement import LogReplacement
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.host.loggers import STORAGE_LOGGER
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost
from kwire.wire.errors import ApiError
from kwire.wire.primitives import Uuid
from tests.broker.storage.log_bench import NOW_MS, batch

TOPIC_ID = Uuid(b"\1" * 16)
CONFIG = LogConfig(segment_bytes=4096, segment_index_bytes=1200, index_interval_bytes=1)
STEPS = 3


class Bench:
    """A log of two records in one directory, and its copy in another."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(random.Random(1))
        self.host = VirtualHost()
        self.held = self.host.hold_work()
        self.open()
        self.source = self.logs.create("t", 0, TOPIC_ID, CONFIG, NOW_MS)
        for _ in range(2):
            append(self.source)
        self.source.flush()
        directory = self.logs.directory("/two")
        assert directory is not None
        self.future = FutureLog(self.logs, self.source, directory, NOW_MS)
        while (piece := self.future.next_region(NOW_MS)) is not None:
            self.future.append(piece.read(), NOW_MS)
        self.copy = self.future.log
        self.logs.pending_logs.flush_partition_metadata(self.host)
        self.work()
        self.copy.flush()

    def open(self) -> None:
        self.logs = LogManager(self.disk, ["/one", "/two"], rng=random.Random(0), logger=STORAGE_LOGGER)
        self.logs.open(NOW_MS)

    def arrive(self, steps: int = 0) -> LogReplacement:
        replacement = self.future.replace_source(NOW_MS)
        self.logs.pending_logs.start_replacement(replacement, self.host)
        for _ in range(steps):
            self.work()
        return replacement

    def work(self) -> None:
        self.held.pop(0).deliver()
        self.host.run_pending()

    @property
    def kinds(self) -> list[str]:
        """What there is of the partition, by directory."""
        return [
            f"{path}: {name.rpartition('-')[2]}"
            for path in ("/one", "/two")
            for name in self.disk.subdirectories(path)
        ]


def append(log: Log, value: bytes = b"value") -> None:
    log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    log.high_watermark = log.log_end_offset


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_takes_the_place_when_the_old_one_has_left_for_good(bench: Bench) -> None:
    kinds = [bench.kinds]
    bench.arrive()
    while bench.held:
        kinds.append(bench.kinds)
        bench.work()
    kinds.append(bench.kinds)
    assert kinds == [
        ["/one: 0", "/two: future"],
        ["/one: 0", "/two: future"],
        ["/one: delete", "/two: future"],
        ["/one: delete", "/two: 0"],
        ["/one: delete", "/two: 0"],
    ]


def test_it_serves_from_the_beginning_and_nobody_is_told_before_the_end(bench: Bench) -> None:
    told: list[int] = []
    bench.arrive()
    log = bench.logs.get("t", 0)
    assert log is bench.copy
    assert not log.has_unrecoverable_records
    bench.logs.pending_logs.when_recoverable(log, bench.host, lambda: told.append(len(bench.held)))
    for number in range(STEPS):
        append(log, b"v" * 3000)  # each in a segment of its own
        assert (log.has_unrecoverable_records, log.is_recoverable, told) == (True, False, [])
        assert log.read(number, max_bytes=1, up_to_offset=log.log_end_offset).read()
        bench.work()
    assert (log.has_unrecoverable_records, log.is_recoverable, told) == (False, True, [0])
    append(log)
    log.close()
    bench.disk.kill()
    bench.open()
    again = bench.logs.get("t", 0)
    assert again is not None
    assert (again.directory, again.log_end_offset) == ("/two/t-0", 6)
    for offset in range(6):
        assert again.read(offset, max_bytes=1, up_to_offset=6).read()


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_a_broker_that_ends_leaves_one_directory(bench: Bench, steps: int) -> None:
    bench.arrive(steps)
    append(bench.copy)
    bench.logs.shutdown(NOW_MS)
    assert bench.kinds == ["/one: delete", "/two: 0"]
    while bench.held:
        bench.work()  # which ends in vain
    bench.disk.kill()
    bench.open()
    log = bench.logs.get("t", 0)
    assert log is not None
    assert (log.directory, log.log_end_offset) == ("/two/t-0", 3)


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_a_topic_that_is_deleted_takes_the_old_one_along(bench: Bench, steps: int) -> None:
    told: list[str] = []
    bench.arrive(steps)
    if steps < STEPS:
        bench.logs.pending_logs.when_recoverable(bench.copy, bench.host, lambda: told.append("over"))
    bench.logs.delete(bench.copy, NOW_MS)
    while bench.held:
        bench.work()
    assert bench.kinds == ["/one: delete", "/two: delete"]
    assert told == ["over"] * (steps < STEPS)
    for now_ms in (NOW_MS, NOW_MS + 100_000):
        bench.logs.tick(now_ms)
    assert bench.kinds == []


@pytest.mark.parametrize(("steps", "left"), [(0, "0"), (1, "0"), (2, "delete")])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_where_its_disk_fails_the_old_one_is_kept_while_it_can_be(
    bench: Bench, steps: int, left: str, is_deleted: bool
) -> None:
    told: list[str] = []
    bench.arrive(steps)
    bench.logs.pending_logs.when_recoverable(bench.copy, bench.host, lambda: told.append("over"))
    bench.disk.broken_directories["/two"] = False
    while bench.held:
        bench.work()
    assert bench.copy.failure is not None
    assert told == ["over"]
    assert [kind for kind in bench.kinds if kind.startswith("/one")] == [f"/one: {left}"]
    bench.logs.write_checkpoints()
    assert (("t", 0) in OffsetCheckpoints.read(bench.disk, "/one")[0]) == (left == "0")
    if is_deleted:
        bench.logs.delete(bench.copy, NOW_MS)
        assert [kind for kind in bench.kinds if kind.startswith("/one")] == ["/one: delete"]
        again = bench.logs.create("t", 0, Uuid(b"\2" * 16), CONFIG, NOW_MS)
        assert again.directory == "/one/t-0"
    bench.logs.shutdown(NOW_MS)
    bench.disk.kill()
    bench.open()
    ends = {log.directory: log.log_end_offset for log in bench.logs.logs()}
    assert ends.get("/one/t-0") == (0 if is_deleted else 2 if left == "0" else None)


@pytest.mark.parametrize("steps", range(2))
def test_it_goes_on_where_the_disk_of_the_old_one_fails(bench: Bench, steps: int) -> None:
    bench.arrive(steps)
    bench.disk.broken_directories["/one"] = False
    while bench.held:
        bench.work()
    assert [directory.offline for directory in bench.logs.directories()] == [True, False]
    assert (bench.copy.directory, bench.copy.is_recoverable) == ("/two/t-0", True)


def test_a_copy_that_fails_before_leaves_all_as_it_was(bench: Bench) -> None:
    append(bench.source)
    bench.disk.broken_directories["/two"] = False
    with pytest.raises((StorageError, ApiError)):
        bench.future.replace_source(NOW_MS)
    assert bench.logs.get("t", 0) is bench.source
    assert bench.source.failure is None


def test_what_is_on_its_way_out_of_the_copy_is_removed_where_it_lies_then(bench: Bench) -> None:
    for _ in range(3):
        append(bench.source, b"v" * 3000)
    replacement = bench.arrive()
    bench.logs.tick(NOW_MS)
    replacement.log.delete_records_before(4)
    assert replacement.log.delete_old_segments(NOW_MS) == 2
    while bench.held:
        bench.work()

    def deleted() -> list[str]:
        return [name for name in bench.disk.names("/two/t-0") if name.endswith(".deleted")]

    assert deleted()
    for now_ms in (NOW_MS, NOW_MS + 100_000, NOW_MS + 100_001, NOW_MS + 100_002):
        bench.logs.tick(now_ms)
    assert not deleted()


def test_checkpoints_tell_of_the_old_one_until_it_has_left_for_good(bench: Bench) -> None:
    told = []
    bench.arrive()
    while bench.held:
        bench.logs.write_checkpoints()
        told.append([bool(OffsetCheckpoints.read(bench.disk, path)[0]) for path in ("/one", "/two")])
        assert bench.logs.logs_in("/one") == []
        bench.work()
    assert told == [[True, True], [True, True], [False, True]]
