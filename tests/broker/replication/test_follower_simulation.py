"""Seeded simulation of one replica of two: elections, truncation and moves between directories.

Records that were acknowledged, or reported to the leader by a fetch, are present at the end in this order.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.replication.follower import Follower
from kwire.broker.replication.partition import Partition
from kwire.broker.replication.roles import Role
from kwire.broker.storage.dirs.log_manager import LogManager
from kwire.broker.storage.log.log import Log
from kwire.host.host import PeerUnreachable
from kwire.host.loggers import STORAGE_LOGGER
from kwire.testing.disk import MemoryDisk
from kwire.wire.batch import build
from kwire.wire.errors import ApiError
from kwire.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kwire.wire.records.metadata import PartitionRecord, TopicRecord
from tests.broker.replication.follower_harness import (
    NOW_MS,
    SESSION,
    TOPIC_ID,
    FollowerHarness,
    Sent,
    data,
    fetch_positions_of,
    leader_batches,
)
from tests.broker.replication.seeded_runs import Breakage, check_bug_is_detected, check_seeds

ME, PEER, THIRD = 1, 2, 3
SEEDS = 100


def epochs_in(log: Log) -> list[int]:
    """Return the epoch of each record; every batch has one record."""
    found = []
    for offset in range(log.log_start_offset, log.written_end_offset):
        head = log.read(offset, max_bytes=1, up_to_offset=log.written_end_offset).read()[:16]
        found.append(int.from_bytes(head[12:], "big"))
    return found


class FollowerSimulation:
    """One run, whose events depend on the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_flushed = self.rng.random() < 0.5
        self.disk = MemoryDisk(random.Random(seed))
        settings = {"log.flush.interval.messages": "1"} if self.is_flushed else {}
        self.harness = FollowerHarness(settings, directories=2, disk=self.disk)
        self.leader, self.epoch = PEER, 4
        self.leader_epochs = [3, 3, 3]
        """The epochs of the records on the other brokers."""
        self.committed = 0
        self.peer_offset = 0
        """The offset that the peer has fetched to."""
        self.acknowledged: list[int] = []
        """The epochs of the records that were acknowledged to a client or reported to the leader."""
        self.waiting: set[int] = set()
        self.positions: dict[int, tuple[int, int, int]] = {}
        """The last position fetched from each leader."""
        self.last_fetch: Sent | None = None
        self.harness.write(
            TopicRecord(name="t", topic_id=TOPIC_ID),
            PartitionRecord(
                partition_id=0,
                topic_id=TOPIC_ID,
                replicas=[PEER, ME],
                isr=[PEER, ME],
                leader=PEER,
                leader_epoch=self.epoch,
            ),
        )
        self.held = self.harness.host.hold_work()

    @property
    def log(self) -> Log:
        return self.harness.log()

    @property
    def role(self) -> Role:
        return self.harness.partition().role

    def run_steps(self) -> None:
        steps = {
            self.fetch: 8,
            self.produce: 8,
            self.fetch_from_peer: 6,
            self.elect: 1.5,
            self.work: 20,
            self.move: 3,
            self.wait: 2,
            self.run_periodic_tasks: 1,
        }
        for _ in range(self.rng.randrange(120)):
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            step()
            self.harness.turn()
            self.check_acknowledged()

    def check_acknowledged(self) -> None:
        """Check that reported records are present, and note the position of a new fetch."""
        here = epochs_in(self.log)
        del self.acknowledged[len(here) :]  # truncated to the leader's log
        assert here[: len(self.acknowledged)] == self.acknowledged
        for sent in self.harness.sent:
            if sent is not self.last_fetch and isinstance(sent.request, FetchRequest):
                self.last_fetch = sent
                asked = fetch_positions_of(sent).get(0)
                if asked is not None:
                    self.acknowledged = here[: asked[0]]

    # --- as a follower

    def fetch(self) -> None:
        """Respond to each fetch: with records if it reaches the current leader, or else without any."""
        for sent in [one for one in self.harness.sent if isinstance(one.request, FetchRequest)]:
            broker_id = sent.to.port - 9000
            asked = fetch_positions_of(sent).get(0) or self.positions.get(broker_id)
            if asked is None or broker_id != self.leader or asked[1] != self.epoch:
                self.answer(sent)
                continue
            self.positions[broker_id] = asked
            offset, _, epoch = asked
            if offset > len(self.leader_epochs) or (
                offset and epoch >= 0 and self.leader_epochs[offset - 1] != epoch
            ):
                older = [end for end, one in enumerate(self.leader_epochs, 1) if one <= epoch]
                end_offset = max(older, default=0)
                diverging = (self.leader_epochs[end_offset - 1] if older else epoch, end_offset)
                del self.positions[broker_id]
                self.answer(sent, data(diverging=diverging, high_watermark=self.committed))
                continue
            records = self.leader_epochs[offset : offset + self.rng.randrange(4)]
            self.committed = max(self.committed, min(offset, len(self.leader_epochs)))
            self.positions[broker_id] = (offset + len(records), self.epoch, records[-1] if records else epoch)
            self.answer(sent, data(leader_batches(offset, *records), high_watermark=self.committed))

    def answer(self, sent: Sent, *partitions: PartitionData) -> None:
        self.harness.sent.remove(sent)
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))]
        self.harness.respond(
            sent, FetchResponse(session_id=SESSION, responses=topics if partitions else [], error_code=0)
        )

    # --- as a leader

    def produce(self) -> None:
        """Append on this broker or on the leader elsewhere."""
        if self.leader != ME:
            self.leader_epochs += [self.epoch] * self.rng.randrange(1, 4)
        elif self.role is Role.LEADER:
            end_offset = self.log.log_end_offset + 1

            def on_acknowledged(error: ApiError | None) -> None:
                self.waiting.remove(end_offset)
                if error is None:
                    self.acknowledged = max(self.acknowledged, epochs_in(self.log)[:end_offset], key=len)

            records = memoryview(bytearray(build([(NOW_MS, None, b"v", [])])))
            self.waiting.add(end_offset)
            kind = self.rng.choice(["on_written", "on_replicated"])
            self.harness.partition().append(records, now_ms=NOW_MS, **{kind: on_acknowledged})  # type: ignore[arg-type]

    def fetch_from_peer(self) -> None:
        if self.role is Role.LEADER:
            end_offset = self.log.written_end_offset
            self.peer_offset = min(self.peer_offset + self.rng.randrange(3), end_offset)
            self.harness.partition().record_follower_fetch(PEER, self.peer_offset, broker_epoch=20)

    # --- the environment

    def elect(self) -> None:
        """Elect another leader, which may lack uncommitted records."""
        if self.leader == ME:
            leader = PEER
            self.leader_epochs = epochs_in(self.log)[: self.peer_offset]
            self.committed = min(self.log.high_watermark, self.peer_offset)
        else:
            leader = self.rng.choice([one for one in (ME, PEER, THIRD) if one != self.leader])
            if leader == ME:
                self.peer_offset = min(self.log.written_end_offset, self.log.high_watermark)
            else:
                kept = self.rng.randrange(
                    min(self.committed, len(self.leader_epochs)), len(self.leader_epochs) + 1
                )
                del self.leader_epochs[kept:]
        self.leader, self.epoch = leader, self.epoch + 1
        if leader != ME:
            self.leader_epochs += [self.epoch] * self.rng.randrange(3)
        self.positions.clear()
        for sent in list(self.harness.sent):
            self.harness.sent.remove(sent)
            self.harness.respond(sent, PeerUnreachable("not the leader anymore"))
        self.harness.change(leader=leader, isr=[ME, PEER])

    def work(self) -> None:
        if self.held:
            index = self.rng.randrange(len(self.held))
            if self.rng.random() < 0.25:
                self.held[index].run()
            else:
                self.held.pop(index).deliver()

    def move(self) -> None:
        directory = self.rng.choice(self.harness.logs.directories())
        future = self.harness.logs.future_log("t", 0)
        if future is not None and self.harness.logs.directory_of(future) is not directory:
            self.harness.moves.cancel(self.harness.partition())
        self.harness.moves.start(self.harness.partition(), directory)

    def wait(self) -> None:
        self.harness.host.advance(self.rng.choice([10, 200, 1000, 61_000]))

    def run_periodic_tasks(self) -> None:
        self.harness.logs.tick(self.harness.host.monotonic_ms())
        self.harness.replicas.flush_due_logs()
        self.harness.logs.checkpoint(self.harness.host)

    # --- the end

    def settle(self) -> None:
        """Let everything complete without further faults."""
        for _ in range(300):
            if self.held:
                self.held.pop(0).deliver()
            else:
                self.harness.host.advance(300)
            self.harness.turn()
            self.fetch()
            self.fetch_from_peer()
            self.harness.turn()
            self.check_acknowledged()
        assert self.log.is_recoverable
        assert self.harness.logs.future_log("t", 0) is None
        assert (self.role is Role.LEADER) == (self.leader == ME)
        if self.role is Role.LEADER:
            assert not self.waiting
            assert self.log.high_watermark == self.log.log_end_offset
        else:
            assert epochs_in(self.log) == self.leader_epochs

    def end(self) -> None:
        ending = self.rng.choice(["kill", "stop", "settle", *(["power"] if self.is_flushed else [])])
        if ending == "settle":
            self.settle()
        elif ending == "stop":
            self.harness.moves.stop()
            self.harness.host.held_work = None
            self.harness.turn()
            self.check_acknowledged()
            self.harness.logs.shutdown(self.harness.host.now_ms())
        if ending == "power":
            self.disk.power_cut()
        else:
            self.disk.kill()

    def check(self) -> None:
        logs = LogManager(self.disk, ["/d", "/e"], logger=STORAGE_LOGGER, rng=random.Random(0))
        logs.open(self.harness.host.now_ms())
        log = logs.get("t", 0) or logs.future_log("t", 0)
        here = [] if log is None else epochs_in(log)
        assert here[: len(self.acknowledged)] == self.acknowledged


