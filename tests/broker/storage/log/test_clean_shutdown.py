"""After `Log.close` every file of the log is durable, because the clean shutdown marker follows."""

from __future__ import annotations

import random

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from tests.broker.storage.log_harness import LogHarness, batch, committed_records, end_transaction

ABORT = 0


def unsynced_files(disk: MemoryDisk, harness: LogHarness) -> list[str]:
    paths = [f"{harness.directory}/{name}" for name in disk.tree(harness.directory)]
    return [path for path in paths if not path.endswith(".deleted") and not disk.is_synced(path)]


def abort_transaction(log: Log, harness: LogHarness, *, base_sequence: int = 0) -> None:
    sent = batch(b"aborted", producer_id=7, producer_epoch=0, base_sequence=base_sequence, transactional=True)
    harness.send(log, sent)
    end_transaction(log, 7, ABORT)


def write(log: Log, harness: LogHarness) -> None:
    harness.append(log, b"v", epoch=1)


def begin_a_flush_that_never_ends(log: Log, harness: LogHarness) -> None:
    write(log, harness)
    log.roll(harness.now_ms)
    log.begin_flush()


def abort_a_transaction_and_flush(log: Log, harness: LogHarness) -> None:
    abort_transaction(log, harness)
    log.flush()


def truncate_an_aborted_transaction(log: Log, harness: LogHarness) -> None:
    write(log, harness)
    log.flush()
    abort_transaction(log, harness)
    log.flush()
    log.truncate_to(1)
    log.flush()


def restart_the_log(log: Log, harness: LogHarness) -> None:
    write(log, harness)
    log.truncate_fully_and_start_at(100)


@pytest.mark.parametrize(
    "history",
    [
        write,
        begin_a_flush_that_never_ends,
        abort_transaction,
        abort_a_transaction_and_flush,
        truncate_an_aborted_transaction,
        restart_the_log,
    ],
)
def test_all_files_are_durable_after_close(disk: MemoryDisk, harness: LogHarness, history: object) -> None:
    log = harness.open()
    assert callable(history)
    history(log, harness)
    log.close()
    assert not unsynced_files(disk, harness)


def test_aborted_transaction_stays_aborted_after_a_clean_shutdown_and_power_loss(
    disk: MemoryDisk, harness: LogHarness
) -> None:
    log = harness.open()
    abort_a_transaction_and_flush(log, harness)
    log.close()
    disk.sync_directory("/")
    for seed in range(20):
        disk.power_cut(random.Random(seed))
        log = harness.open(clean=True)
        log.high_watermark = log.log_end_offset
        assert committed_records(log) == []


def test_failed_restart_of_a_log_takes_it_offline(disk: MemoryDisk, harness: LogHarness) -> None:
    log = harness.open()
    write(log, harness)
    disk.fails_after = 3
    with pytest.raises(StorageError, match="simulated EIO"):
        log.truncate_fully_and_start_at(100)
    assert log.failure is not None
    assert len(harness.failures) == 1
