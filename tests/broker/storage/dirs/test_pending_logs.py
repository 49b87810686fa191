"""New logs until their topic id is durable."""

from __future__ import annotations

import random
from functools import partial

import pytest

from kwire.broker.storage.checkpoints import read_topic_id
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.log.log import Log
from kwire.broker.storage.log.log_config import LogConfig
from kwire.host.loggers import STORAGE_LOGGER
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost, WorkerTask
from kwire.wire.primitives import Uuid
from tests.broker.storage.log_harness import NOW_MS, batch, values

CONFIG = LogConfig(segment_index_bytes=1200)
FIRST, SECOND = Uuid(b"\1" * 16), Uuid(b"\2" * 16)


class PendingLogsHarness:
    """A log directory, and a host with deferred workers."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(random.Random(1))
        self.host = VirtualHost()
        self.held: list[WorkerTask] = self.host.hold_work()
        self.open()

    def open(self) -> None:
        self.logs = LogManager(self.disk, ["/a"], rng=random.Random(0), logger=STORAGE_LOGGER)
        self.logs.open(NOW_MS)

    def create(self, partition: int = 0, topic_id: Uuid = FIRST) -> Log:
        log = self.logs.create("t", partition, topic_id, CONFIG, NOW_MS)
        self.logs.pending_logs.flush_partition_metadata(self.host)
        return log

    def run_worker(self) -> None:
        self.held.pop(0).deliver()
        self.host.run_pending()

    def topic_id_on_disk(self, partition: int = 0) -> Uuid | None:
        return read_topic_id(self.disk, f"/a/t-{partition}")

    @property
    def is_online(self) -> bool:
        return not self.logs.directories()[0].offline


@pytest.fixture
def harness() -> PendingLogsHarness:
    return PendingLogsHarness()


def append(log: Log, value: bytes) -> None:
    log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    log.high_watermark = log.log_end_offset


def test_worker_writes_the_topic_id(harness: PendingLogsHarness) -> None:
    harness.create()
    assert harness.topic_id_on_disk() is None
    harness.run_worker()
    assert harness.topic_id_on_disk() == FIRST
    assert harness.held == []


@pytest.mark.parametrize("last", [0, -1])
def test_callback_runs_once_the_topic_id_is_written(harness: PendingLogsHarness, last: int) -> None:
    """`create` has queued one worker task, and `when_recoverable` queues another. Either may run first."""
    log = harness.create()
    append(log, b"a")
    assert (log.is_recoverable, log.needs_flush(0)) == (False, True)
    callbacks: list[Uuid | None] = []
    harness.logs.pending_logs.when_recoverable(
        log, harness.host, lambda: callbacks.append(harness.topic_id_on_disk())
    )
    assert callbacks == []
    harness.held.insert(0, harness.held.pop(last))
    harness.run_worker()
    assert callbacks == [FIRST]
    assert (log.is_recoverable, log.needs_flush(0)) == (True, False)
    harness.run_worker()
    assert (callbacks, harness.held, harness.is_online) == ([FIRST], [], True)


def test_callbacks_do_not_wait_for_logs_of_other_batches(harness: PendingLogsHarness) -> None:
    logs = [harness.logs.create("t", partition, FIRST, CONFIG, NOW_MS) for partition in range(70)]
    harness.logs.pending_logs.flush_partition_metadata(harness.host)
    callbacks: list[str] = []
    for log in logs[:49:-1]:
        harness.logs.pending_logs.when_recoverable(log, harness.host, partial(callbacks.append, log.name))
    assert len(harness.held) == 1 + 8
    others = harness.held.pop(0)
    while harness.held:
        harness.run_worker()
    assert callbacks == [log.name for log in logs[:49:-1]]
    others.deliver()
    harness.host.run_pending()
    while harness.held:
        harness.run_worker()
    assert [log.name for log in logs if not log.is_recoverable] == []


def test_checkpoints_are_written_once_for_all_recreated_logs(harness: PendingLogsHarness) -> None:
    for generation in (FIRST, SECOND):
        logs = [harness.logs.create("t", partition, generation, CONFIG, NOW_MS) for partition in range(70)]
        harness.logs.pending_logs.flush_partition_metadata(harness.host)
        steps = 0
        while harness.held:
            harness.run_worker()
            steps += 1
        # Three turns; in the second round, the checkpoint files are written and synced before the first turn.
        assert steps == (3 if generation == FIRST else 5)
        append(logs[0], b"a")
        harness.logs.write_checkpoints()
        for log in logs:
            assert log.is_recoverable
            harness.logs.delete(log, NOW_MS)


def test_callbacks_run_for_deleted_and_failed_logs(harness: PendingLogsHarness) -> None:
    gone, failed = harness.create(), harness.create(1)
    callbacks: list[str] = []
    for log in (gone, failed):
        harness.logs.pending_logs.when_recoverable(log, harness.host, partial(callbacks.append, log.name))
    harness.logs.delete(gone, NOW_MS)
    harness.run_worker()
    assert callbacks == ["t-0"]
    harness.disk.fails_after = 0
    while harness.held:
        harness.run_worker()
    assert (callbacks, harness.is_online) == (["t-0", "t-1"], False)


def test_many_logs_are_written_in_batches(harness: PendingLogsHarness) -> None:
    for partition in range(70):
        harness.logs.create("t", partition, FIRST, CONFIG, NOW_MS)
    harness.logs.pending_logs.flush_partition_metadata(harness.host)
    harness.logs.pending_logs.flush_partition_metadata(harness.host)
    for count in (32, 64, 70):
        harness.run_worker()
        assert [harness.topic_id_on_disk(partition) is not None for partition in range(70)].count(
            True
        ) == count
    assert harness.held == []


def test_deleted_log_does_not_affect_its_successor(harness: PendingLogsHarness) -> None:
    harness.logs.delete(harness.create(), NOW_MS)
    log = harness.create(topic_id=SECOND)
    harness.run_worker()
    assert harness.topic_id_on_disk() is None
    harness.run_worker()
    assert (harness.topic_id_on_disk(), log.topic_id) == (SECOND, SECOND)
    assert harness.is_online


@pytest.mark.parametrize("step", ["sync", "rename"])
def test_disk_error_takes_the_directory_offline(harness: PendingLogsHarness, step: str) -> None:
    harness.create()
    harness.disk.fails_after = ["sync", "rename"].index(step)
    harness.run_worker()
    assert not harness.is_online


def test_flushed_records_keep_their_topic_id_after_power_loss(harness: PendingLogsHarness) -> None:
    log = harness.create()
    append(log, b"a")
    log.flush()
    harness.disk.power_cut()
    harness.open()
    again = harness.logs.get("t", 0)
    assert again is not None
    assert (again.topic_id, values(again)) == (FIRST, [b"a"])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("works", [0, 1])
def test_topic_id_is_complete_or_absent_after_power_loss(
    harness: PendingLogsHarness, works: int, seed: int
) -> None:
    harness.create()
    for _ in range(works):
        harness.run_worker()
    harness.disk.power_cut(random.Random(seed))
    assert not harness.disk.exists("/a/t-0") or harness.topic_id_on_disk() in (FIRST, None)
