"""Writes of checkpoint files, in workers or at once."""

from __future__ import annotations

import random

import pytest

from kwire.broker.storage.checkpoints import read_offsets
from kwire.broker.storage.dirs.checkpoint_files import CheckpointFiles
from kwire.broker.storage.disk import StorageError
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_host import VirtualHost, WorkerTask
from kwire.wire.primitives import TopicPartition

T0, T1 = ("t", 0), ("t", 1)


class CheckpointHarness:
    """The checkpoint files `one` and `two` of a directory, and a host with deferred workers."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(random.Random(1))
        self.disk.make_directory("/a")
        self.disk.sync_directory("/")
        self.host = VirtualHost()
        self.held: list[WorkerTask] = self.host.hold_work()
        self.wanted: dict[str, dict[TopicPartition, int]] = {"one": {T0: 1}, "two": {}}
        self.files = CheckpointFiles(
            self.disk, "/a", lambda directory: {name: dict(said) for name, said in self.wanted.items()}
        )
        self.results: list[StorageError | None] = []

    def write(self) -> None:
        self.files.write(self.host, self.results.append)

    def run_worker(self) -> None:
        """Run the next worker task and its callback."""
        self.held.pop(0).deliver()
        self.host.run_pending()

    def read_files(self) -> dict[str, dict[TopicPartition, int]]:
        return {name: read_offsets(self.disk, f"/a/{name}") for name in ("one", "two")}


@pytest.fixture
def harness() -> CheckpointHarness:
    return CheckpointHarness()


def test_worker_writes_the_files_and_syncs_their_names(harness: CheckpointHarness) -> None:
    harness.write()
    assert harness.read_files() == {"one": {}, "two": {}}
    harness.run_worker()
    assert harness.read_files() == {"one": {T0: 1}, "two": {}}
    assert harness.results == []
    harness.run_worker()
    assert harness.results == [None]
    assert harness.held == []
    assert harness.disk.names("/a") == ["one", "two"]
    harness.disk.power_cut()
    assert harness.read_files() == {"one": {T0: 1}, "two": {}}


def test_writes_requested_during_a_write_are_combined(harness: CheckpointHarness) -> None:
    harness.write()
    harness.wanted["one"] = {T0: 2}
    harness.write()
    harness.wanted["one"] = {T0: 3}
    harness.write()
    harness.run_worker()
    harness.run_worker()
    assert (harness.results, harness.read_files()["one"]) == ([None], {T0: 1})
    harness.run_worker()
    harness.run_worker()
    assert (harness.results, harness.read_files()["one"]) == ([None] * 3, {T0: 3})
    assert harness.held == []


@pytest.mark.parametrize("steps", range(3))
def test_immediate_write_is_not_overwritten_by_a_pending_one(harness: CheckpointHarness, steps: int) -> None:
    harness.write()
    for _ in range(steps):
        harness.run_worker()
    harness.wanted = {"one": {T1: 5}, "two": {T1: 4}}
    harness.files.write_now()
    assert harness.files.checkpointed == {T1}
    while harness.held:
        harness.run_worker()
    assert harness.results == [None]
    assert harness.read_files() == {"one": {T1: 5}, "two": {T1: 4}}
    assert harness.files.checkpointed == {T1}
    harness.disk.power_cut()
    assert harness.read_files() == {"one": {T1: 5}, "two": {T1: 4}}


def test_checkpointed_has_old_entries_until_the_new_file_is_durable(harness: CheckpointHarness) -> None:
    harness.files.write_now()
    harness.wanted = {"one": {T1: 5}, "two": {}}
    assert harness.files.checkpointed == {T0}
    harness.write()
    assert harness.files.checkpointed == {T0, T1}
    harness.run_worker()
    assert harness.files.checkpointed == {T0, T1}
    harness.run_worker()
    assert harness.files.checkpointed == {T1}


def test_only_changed_or_missing_files_are_written(harness: CheckpointHarness) -> None:
    harness.files.record_initial("one", {T0: 1})
    harness.write()
    harness.run_worker()
    harness.run_worker()
    assert harness.disk.names("/a") == ["one", "two"]
    harness.disk.write("/a/one", b"not ours", sync=True)
    harness.write()
    assert harness.results == [None, None]
    assert harness.held == []
    harness.disk.remove("/a/one")
    harness.write()
    harness.run_worker()
    harness.run_worker()
    assert harness.read_files() == {"one": {T0: 1}, "two": {}}


@pytest.mark.parametrize("steps", range(2))
def test_write_error_reaches_all_callbacks_and_files_are_written_again(
    harness: CheckpointHarness, steps: int
) -> None:
    harness.files.write_now()
    harness.wanted["one"] = {T0: 2}
    harness.write()
    harness.write()
    for _ in range(steps):
        harness.run_worker()
    harness.disk.fails_after = 0
    harness.run_worker()
    assert [type(end) for end in harness.results] == [StorageError] * 2
    harness.disk.fails_after = None
    harness.disk.write("/a/one", b"who knows", sync=True)
    harness.files.write_now()
    assert harness.read_files()["one"] == {T0: 2}


def test_files_are_written_again_after_an_immediate_write_fails(harness: CheckpointHarness) -> None:
    harness.files.write_now()
    harness.wanted["one"] = {T0: 2}
    harness.disk.fails_after = 1
    with pytest.raises(StorageError):
        harness.files.write_now()
    harness.disk.fails_after = None
    harness.disk.write("/a/one", b"who knows", sync=True)
    harness.wanted["one"] = {T0: 1}
    harness.files.write_now()
    assert harness.read_files()["one"] == {T0: 1}
