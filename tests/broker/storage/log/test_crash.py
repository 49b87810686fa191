"""The process or the machine dies, at every single operation of the disk: what was promised must be there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kwire.broker.storage.disk import RealDisk, StorageError
from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.wire.errors import ApiError
from tests.broker.storage.log_bench import NOW_MS, LogBench, batch, numbered

MOST_OPERATIONS = 2000


def produced(sequence: int) -> memoryview:
    return batch(
        b"%03d" % sequence,
        timestamp=NOW_MS + sequence,
        producer_id=5,
        producer_epoch=0,
        base_sequence=sequence,
    )


@dataclass
class Life:
    """What was promised to the outside before the crash."""

    acknowledged: int = 0
    """Records 0 up to this were acknowledged."""
    attempted: int = 0
    durable: int = 0
    """Records 0 up to this were flushed."""
    start: int = 0
    """The log start offset that was last asked for."""


def crashes(disks: Callable[[], MemoryDisk] = MemoryDisk) -> Iterator[tuple[MemoryDisk, LogBench, int]]:
    """A fresh disk that fails from its n-th operation on, for n from 0; until the caller needs no more."""
    for operations in range(MOST_OPERATIONS):
        disk = disks()
        bench = LogBench(disk)
        bench.config = bench.config._replace(
            segment_bytes=3 * len(produced(0)), index_interval_bytes=1, retention_ms=-1
        )
        disk.fails_after = operations
        yield disk, bench, operations
    pytest.fail(f"more than {MOST_OPERATIONS} operations")


def live(bench: LogBench, life: Life) -> None:
    """Append, roll, flush, forget the beginning, close. StorageError or ApiError when the disk fails."""
    log = bench.open()
    for sequence in range(11):
        life.attempted = sequence + 1
        bench.send(log, produced(sequence))
        life.acknowledged = sequence + 1
        if sequence in (1, 4, 5):
            log.flush()
            life.durable = sequence + 1
        if sequence == 7:
            life.start = 4
            log.delete_records_before(4)
            log.delete_old_segments(bench.now_ms)
    log.flush()
    life.durable = life.acknowledged
    log.close()


def check_that_all_is_well(log: Log, bench: LogBench, least: int, life: Life) -> None:
    """The log holds a run of records from its start on; the producer can go on as if nothing had happened."""
    found = numbered(log)
    assert found == [(offset, b"%03d" % offset) for offset in range(log.log_start_offset, log.log_end_offset)]
    assert least <= log.log_end_offset <= life.attempted
    assert log.log_start_offset <= max(0, life.start)
    recovered_end = log.log_end_offset
    for sequence in range(max(0, recovered_end - 1), life.attempted + 2):
        sent = bench.send(log, produced(sequence))
        assert (sent.first_offset, sent.is_duplicate) == (sequence, sequence < recovered_end)
    end = log.log_end_offset
    assert [offset for offset, _ in numbered(log)] == list(range(log.log_start_offset, end))
    for offset in range(log.log_start_offset, end):
        by_time = log.offset_for_timestamp(NOW_MS + offset)
        assert by_time is not None
        assert by_time.offset == offset
    bench.close(log)
    reopened = bench.open(clean=True)
    assert (reopened.log_end_offset, reopened.leader_epochs) == (end, log.leader_epochs)


@pytest.mark.parametrize("torn_bytes", [0, 1, 40, 75])
def test_a_killed_process_loses_nothing_that_was_acknowledged(torn_bytes: int) -> None:
    for disk, bench, _ in crashes():
        disk.torn_bytes = torn_bytes
        life = Life()
        try:
            live(bench, life)
        except (StorageError, ApiError):
            finished = False
        else:
            finished = True
        disk.kill()
        log = bench.open(recovery_point=life.durable)
        check_that_all_is_well(log, bench, life.acknowledged, life)
        if finished:
            return


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_loses_nothing_that_was_flushed(seed: int) -> None:
    for disk, bench, operations in crashes():
        life = Life()
        try:
            live(bench, life)
        except (StorageError, ApiError):
            finished = False
        else:
            finished = True
        disk.power_cut(random.Random(f"{seed} {operations}"))
        log = bench.open(recovery_point=life.durable, log_start_offset=0)
        assert log.log_end_offset >= life.durable
        found = numbered(log)
        assert [value for _, value in found] == [b"%03d" % offset for offset, _ in found]
        kept = {offset for offset, _ in found}
        assert set(range(max(life.start, log.log_start_offset), life.durable)) <= kept
        assert log.log_start_offset <= life.start
        bench.append(log, b"new")
        assert numbered(log)[-1][1] == b"new"
        if finished:
            return


def test_recovery_itself_may_be_killed_anywhere() -> None:
    for disk, bench, operations in crashes():
        life = Life()
        disk.fails_after = None
        log = bench.open()
        for sequence in range(8):
            bench.send(log, produced(sequence))
        disk.open(bench.path(6, ".log")).write_at(disk.size(bench.path(6, ".log")), [b"torn"])
        life.acknowledged = life.attempted = 8
        disk.fails_after = operations
        try:
            bench.open()
        except StorageError:
            finished = False
        else:
            finished = True
        disk.kill()
        check_that_all_is_well(bench.open(), bench, 8, life)
        if finished:
            return


@pytest.mark.parametrize("offset", [2, 3, 5])
def test_truncation_may_be_killed_anywhere(offset: int) -> None:
    for disk, bench, operations in crashes():
        disk.fails_after = None
        log = bench.open()
        for sequence in range(8):
            bench.send(log, produced(sequence))
        disk.fails_after = operations
        try:
            log.truncate_to(offset)
        except StorageError:
            finished = False
        else:
            finished = True
        disk.kill()
        recovered = bench.open()
        assert offset <= recovered.log_end_offset <= 8
        check_that_all_is_well(recovered, bench, offset, Life(attempted=8))
        if finished:
            return


@pytest.mark.parametrize("seed", range(5))
def test_what_was_cut_does_not_come_back_behind_what_the_next_life_appends(seed: int) -> None:
    """The process dies while it cuts the log, and the machine when the next one has appended a little."""
    rng = random.Random(seed)
    for disk, bench, operations in crashes(lambda: MemoryDisk(rng)):
        disk.fails_after = None
        log = bench.open()
        for sequence in range(8):
            bench.send(log, produced(sequence))
        log.flush()
        disk.fails_after = operations
        try:
            log.truncate_to(2)
        except StorageError:
            finished = False
        else:
            finished = True
        disk.kill()
        second = bench.open()
        if second.log_end_offset == 2:
            second.append(batch(b"new"), leader_epoch=9, now_ms=NOW_MS)
            second.commit()
        disk.power_cut()
        third = bench.open(recovery_point=2)
        found = numbered(third)
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert (2, b"new") not in found or len(found) == 3
        if finished:
            return


def test_a_log_that_fails_keeps_what_it_had_for_the_next_start() -> None:
    """The disk fails for a moment only: nothing refused may appear among what is acknowledged later."""
    for disk, bench, _ in crashes():
        life = Life()
        try:
            live(bench, life)
        except (StorageError, ApiError):
            disk.kill()
            check_that_all_is_well(bench.open(), bench, life.acknowledged, life)
            continue
        return


WRITER = """
import sys
from kwire.broker.storage.disk import RealDisk
from tests.broker.storage.log_bench import LogBench, batch

bench = LogBench(RealDisk(), sys.argv[1])
log = bench.open()
number = 0
while True:
    bench.append(log, b"%d" % number, bytes(2000))
    print(number, flush=True)
    number += 1
    if number % 50 == 0:
        log.roll(bench.now_ms)
"""


def test_sigkill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    with writer:
        told = -1
        while told < 330:
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout:
            # A line may be cut where the process died.
            if line.endswith("\n"):
                told = int(line)
    log = LogBench(RealDisk(), str(tmp_path)).open()
    numbers = [int(value) for offset, value in numbered(log) if offset % 2 == 0 and value is not None]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > told
