"""A process without free descriptors: an operation on a log succeeds, or is refused and can be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kwire.broker.storage.disk import ResourceShortage
from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.log_harness import NOW_MS, LogHarness, batch, end_transaction, offsets_and_values

MOST_STEPS = 50
VALUE = bytes(100)


def append(log: Log, harness: LogHarness) -> None:
    log.append(batch(b"new"), leader_epoch=0, now_ms=NOW_MS)


def append_in_a_new_epoch(log: Log, harness: LogHarness) -> None:
    log.append(batch(b"new"), leader_epoch=3, now_ms=NOW_MS)


def append_until_the_segment_rolls(log: Log, harness: LogHarness) -> None:
    before = len(log.segment_base_offsets)
    while len(log.segment_base_offsets) == before:
        log.append(batch(VALUE), leader_epoch=0, now_ms=NOW_MS)


def commit(log: Log, harness: LogHarness) -> None:
    log.commit()


def read(log: Log, harness: LogHarness) -> None:
    region = log.read(2, max_bytes=1 << 20, up_to_offset=log.log_end_offset)
    assert region.size_bytes == len(region.read())


def find_a_timestamp(log: Log, harness: LogHarness) -> None:
    log.offset_for_timestamp(NOW_MS)


def count_bytes(log: Log, harness: LogHarness) -> None:
    log.size_between(0, log.log_end_offset)


def truncate(log: Log, harness: LogHarness) -> None:
    log.truncate_to(5)


def truncate_below_the_start(log: Log, harness: LogHarness) -> None:
    log.truncate_fully_and_start_at(100)


def delete_records(log: Log, harness: LogHarness) -> None:
    log.delete_records_before(9)


def delete_segments(log: Log, harness: LogHarness) -> None:
    log.delete_old_segments(NOW_MS + 8 * 24 * 60 * 60 * 1000)


def roll(log: Log, harness: LogHarness) -> None:
    log.roll(NOW_MS)


def flush(log: Log, harness: LogHarness) -> None:
    log.flush()


def close(log: Log, harness: LogHarness) -> None:
    log.close()


OPERATIONS = [
    append,
    append_in_a_new_epoch,
    append_until_the_segment_rolls,
    commit,
    read,
    find_a_timestamp,
    count_bytes,
    truncate,
    truncate_below_the_start,
    delete_records,
    delete_segments,
    roll,
    flush,
    close,
]


def prepared(disk: MemoryDisk) -> tuple[Log, LogHarness]:
    """Return a reopened log with several segments, an aborted transaction, and a staged abort marker."""
    harness = LogHarness(disk)
    harness.small_segments(VALUE)
    log = harness.open()
    for _ in range(5):
        harness.append(log, VALUE, VALUE)
    harness.close(log)
    log = harness.open(clean=True)
    harness.append(log, VALUE)
    log.append(
        batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        leader_epoch=0,
        now_ms=NOW_MS,
    )
    end_transaction(log, 7, 0)
    log.append(
        batch(b"b", producer_id=7, producer_epoch=0, base_sequence=1, transactional=True),
        leader_epoch=0,
        now_ms=NOW_MS,
    )
    return log, harness


def outcome(log: Log, disk: MemoryDisk) -> object:
    disk.repair()
    log.commit()
    transactions = [segment.aborted() for segment in log.segments]
    return (
        offsets_and_values(log),
        log.log_start_offset,
        log.log_end_offset,
        log.leader_epochs,
        log.segment_base_offsets,
        transactions,
        log.producers.end_offset,
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_that_finds_no_descriptor_can_be_repeated(
    operation: Callable[[Log, LogHarness], None],
) -> None:
    untroubled_disk = MemoryDisk(random.Random(0))
    untroubled, harness = prepared(untroubled_disk)
    operation(untroubled, harness)
    expected = outcome(untroubled, untroubled_disk)
    refused = 0
    for step in range(MOST_STEPS):
        disk = MemoryDisk(random.Random(0))
        log, harness = prepared(disk)
        disk.shortage_after = step
        try:
            operation(log, harness)
        except (ResourceShortage, ApiError) as error:
            if isinstance(error, ApiError) and error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            refused += 1
            assert log.failure is None
            assert not harness.failures
            disk.repair()
            operation(log, harness)
        assert log.failure is None
        assert outcome(log, disk) == expected
    assert refused < MOST_STEPS, "the operation uses no descriptor after some steps"