def run(seed: int) -> None:
    simulation = FollowerSimulation(seed)
    simulation.run_steps()
    simulation.end()
    simulation.check()


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 50))
def test_acknowledged_records_are_present_at_the_end(first_seed: int) -> None:
    check_seeds(run, range(first_seed, first_seed + 50))


def fetch_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Follower.__init__

    def begins(self: Follower, *terms: Any) -> None:
        begin(self, *terms)
        self.has_staged = bool(self.partition.log.staged)

    monkeypatch.setattr(Follower, "__init__", begins)


def count_the_sync_of_the_old_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Partition) -> None:
        promises, self._flushing = self._flushing, ()
        self._on_written(promises, self.log.log_end_offset)

    monkeypatch.setattr(Partition, "_flush_again", keep)


def always_false(name: str) -> Breakage:
    return lambda monkeypatch: monkeypatch.setattr(Log, name, property(lambda self: False))


PLANTED_BUGS = {
    "a log without a durable directory counts as recoverable": (
        241,
        always_false("has_unrecoverable_records"),
    ),
    "a truncation is not awaited": (21, always_false("awaits_sync")),
    "unsynced records are reported to a new leader": (97, fetch_before_the_sync),
    "a sync of the old directory counts for the new one": (96, count_the_sync_of_the_old_log),
}


@pytest.mark.parametrize(("seed", "breakage"), PLANTED_BUGS.values(), ids=PLANTED_BUGS)
def test_planted_bug_is_detected(seed: int, breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    check_bug_is_detected(run, seed, breakage, monkeypatch)
