"""What a full disk, a kill and a loss of power leave of a log that is being cleaned."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.wire.errors import ApiError, ErrorCode
from tests.broker.storage.cleaner.test_log_cleaner import Bench, Kept, fill, in_two_directories, kept


@pytest.mark.parametrize("free_bytes", [0, 100, 300])
def test_a_disk_that_is_full_while_cleaning_takes_its_directory_offline(free_bytes: int) -> None:
    """As any other write there, and as in Kafka."""
    bench = in_two_directories()
    other = bench.create("u")
    log = bench.log
    fill(bench)
    before = kept(log)
    bench.disk.free_bytes = free_bytes
    bench.pass_time()
    bench.disk.free_bytes = None
    assert isinstance(log.failure, StorageError)
    assert log.name in str(log.failure)
    assert other.failure is None
    with pytest.raises(ApiError) as caught:
        bench.send((b"k", b"v"))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    bench.pass_time()
    bench.cleaner.stop()
    bench.manager.shutdown(bench.host.now_ms())
    bench.open()
    after = kept(bench.log)
    assert {key: (offset, value) for offset, key, value in after} == {
        key: (offset, value) for offset, key, value in before
    }
    assert set(after) <= set(before)


def lives() -> Iterator[tuple[Bench, int]]:
    """A log to be cleaned on a disk that fails from its n-th operation on, until it does not any more."""
    for operations in range(2000):
        bench = Bench()
        bench.create()
        for number in range(24):
            bench.send((b"k%d" % (number % 3), None if number % 7 == 0 else b"v%d" % number))
        bench.log.flush()
        bench.manager.write_checkpoints()
        bench.disk.fails_after = operations
        yield bench, operations
    pytest.fail("too many operations")


def kill(disk: MemoryDisk) -> None:
    disk.kill()


def cut_power(disk: MemoryDisk) -> None:
    disk.power_cut(random.Random(disk.syncs))


@pytest.mark.parametrize("death", [kill, cut_power])
@pytest.mark.parametrize("seed", range(3))
def test_a_death_at_any_step_leaves_the_old_or_the_new(
    death: Callable[[MemoryDisk], None], seed: int
) -> None:
    for bench, operations in lives():
        before = kept_in(bench)
        latest = {key: (offset, value) for offset, key, value in before}
        end = bench.log.log_end_offset
        active = bench.log.segment_base_offsets[-1]
        bench.pass_time()
        finished = bench.disk.fails_after is not None and bench.disk.fails_after > 0
        bench.disk.syncs += 1000 * seed + operations  # seeds the power cut
        death(bench.disk)
        bench.open()
        found = kept(bench.log)
        assert set(found) <= set(before)
        assert {key: (offset, value) for offset, key, value in found} == latest
        assert bench.log.log_end_offset == end
        assert bench.log.segment_base_offsets[-1] == active
        assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap", ".deleted"))]
        bench.log.high_watermark = end
        bench.pass_time()
        rolled = [key for offset, key, _ in kept(bench.log) if offset < active]
        assert len(set(rolled)) == len(rolled)
        if finished:
            return


def kept_in(bench: Bench) -> Kept:
    """What can be read, without using up what the disk can do."""
    left, bench.disk.fails_after = bench.disk.fails_after, None
    found = kept(bench.log)
    bench.disk.fails_after = left
    return found
