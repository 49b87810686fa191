"""A full disk, a kill or power loss during a cleaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.cleaner.test_log_cleaner import (
    CleanerHarness,
    ReadableRecords,
    fill,
    harness_with_two_directories,
    readable_records,
)


@pytest.mark.parametrize("free_bytes", [0, 100, 300])
def test_full_disk_during_a_cleaning_takes_the_directory_offline(free_bytes: int) -> None:
    """As for any other write error, and as in Kafka."""
    harness = harness_with_two_directories()
    other = harness.create("u")
    log = harness.log
    fill(harness)
    before = readable_records(log)
    harness.disk.free_bytes = free_bytes
    harness.run_cleaner()
    harness.disk.free_bytes = None
    assert isinstance(log.failure, StorageError)
    assert log.name in str(log.failure)
    assert other.failure is None
    with pytest.raises(ApiError) as caught:
        harness.send((b"k", b"v"))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    harness.run_cleaner()
    harness.cleaner.stop()
    harness.manager.shutdown(harness.host.now_ms())
    harness.open()
    after = readable_records(harness.log)
    assert {key: (offset, value) for offset, key, value in after} == {
        key: (offset, value) for offset, key, value in before
    }
    assert set(after) <= set(before)


def cleaning_steps() -> Iterator[tuple[CleanerHarness, int]]:
    """Yield a dirty log on a disk that fails from its n-th operation on, until a cleaning succeeds."""
    for operations in range(2000):
        harness = CleanerHarness()
        harness.create()
        for number in range(24):
            harness.send((b"k%d" % (number % 3), None if number % 7 == 0 else b"v%d" % number))
        harness.log.flush()
        harness.manager.write_checkpoints()
        harness.disk.fails_after = operations
        yield harness, operations
    pytest.fail("too many operations")


def kill(disk: MemoryDisk) -> None:
    disk.kill()


def cut_power(disk: MemoryDisk) -> None:
    disk.power_cut(random.Random(disk.syncs))


@pytest.mark.parametrize("death", [kill, cut_power])
@pytest.mark.parametrize("seed", range(3))
def test_crash_at_any_step_leaves_the_old_or_the_new_segments(
    death: Callable[[MemoryDisk], None], seed: int
) -> None:
    for harness, operations in cleaning_steps():
        before = records_after_restart(harness)
        latest = {key: (offset, value) for offset, key, value in before}
        end = harness.log.log_end_offset
        active = harness.log.segment_base_offsets[-1]
        harness.run_cleaner()
        finished = harness.disk.fails_after is not None and harness.disk.fails_after > 0
        harness.disk.syncs += 1000 * seed + operations  # seeds the power cut
        death(harness.disk)
        harness.open()
        found = readable_records(harness.log)
        assert set(found) <= set(before)
        assert {key: (offset, value) for offset, key, value in found} == latest
        assert harness.log.log_end_offset == end
        assert harness.log.segment_base_offsets[-1] == active
        assert not [name for name in harness.names() if name.endswith((".cleaned", ".swap", ".deleted"))]
        harness.log.high_watermark = end
        harness.run_cleaner()
        rolled = [key for offset, key, _ in readable_records(harness.log) if offset < active]
        assert len(set(rolled)) == len(rolled)
        if finished:
            return


def records_after_restart(harness: CleanerHarness) -> ReadableRecords:
    """Return the readable records after a restart, without the disk failure."""
    left, harness.disk.fails_after = harness.disk.fails_after, None
    found = readable_records(harness.log)
    harness.disk.fails_after = left
    return found
