"""Seeded simulation of moves between log directories: no acknowledged record is lost or duplicated."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import suppress

import pytest

from kwire.broker.storage.dirs.log_dir import parse_dir_name
from kwire.broker.storage.dirs.log_replacement import LogReplacement, Work
from kwire.broker.storage.dirs.meta_properties import StartRefused
from kwire.broker.storage.dirs.pending_logs import PendingLogs
from kwire.broker.storage.disk import StorageError
from kwire.broker.storage.log.log import Log
from kwire.testing.disk import MemoryDisk
from kwire.testing.virtual_node import VirtualClient
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.produce import ProduceRequest
from tests.broker.replication.seeded_runs import Breakage, check_bug_is_detected, check_seeds
from tests.broker.replication.test_directory_moves import fill, move, offsets
from tests.node_harness import PRODUCE_VERSION, NodeHarness, produce_request

SEEDS = 100
FLUSHED = {"log.flush.interval.messages": "1"}


class MoveSimulation:
    """One run: the seed decides the faults while a partition moves between directories."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = MemoryDisk(random.Random(seed))
        self.is_flushed = self.rng.random() < 0.5
        self.harness = NodeHarness(self.disk, **(FLUSHED if self.is_flushed else {}))
        if self.rng.random() < 0.5:
            self.harness.create("z")  # puts the other partition in the second directory
        self.harness.create("a")
        fill(self.harness, 3)
        self.held = self.harness.host.hold_work()
        self.clients: list[VirtualClient] = []
        self.acknowledged = {0, 1, 2}
        self.has_failed = False

    def run_steps(self) -> None:
        for _ in range(self.rng.randrange(60)):
            (step,) = self.rng.choices(
                [self.produce, self.work, self.move, self.wait, self.break_directory], [10, 20, 4, 2, 0.3]
            )
            step()
            self.harness.turn()
        self.record_responses()

    def produce(self) -> None:
        self.clients.append(self.harness.connect())
        self.clients[-1].submit(PRODUCE_VERSION, produce_request("a"))

    def work(self) -> None:
        if self.held:
            index = self.rng.randrange(len(self.held))
            if self.rng.random() < 0.3:
                self.held[index].run()
            else:
                self.held.pop(index).deliver()

    def move(self) -> None:
        move(self.harness, self.rng.choice(["/d1", "/d2"]))

    def wait(self) -> None:
        self.harness.host.advance(self.rng.choice([10, 200, 1000, 61_000]))

    def break_directory(self) -> None:
        self.has_failed = self.disk.broken_directories["/d2"] = (
            True  # the other directory has the metadata log
        )

    def record_responses(self) -> None:
        for client in self.clients:
            answer = client.receive(PRODUCE_VERSION, ProduceRequest)
            if answer is not None:
                [produced] = answer.responses[0].partition_responses
                if produced.error_code == ErrorCode.NONE:
                    self.acknowledged.add(produced.base_offset)

    def end(self) -> None:
        # Without a flush, acknowledged records may be lost with the power, as in Kafka.
        ending = self.rng.choice(["power", "kill", "stop"] if self.is_flushed else ["kill", "stop"])
        if ending == "stop":
            while self.held and self.rng.random() < 0.9:
                self.work()
                self.harness.turn()
            self.harness.host.held_work = None
            self.harness.node.begin_shutdown()
            self.harness.node.finish_shutdown()
            self.record_responses()
            self.disk.kill()
        elif ending == "kill":
            self.disk.kill()
        else:
            self.disk.power_cut()

    def check(self) -> None:
        names = [
            (path, parse_dir_name(name)) for path in ("/d1", "/d2") for name in self.disk.subdirectories(path)
        ]
        directories = [
            path for path, name in names if name is not None and (name.topic, name.suffix) == ("a", "")
        ]
        if len(directories) > 1:
            # Nothing can be renamed in a failed directory. An operator must resolve the two copies.
            assert self.has_failed, "two copies although no directory failed"
            with pytest.raises(StartRefused, match="written to last"):
                NodeHarness(self.disk)
            self.disk.kill()
            self.disk.remove_tree("/d2/a-0")
        again = NodeHarness(self.disk)
        found = offsets(again)
        assert self.acknowledged <= set(found)
        assert found == list(range(len(found)))
        again.host.advance(130_000)
        assert again.produce("a").base_offset == len(found)
        assert offsets(again) == [*found, len(found)]
        target = "/d1" if again.directory_of("a").startswith("/d2") else "/d2"
        assert move(again, target) == [0]
        again.host.advance(10_000)
        assert again.directory_of("a") == f"{target}/a-0"


def run(seed: int) -> None:
    simulation = MoveSimulation(seed)
    simulation.run_steps()
    simulation.end()
    simulation.check()


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 50))
def test_no_record_is_lost_or_duplicated(first_seed: int) -> None:
    check_seeds(run, range(first_seed, first_seed + 50))


def acknowledge_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "has_unrecoverable_records", property(lambda self: False))


def without_sync(number: int) -> Breakage:
    """Return a planted bug that skips sync `number` of the three syncs of a log replacement."""

    def without(monkeypatch: pytest.MonkeyPatch) -> None:
        steps = LogReplacement._steps

        def fewer(replacement: LogReplacement) -> Generator[Work, StorageError | None]:
            way = steps(replacement)
            error: StorageError | None = None
            for count in range(3):
                try:
                    work = next(way) if not count else way.send(error)
                except StopIteration:
                    return
                error = yield (work if count != number else lambda: None)
            with suppress(StopIteration):
                way.send(error)

        monkeypatch.setattr(LogReplacement, "_steps", fewer)

    return without


def keep_the_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogReplacement, "_rename_old", lambda self, old: None)


def move_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingLogs, "is_replacing", lambda self, log: False)


PLANTED_BUGS = {
    "the produce is acknowledged at once": (142, acknowledge_at_once),
    "the copy is not synced": (180, without_sync(0)),
    "the rename of the old directory is not synced": (139, without_sync(1)),
    "the old directory is not renamed": (6, keep_the_old_name),
    "the log moves again before the first move has ended": (142, move_again_at_once),
}


@pytest.mark.parametrize(("seed", "breakage"), PLANTED_BUGS.values(), ids=PLANTED_BUGS)
def test_planted_bug_is_detected(seed: int, breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bug_is_detected(run, seed, breakage, monkeypatch, StartRefused)
