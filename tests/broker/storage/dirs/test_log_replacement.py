"""Replacement of a log by its future log, which serves from the start of the replacement."""

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
from tests.broker.storage.log_harness import NOW_MS, batch

TOPIC_ID = Uuid(b"\1" * 16)
CONFIG = LogConfig(segment_bytes=4096, segment_index_bytes=1200, index_interval_bytes=1)
STEPS = 3


class ReplacementHarness:
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
        self.run_worker()
        self.copy.flush()

    def open(self) -> None:
        self.logs = LogManager(self.disk, ["/one", "/two"], rng=random.Random(0), logger=STORAGE_LOGGER)
        self.logs.open(NOW_MS)

    def start_replacement(self, steps: int = 0) -> LogReplacement:
        replacement = self.future.replace_source(NOW_MS)
        self.logs.pending_logs.start_replacement(replacement, self.host)
        for _ in range(steps):
            self.run_worker()
        return replacement

    def run_worker(self) -> None:
        self.held.pop(0).deliver()
        self.host.run_pending()

    @property
    def directory_suffixes(self) -> list[str]:
        """The suffixes of the partition's directories."""
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
def harness() -> ReplacementHarness:
    return ReplacementHarness()


def test_replacement_is_renamed_after_the_old_log(harness: ReplacementHarness) -> None:
    directory_suffixes = [harness.directory_suffixes]
    harness.start_replacement()
    while harness.held:
        directory_suffixes.append(harness.directory_suffixes)
        harness.run_worker()
    directory_suffixes.append(harness.directory_suffixes)
    assert directory_suffixes == [
        ["/one: 0", "/two: future"],
        ["/one: 0", "/two: future"],
        ["/one: delete", "/two: future"],
        ["/one: delete", "/two: 0"],
        ["/one: delete", "/two: 0"],
    ]


def test_new_log_serves_at_once_and_callbacks_run_at_the_end(harness: ReplacementHarness) -> None:
    callbacks: list[int] = []
    harness.start_replacement()
    log = harness.logs.get("t", 0)
    assert log is harness.copy
    assert not log.has_unrecoverable_records
    harness.logs.pending_logs.when_recoverable(log, harness.host, lambda: callbacks.append(len(harness.held)))
    for number in range(STEPS):
        append(log, b"v" * 3000)  # one segment each
        assert (log.has_unrecoverable_records, log.is_recoverable, callbacks) == (True, False, [])
        assert log.read(number, max_bytes=1, up_to_offset=log.log_end_offset).read()
        harness.run_worker()
    assert (log.has_unrecoverable_records, log.is_recoverable, callbacks) == (False, True, [0])
    append(log)
    log.close()
    harness.disk.kill()
    harness.open()
    again = harness.logs.get("t", 0)
    assert again is not None
    assert (again.directory, again.log_end_offset) == ("/two/t-0", 6)
    for offset in range(6):
        assert again.read(offset, max_bytes=1, up_to_offset=6).read()


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_shutdown_during_a_replacement_leaves_one_directory(harness: ReplacementHarness, steps: int) -> None:
    harness.start_replacement(steps)
    append(harness.copy)
    harness.logs.shutdown(NOW_MS)
    assert harness.directory_suffixes == ["/one: delete", "/two: 0"]
    while harness.held:
        harness.run_worker()  # the worker's result is ignored
    harness.disk.kill()
    harness.open()
    log = harness.logs.get("t", 0)
    assert log is not None
    assert (log.directory, log.log_end_offset) == ("/two/t-0", 3)


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_topic_deletion_during_a_replacement_deletes_both_logs(
    harness: ReplacementHarness, steps: int
) -> None:
    callbacks: list[str] = []
    harness.start_replacement(steps)
    if steps < STEPS:
        harness.logs.pending_logs.when_recoverable(
            harness.copy, harness.host, lambda: callbacks.append("over")
        )
    harness.logs.delete(harness.copy, NOW_MS)
    while harness.held:
        harness.run_worker()
    assert harness.directory_suffixes == ["/one: delete", "/two: delete"]
    assert callbacks == ["over"] * (steps < STEPS)
    for now_ms in (NOW_MS, NOW_MS + 100_000):
        harness.logs.tick(now_ms)
    assert harness.directory_suffixes == []


