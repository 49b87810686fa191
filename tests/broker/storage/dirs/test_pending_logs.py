"""New logs come to their places: they tell the ids of their topics."""

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
from tests.broker.storage.log_bench import NOW_MS, batch, values

CONFIG = LogConfig(segment_index_bytes=1200)
FIRST, SECOND = Uuid(b"\1" * 16), Uuid(b"\2" * 16)


class Bench:
    """A log directory, and a host that does its work when the test says so."""

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

    def work(self) -> None:
        self.held.pop(0).deliver()
        self.host.run_pending()

    def told(self, partition: int = 0) -> Uuid | None:
        return read_topic_id(self.disk, f"/a/t-{partition}")

    @property
    def is_online(self) -> bool:
        return not self.logs.directories()[0].offline


@pytest.fixture
def bench() -> Bench:
    return Bench()


def append(log: Log, value: bytes) -> None:
    log.append(batch(value), leader_epoch=0, now_ms=NOW_MS)
    log.commit()
    log.high_watermark = log.log_end_offset


def test_a_worker_syncs_before_the_file_has_its_name(bench: Bench) -> None:
    bench.create()
    assert bench.told() is None
    bench.work()
    assert bench.told() == FIRST
    assert bench.held == []


@pytest.mark.parametrize("last", [0, -1])
def test_who_waits_is_told_when_the_log_tells(bench: Bench, last: int) -> None:
    """A worker is on it already, and another one is sent: whichever is done first."""
    log = bench.create()
    append(log, b"a")
    assert (log.is_recoverable, log.needs_flush(0)) == (False, True)
    told: list[Uuid | None] = []
    bench.logs.pending_logs.when_recoverable(log, bench.host, lambda: told.append(bench.told()))
    assert told == []
    bench.held.insert(0, bench.held.pop(last))
    bench.work()
    assert told == [FIRST]
    assert (log.is_recoverable, log.needs_flush(0)) == (True, False)
    bench.work()
    assert (told, bench.held, bench.is_online) == ([FIRST], [], True)


def test_who_waits_does_not_wait_for_the_others(bench: Bench) -> None:
    logs = [bench.logs.create("t", partition, FIRST, CONFIG, NOW_MS) for partition in range(70)]
    bench.logs.pending_logs.flush_partition_metadata(bench.host)
    told: list[str] = []
    for log in logs[:49:-1]:
        bench.logs.pending_logs.when_recoverable(log, bench.host, partial(told.append, log.name))
    assert len(bench.held) == 1 + 8
    others = bench.held.pop(0)
    while bench.held:
        bench.work()
    assert told == [log.name for log in logs[:49:-1]]
    others.deliver()
    bench.host.run_pending()
    while bench.held:
        bench.work()
    assert [log.name for log in logs if not log.is_recoverable] == []


def test_checkpoints_are_written_once_for_all_that_they_tell_of(bench: Bench) -> None:
    for generation in (FIRST, SECOND):
        logs = [bench.logs.create("t", partition, generation, CONFIG, NOW_MS) for partition in range(70)]
        bench.logs.pending_logs.flush_partition_metadata(bench.host)
        steps = 0
        while bench.held:
            bench.work()
            steps += 1
        # Three turns; before the first one of the second the files are written, and their names synced.
        assert steps == (3 if generation == FIRST else 5)
        append(logs[0], b"a")
        bench.logs.write_checkpoints()
        for log in logs:
            assert log.is_recoverable
            bench.logs.delete(log, NOW_MS)


def test_who_waits_for_a_log_that_goes_or_fails_is_told_too(bench: Bench) -> None:
    gone, failed = bench.create(), bench.create(1)
    told: list[str] = []
    for log in (gone, failed):
        bench.logs.pending_logs.when_recoverable(log, bench.host, partial(told.append, log.name))
    bench.logs.delete(gone, NOW_MS)
    bench.work()
    assert told == ["t-0"]
    bench.disk.fails_after = 0
    while bench.held:
        bench.work()
    assert (told, bench.is_online) == (["t-0", "t-1"], False)


def test_many_take_turns(bench: Bench) -> None:
    for partition in range(70):
        bench.logs.create("t", partition, FIRST, CONFIG, NOW_MS)
    bench.logs.pending_logs.flush_partition_metadata(bench.host)
    bench.logs.pending_logs.flush_partition_metadata(bench.host)
    for count in (32, 64, 70):
        bench.work()
        assert [bench.told(partition) is not None for partition in range(70)].count(True) == count
    assert bench.held == []


def test_a_log_that_is_gone_by_then_leaves_the_next_of_its_name_alone(bench: Bench) -> None:
    bench.logs.delete(bench.create(), NOW_MS)
    log = bench.create(topic_id=SECOND)
    bench.work()
    assert bench.told() is None
    bench.work()
    assert (bench.told(), log.topic_id) == (SECOND, SECOND)
    assert bench.is_online


@pytest.mark.parametrize("step", ["sync", "rename"])
def test_a_disk_that_fails_takes_the_directory_offline(bench: Bench, step: str) -> None:
    bench.create()
    bench.disk.fails_after = ["sync", "rename"].index(step)
    bench.work()
    assert not bench.is_online


def test_what_is_flushed_is_the_topic_s_after_a_loss_of_power(bench: Bench) -> None:
    log = bench.create()
    append(log, b"a")
    log.flush()
    bench.disk.power_cut()
    bench.open()
    again = bench.logs.get("t", 0)
    assert again is not None
    assert (again.topic_id, values(again)) == (FIRST, [b"a"])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("works", [0, 1])
def test_a_loss_of_power_leaves_the_id_whole_or_not_there(bench: Bench, works: int, seed: int) -> None:
    bench.create()
    for _ in range(works):
        bench.work()
    bench.disk.power_cut(random.Random(seed))
    assert not bench.disk.exists("/a/t-0") or bench.told() in (FIRST, None)
