"""Kills and power loss at every disk operation: guaranteed records survive."""

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
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, offsets_and_values

MOST_OPERATIONS = 2000


def idempotent_batch(sequence: int) -> memoryview:
    return batch(
        b"%03d" % sequence,
        timestamp=NOW_MS + sequence,
        producer_id=5,
        producer_epoch=0,
        base_sequence=sequence,
    )


@dataclass
class Guarantees:
    """The guarantees given before the crash."""

    acknowledged: int = 0
    """Records below this offset were acknowledged."""
    attempted: int = 0
    durable: int = 0
    """Records below this offset were flushed."""
    start: int = 0
    """The last requested log start offset."""


def crashes(disks: Callable[[], MemoryDisk] = MemoryDisk) -> Iterator[tuple[MemoryDisk, LogHarness, int]]:
    """Yield a new disk that fails from its n-th operation on, for n from 0."""
    for operations in range(MOST_OPERATIONS):
        disk = disks()
        harness = LogHarness(disk)
        harness.config = harness.config._replace(
            segment_bytes=3 * len(idempotent_batch(0)), index_interval_bytes=1, retention_ms=-1
        )
        disk.fails_after = operations
        yield disk, harness, operations
    pytest.fail(f"more than {MOST_OPERATIONS} operations")


def run_log(harness: LogHarness, guarantees: Guarantees) -> None:
    """Append, roll, flush, delete records and close; raises StorageError or ApiError when the disk fails."""
    log = harness.open()
    for sequence in range(11):
        guarantees.attempted = sequence + 1
        harness.send(log, idempotent_batch(sequence))
        guarantees.acknowledged = sequence + 1
        if sequence in (1, 4, 5):
            log.flush()
            guarantees.durable = sequence + 1
        if sequence == 7:
            guarantees.start = 4
            log.delete_records_before(4)
            log.delete_old_segments(harness.now_ms)
    log.flush()
    guarantees.durable = guarantees.acknowledged
    log.close()


def check_log(log: Log, harness: LogHarness, min_offset: int, guarantees: Guarantees) -> None:
    """Check that offsets are contiguous from the log start, and that the producer can continue."""
    found = offsets_and_values(log)
    assert found == [(offset, b"%03d" % offset) for offset in range(log.log_start_offset, log.log_end_offset)]
    assert min_offset <= log.log_end_offset <= guarantees.attempted
    assert log.log_start_offset <= max(0, guarantees.start)
    recovered_end = log.log_end_offset
    for sequence in range(max(0, recovered_end - 1), guarantees.attempted + 2):
        sent = harness.send(log, idempotent_batch(sequence))
        assert (sent.first_offset, sent.is_duplicate) == (sequence, sequence < recovered_end)
    end = log.log_end_offset
    assert [offset for offset, _ in offsets_and_values(log)] == list(range(log.log_start_offset, end))
    for offset in range(log.log_start_offset, end):
        by_time = log.offset_for_timestamp(NOW_MS + offset)
        assert by_time is not None
        assert by_time.offset == offset
    harness.close(log)
    reopened = harness.open(clean=True)
    assert (reopened.log_end_offset, reopened.leader_epochs) == (end, log.leader_epochs)


@pytest.mark.parametrize("torn_bytes", [0, 1, 40, 75])
def test_killed_process_keeps_acknowledged_records(torn_bytes: int) -> None:
    for disk, harness, _ in crashes():
        disk.torn_bytes = torn_bytes
        guarantees = Guarantees()
        try:
            run_log(harness, guarantees)
        except (StorageError, ApiError):
            finished = False
        else:
            finished = True
        disk.kill()
        log = harness.open(recovery_point=guarantees.durable)
        check_log(log, harness, guarantees.acknowledged, guarantees)
        if finished:
            return


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_keeps_flushed_records(seed: int) -> None:
    for disk, harness, operations in crashes():
        guarantees = Guarantees()
        try:
            run_log(harness, guarantees)
        except (StorageError, ApiError):
            finished = False
        else:
            finished = True
        disk.power_cut(random.Random(f"{seed} {operations}"))
        log = harness.open(recovery_point=guarantees.durable, log_start_offset=0)
        assert log.log_end_offset >= guarantees.durable
        found = offsets_and_values(log)
        assert [value for _, value in found] == [b"%03d" % offset for offset, _ in found]
        kept = {offset for offset, _ in found}
        assert set(range(max(guarantees.start, log.log_start_offset), guarantees.durable)) <= kept
        assert log.log_start_offset <= guarantees.start
        harness.append(log, b"new")
        assert offsets_and_values(log)[-1][1] == b"new"
        if finished:
            return