@pytest.mark.parametrize(("steps", "left"), [(0, "0"), (1, "0"), (2, "delete")])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_failure_of_the_new_directory_keeps_the_old_log(
    harness: ReplacementHarness, steps: int, left: str, is_deleted: bool
) -> None:
    callbacks: list[str] = []
    harness.start_replacement(steps)
    harness.logs.pending_logs.when_recoverable(harness.copy, harness.host, lambda: callbacks.append("over"))
    harness.disk.broken_directories["/two"] = False
    while harness.held:
        harness.run_worker()
    assert harness.copy.failure is not None
    assert callbacks == ["over"]
    assert [kind for kind in harness.directory_suffixes if kind.startswith("/one")] == [f"/one: {left}"]
    harness.logs.write_checkpoints()
    assert (("t", 0) in OffsetCheckpoints.read(harness.disk, "/one")[0]) == (left == "0")
    if is_deleted:
        harness.logs.delete(harness.copy, NOW_MS)
        assert [kind for kind in harness.directory_suffixes if kind.startswith("/one")] == ["/one: delete"]
        again = harness.logs.create("t", 0, Uuid(b"\2" * 16), CONFIG, NOW_MS)
        assert again.directory == "/one/t-0"
    harness.logs.shutdown(NOW_MS)
    harness.disk.kill()
    harness.open()
    ends = {log.directory: log.log_end_offset for log in harness.logs.logs()}
    assert ends.get("/one/t-0") == (0 if is_deleted else 2 if left == "0" else None)


@pytest.mark.parametrize("steps", range(2))
def test_failure_of_the_old_directory_does_not_stop_the_replacement(
    harness: ReplacementHarness, steps: int
) -> None:
    harness.start_replacement(steps)
    harness.disk.broken_directories["/one"] = False
    while harness.held:
        harness.run_worker()
    assert [directory.offline for directory in harness.logs.directories()] == [True, False]
    assert (harness.copy.directory, harness.copy.is_recoverable) == ("/two/t-0", True)


def test_failure_before_the_replacement_changes_nothing(harness: ReplacementHarness) -> None:
    append(harness.source)
    harness.disk.broken_directories["/two"] = False
    with pytest.raises((StorageError, ApiError)):
        harness.future.replace_source(NOW_MS)
    assert harness.logs.get("t", 0) is harness.source
    assert harness.source.failure is None


def test_deleted_segments_are_removed_from_the_renamed_directory(harness: ReplacementHarness) -> None:
    for _ in range(3):
        append(harness.source, b"v" * 3000)
    replacement = harness.start_replacement()
    harness.logs.tick(NOW_MS)
    replacement.log.delete_records_before(4)
    assert replacement.log.delete_old_segments(NOW_MS) == 2
    while harness.held:
        harness.run_worker()

    def deleted() -> list[str]:
        return [name for name in harness.disk.names("/two/t-0") if name.endswith(".deleted")]

    assert deleted()
    for now_ms in (NOW_MS, NOW_MS + 100_000, NOW_MS + 100_001, NOW_MS + 100_002):
        harness.logs.tick(now_ms)
    assert not deleted()


def test_checkpoints_keep_the_old_log_until_it_is_removed(harness: ReplacementHarness) -> None:
    callbacks = []
    harness.start_replacement()
    while harness.held:
        harness.logs.write_checkpoints()
        callbacks.append([bool(OffsetCheckpoints.read(harness.disk, path)[0]) for path in ("/one", "/two")])
        assert harness.logs.logs_in("/one") == []
        harness.run_worker()
    assert callbacks == [[True, True], [True, True], [False, True]]
