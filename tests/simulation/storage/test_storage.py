"""Some hundred seeds of storage on the simulated disk. `make simulate` runs more."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest

from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk, ProcessDied
from simulation.storage.history import History
from simulation.storage.planted_bugs import PLANTED_BUGS, PlantedBug
from simulation.storage.run import find_failure
from tests.simulation import seeds

MODULE = "simulation.storage"
SEEDS = range(220)
MAX_SEEDS = 2000
"""A planted bug is found within this many seeds, if the seed that once found it no longer does."""

FORMERLY_FAILING_SEEDS = {
    16: "an unreadable checkpoint counted as empty, so that deleted records and an old start offset returned",
    18: "leader epochs before the recovery point were lost with their file, which was not synced",
    57: "a truncation was not synced by the next flush: a power loss undid it after a clean shutdown",
    102: "the end of a failed write returned after a clean shutdown",
    153: "preallocated zeros at the end of a rolled segment returned after a clean shutdown",
    429: "data that recovery had truncated returned after a clean shutdown",
    478: "an index that recovery had rebuilt was never synced",
    873: "a recovery point beyond the log end survived a crash, so that later appends were not checked",
    2994: "a wrong length near the end of a cleanly closed log ended it there, and appends followed it",
    3856: "rebuilding an index from a damaged log overflowed an entry",
    12344: "an index whose rebuilding was interrupted was empty, and trusted",
    13665: "a producer snapshot taken in recovery had state from before the log start offset",
    1301: "the clean-shutdown marker returned, because its removal was not synced after a kill",
}
"""Seeds that once found a bug. Histories have changed since then, so they now do something else."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_invariants_hold_after_every_step() -> None:
    seeds.check_seeds(SEEDS, History, MODULE)


@pytest.mark.parametrize("seed", FORMERLY_FAILING_SEEDS)
def test_seed_that_failed_once_passes(seed: int) -> None:
    failure = find_failure(seed, History, MODULE)
    assert failure is None, failure


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.check_bug_is_found(bug, monkeypatch, History, MODULE, MAX_SEEDS)


def test_same_seed_gives_the_same_transcript() -> None:
    seeds.check_determinism(History)


class TestFaultModel:
    """The fault model itself."""

    @staticmethod
    def files_after_power_loss(seed: int) -> dict[str, bytes]:
        disk = MemoryDisk(random.Random(seed))
        disk.make_directory("/d")
        disk.sync_directory("/")
        file = disk.open("/d/synced", create=True)
        file.write_at(0, [b"durable"])
        file.sync()
        disk.sync_directory("/d")
        file.write_at(7, [b"x" * 200])
        for number in range(4):
            disk.write(f"/d/{number}", b"%d" % number, sync=True)
        disk.power_cut()
        return disk.tree("/d")

    def test_synced_data_survives_power_loss(self) -> None:
        for seed in range(50):
            assert self.files_after_power_loss(seed)["synced"].startswith(b"durable")

    def test_unsynced_data_is_lost_torn_or_kept(self) -> None:
        ends = {self.files_after_power_loss(seed)["synced"][7:] for seed in range(200)}
        assert b"" in ends
        assert b"x" * 200 in ends
        assert any(0 < end.count(b"x") < len(end) for end in ends)

    def test_a_prefix_of_file_names_survives(self) -> None:
        kept = {
            tuple(name for name in self.files_after_power_loss(seed) if name != "synced")
            for seed in range(100)
        }
        assert kept == {(), ("0",), ("0", "1"), ("0", "1", "2"), ("0", "1", "2", "3")}

    def test_injected_faults_occur_when_scheduled(self) -> None:
        disk = MemoryDisk(random.Random(1))
        disk.fails_after = 0
        disk.remaining_failures = 1
        with pytest.raises(StorageError, match="simulated EIO"):
            disk.make_directory("/d")
        disk.make_directory("/d")
        disk.free_bytes = 3
        with pytest.raises(StorageError, match="simulated ENOSPC"):
            disk.write("/d/full", b"four", sync=False)
        assert disk.read("/d/full") == b"fou"
        disk.dies_after = 0
        with pytest.raises(ProcessDied):
            disk.remove("/d/full")
        assert disk.exists("/d/full")