def test_recovery_can_be_killed_at_every_operation() -> None:
    for disk, harness, operations in crashes():
        guarantees = Guarantees()
        disk.fails_after = None
        log = harness.open()
        for sequence in range(8):
            harness.send(log, idempotent_batch(sequence))
        disk.open(harness.path(6, ".log")).write_at(disk.size(harness.path(6, ".log")), [b"torn"])
        guarantees.acknowledged = guarantees.attempted = 8
        disk.fails_after = operations
        try:
            harness.open()
        except StorageError:
            finished = False
        else:
            finished = True
        disk.kill()
        check_log(harness.open(), harness, 8, guarantees)
        if finished:
            return


@pytest.mark.parametrize("offset", [2, 3, 5])
def test_truncation_can_be_killed_at_every_operation(offset: int) -> None:
    for disk, harness, operations in crashes():
        disk.fails_after = None
        log = harness.open()
        for sequence in range(8):
            harness.send(log, idempotent_batch(sequence))
        disk.fails_after = operations
        try:
            log.truncate_to(offset)
        except StorageError:
            finished = False
        else:
            finished = True
        disk.kill()
        recovered = harness.open()
        assert offset <= recovered.log_end_offset <= 8
        check_log(recovered, harness, offset, Guarantees(attempted=8))
        if finished:
            return


@pytest.mark.parametrize("seed", range(5))
def test_truncated_records_do_not_return_after_power_loss(seed: int) -> None:
    """The process dies during a truncation, and power is lost after some appends of the restarted process."""
    rng = random.Random(seed)
    for disk, harness, operations in crashes(lambda: MemoryDisk(rng)):
        disk.fails_after = None
        log = harness.open()
        for sequence in range(8):
            harness.send(log, idempotent_batch(sequence))
        log.flush()
        disk.fails_after = operations
        try:
            log.truncate_to(2)
        except StorageError:
            finished = False
        else:
            finished = True
        disk.kill()
        second = harness.open()
        if second.log_end_offset == 2:
            second.append(batch(b"new"), leader_epoch=9, now_ms=NOW_MS)
            second.commit()
        disk.power_cut()
        third = harness.open(recovery_point=2)
        found = offsets_and_values(third)
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert (2, b"new") not in found or len(found) == 3
        if finished:
            return


def test_failed_log_keeps_its_records_for_the_next_start() -> None:
    """The disk fails temporarily: rejected records must not appear among records acknowledged later."""
    for disk, harness, _ in crashes():
        guarantees = Guarantees()
        try:
            run_log(harness, guarantees)
        except (StorageError, ApiError):
            disk.kill()
            check_log(harness.open(), harness, guarantees.acknowledged, guarantees)
            continue
        return


WRITER = """
import sys
from kwire.broker.storage.disk import RealDisk
from tests.broker.storage.log_harness import LogHarness, batch

harness = LogHarness(RealDisk(), sys.argv[1])
log = harness.open()
number = 0
while True:
    harness.append(log, b"%d" % number, bytes(2000))
    print(number, flush=True)
    number += 1
    if number % 50 == 0:
        log.roll(harness.now_ms)
"""


def test_sigkill_keeps_acknowledged_records(tmp_path: Path) -> None:
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
            # The kill may have truncated the last line.
            if line.endswith("\n"):
                told = int(line)
    log = LogHarness(RealDisk(), str(tmp_path)).open()
    numbers = [
        int(value) for offset, value in offsets_and_values(log) if offset % 2 == 0 and value is not None
    ]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > told
