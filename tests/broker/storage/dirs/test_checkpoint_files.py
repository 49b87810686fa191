"""Checkpoint files come to say something else: in workers, or at once."""

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


class Bench:
    """The files `one` and `two` of a directory, and a host that does its work when the test says so."""

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
        self.ends: list[StorageError | None] = []

    def write(self) -> None:
        self.files.write(self.host, self.ends.append)

    def work(self) -> None:
        """Let the worker do what is next, and tell the loop."""
        self.held.pop(0).deliver()
        self.host.run_pending()

    def said(self) -> dict[str, dict[TopicPartition, int]]:
        return {name: read_offsets(self.disk, f"/a/{name}") for name in ("one", "two")}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_worker_writes_and_a_worker_syncs_the_names(bench: Bench) -> None:
    bench.write()
    assert bench.said() == {"one": {}, "two": {}}
    bench.work()
    assert bench.said() == {"one": {T0: 1}, "two": {}}
    assert bench.ends == []
    bench.work()
    assert bench.ends == [None]
    assert bench.held == []
    assert bench.disk.names("/a") == ["one", "two"]
    bench.disk.power_cut()
    assert bench.said() == {"one": {T0: 1}, "two": {}}


def test_what_is_asked_for_meanwhile_comes_next_once_for_all(bench: Bench) -> None:
    bench.write()
    bench.wanted["one"] = {T0: 2}
    bench.write()
    bench.wanted["one"] = {T0: 3}
    bench.write()
    bench.work()
    bench.work()
    assert (bench.ends, bench.said()["one"]) == ([None], {T0: 1})
    bench.work()
    bench.work()
    assert (bench.ends, bench.said()["one"]) == ([None] * 3, {T0: 3})
    assert bench.held == []


@pytest.mark.parametrize("steps", range(3))
def test_what_is_written_at_once_stays_whatever_is_under_way(bench: Bench, steps: int) -> None:
    bench.write()
    for _ in range(steps):
        bench.work()
    bench.wanted = {"one": {T1: 5}, "two": {T1: 4}}
    bench.files.write_now()
    assert bench.files.checkpointed == {T1}
    while bench.held:
        bench.work()
    assert bench.ends == [None]
    assert bench.said() == {"one": {T1: 5}, "two": {T1: 4}}
    assert bench.files.checkpointed == {T1}
    bench.disk.power_cut()
    assert bench.said() == {"one": {T1: 5}, "two": {T1: 4}}


def test_what_has_gone_may_be_told_of_until_a_loss_of_power_brings_nothing_back(bench: Bench) -> None:
    bench.files.write_now()
    bench.wanted = {"one": {T1: 5}, "two": {}}
    assert bench.files.checkpointed == {T0}
    bench.write()
    assert bench.files.checkpointed == {T0, T1}
    bench.work()
    assert bench.files.checkpointed == {T0, T1}
    bench.work()
    assert bench.files.checkpointed == {T1}


def test_files_are_written_where_they_differ_or_are_gone(bench: Bench) -> None:
    bench.files.read("one", {T0: 1})
    bench.write()
    bench.work()
    bench.work()
    assert bench.disk.names("/a") == ["one", "two"]
    bench.disk.write("/a/one", b"not ours", sync=True)
    bench.write()
    assert bench.ends == [None, None]
    assert bench.held == []
    bench.disk.remove("/a/one")
    bench.write()
    bench.work()
    bench.work()
    assert bench.said() == {"one": {T0: 1}, "two": {}}


@pytest.mark.parametrize("steps", range(2))
def test_a_failure_is_told_to_all_and_what_it_left_counts_as_unknown(bench: Bench, steps: int) -> None:
    bench.files.write_now()
    bench.wanted["one"] = {T0: 2}
    bench.write()
    bench.write()
    for _ in range(steps):
        bench.work()
    bench.disk.fails_after = 0
    bench.work()
    assert [type(end) for end in bench.ends] == [StorageError] * 2
    bench.disk.fails_after = None
    bench.disk.write("/a/one", b"who knows", sync=True)
    bench.files.write_now()
    assert bench.said()["one"] == {T0: 2}


def test_a_failure_at_once_leaves_unknown_what_there_is(bench: Bench) -> None:
    bench.files.write_now()
    bench.wanted["one"] = {T0: 2}
    bench.disk.fails_after = 1
    with pytest.raises(StorageError):
        bench.files.write_now()
    bench.disk.fails_after = None
    bench.disk.write("/a/one", b"who knows", sync=True)
    bench.wanted["one"] = {T0: 1}
    bench.files.write_now()
    assert bench.said()["one"] == {T0: 1}
