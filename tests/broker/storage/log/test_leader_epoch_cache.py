"""Leader epochs: assignment, truncation at both ends, and end offsets for followers."""

from __future__ import annotations

import pytest

from kwire.broker.storage.log.leader_epoch_cache import LeaderEpochFileCache
from kwire.testing.disk import MemoryDisk


def cache_with(*entries: tuple[int, int], disk: MemoryDisk | None = None) -> LeaderEpochFileCache:
    epochs = LeaderEpochFileCache(disk or MemoryDisk(), "")
    for epoch, start_offset in entries:
        epochs.assign_in_memory(epoch, start_offset)
    epochs.save()
    return epochs


def test_the_file_is_a_checkpoint_of_epoch_and_start_offset() -> None:
    disk = MemoryDisk()
    cache_with((0, 0), (3, 120), disk=disk)
    assert disk.read("/leader-epoch-checkpoint") == b"0\n2\n0 0\n3 120\n"


def test_file_round_trip() -> None:
    disk = MemoryDisk()
    cache_with((0, 0), (3, 120), disk=disk)
    again = LeaderEpochFileCache(disk, "")
    again.load()
    assert again.entries == [(0, 0), (3, 120)]


def test_corrupt_file_counts_as_empty() -> None:
    disk = MemoryDisk()
    disk.write("/leader-epoch-checkpoint", b"0\n2\n0 0\n", sync=False)
    epochs = LeaderEpochFileCache(disk, "")
    epochs.load()
    assert epochs.entries == []


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        ((2, 20), [(1, 10), (2, 20)]),
        ((1, 15), [(1, 10)]),
        ((1, 5), [(1, 5)]),
        ((2, 10), [(2, 10)]),
        ((2, 7), [(2, 7)]),
        ((0, 12), [(0, 12)]),
    ],
    ids=["newer", "again", "earlier start", "no record yet", "overlaps", "older epoch"],
)
def test_new_entry_removes_conflicting_entries(
    assigned: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    assert cache_with((1, 10), assigned).entries == expected


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (4, (4, 99)), (5, (-1, -1))],
    ids=["undefined", "before the first", "known", "between", "current", "unknown"],
)
def test_end_offset_of_an_epoch(epoch: int, expected: tuple[int, int]) -> None:
    assert cache_with((2, 10), (4, 20)).end_offset_for(epoch, 99) == expected


def test_empty_cache_knows_no_epoch() -> None:
    assert cache_with().end_offset_for(0, 5) == (-1, -1)


def test_truncation_from_the_end_drops_epochs_that_begin_there() -> None:
    epochs = cache_with((0, 0), (1, 10), (2, 20))
    epochs.truncate_from_end(20)
    assert epochs.entries == [(0, 0), (1, 10)]
    epochs.truncate_from_end(11)
    assert epochs.entries == [(0, 0), (1, 10)]
    epochs.truncate_from_end(0)
    assert epochs.entries == []


def test_truncation_from_the_start_moves_the_first_epoch_up() -> None:
    epochs = cache_with((0, 0), (1, 10), (2, 20))
    epochs.truncate_from_start(15)
    assert epochs.entries == [(1, 15), (2, 20)]
    epochs.truncate_from_start(20)
    assert epochs.entries == [(2, 20)]
    epochs.truncate_from_start(20)
    assert epochs.entries == [(2, 20)]
