"""One replica of two follows, leads and moves between directories, whatever comes between.

What its leader or a client was told to be there is there after the end, in this order.
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
    asked_of,
    data,
    stored,
)
from tests.broker.replication.trouble import Break, hold, miss

ME, PEER, THIRD = 1, 2, 3
SEEDS = 100


def epochs_in(log: Log) -> list[int]:
    """The epoch of each record; every batch has one."""
    found = []
    for offset in range(log.log_start_offset, log.written_end_offset):
        head = log.read(offset, max_bytes=1, up_to_offset=log.written_end_offset).read()[:16]
        found.append(int.from_bytes(head[12:], "big"))
    return found


class Trouble:
    """One run, in which a seed decides."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_flushed = self.rng.random() < 0.5
        self.disk = MemoryDisk(random.Random(seed))
        settings = {"log.flush.interval.messages": "1"} if self.is_flushed else {}
        self.harness = FollowerHarness(settings, directories=2, disk=self.disk)
        self.leader, self.epoch = PEER, 4
        self.theirs = [3, 3, 3]
        """The epochs of the records that the others have."""
        self.committed = 0
        self.peer_offset = 0
        """Up to where the peer has fetched from this replica."""
        self.told: list[int] = []
        """The epochs of the records that somebody was told to be here."""
        self.waiting: set[int] = set()
        self.positions: dict[int, tuple[int, int, int]] = {}
        """What each leader was asked for last."""
        self.heard: Sent | None = None
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

    def go_on(self) -> None:
        steps = {
            self.fetch: 8,
            self.produce: 8,
            self.peer_fetches: 6,
            self.elect: 1.5,
            self.work: 20,
            self.move: 3,
            self.wait: 2,
            self.keep_house: 1,
        }
        for _ in range(self.rng.randrange(120)):
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            step()
            self.harness.turn()
            self.listen()

    def listen(self) -> None:
        """What is it that the leader is told now?"""
        here = epochs_in(self.log)
        del self.told[len(here) :]  # it was cut, as its leader had it
        assert here[: len(self.told)] == self.told
        for sent in self.harness.sent:
            if sent is not self.heard and isinstance(sent.request, FetchRequest):
                self.heard = sent
                asked = asked_of(sent).get(0)
                if asked is not None:
                    self.told = here[: asked[0]]

    # --- as a follower

    def fetch(self) -> None:
        """The leader answers, or one that leads no more does not."""
        for sent in [one for one in self.harness.sent if isinstance(one.request, FetchRequest)]:
            broker_id = sent.to.port - 9000
            asked = asked_of(sent).get(0) or self.positions.get(broker_id)
            if asked is None or broker_id != self.leader or asked[1] != self.epoch:
                self.answer(sent)
                continue
            self.positions[broker_id] = asked
            offset, _, epoch = asked
            if offset > len(self.theirs) or (offset and epoch >= 0 and self.theirs[offset - 1] != epoch):
                older = [end for end, one in enumerate(self.theirs, 1) if one <= epoch]
                end_offset = max(older, default=0)
                diverging = (self.theirs[end_offset - 1] if older else epoch, end_offset)
                del self.positions[broker_id]
                self.answer(sent, data(diverging=diverging, high_watermark=self.committed))
                continue
            records = self.theirs[offset : offset + self.rng.randrange(4)]
            self.committed = max(self.committed, min(offset, len(self.theirs)))
            self.positions[broker_id] = (offset + len(records), self.epoch, records[-1] if records else epoch)
            self.answer(sent, data(stored(offset, *records), high_watermark=self.committed))

    def answer(self, sent: Sent, *partitions: PartitionData) -> None:
        self.harness.sent.remove(sent)
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))]
        self.harness.answer(
            sent, FetchResponse(session_id=SESSION, responses=topics if partitions else [], error_code=0)
        )

    # --- as a leader

    def produce(self) -> None:
        """Somebody appends, here or there."""
        if self.leader != ME:
            self.theirs += [self.epoch] * self.rng.randrange(1, 4)
        elif self.role is Role.LEADER:
            end_offset = self.log.log_end_offset + 1

            def told(error: ApiError | None) -> None:
                self.waiting.remove(end_offset)
                if error is None:
                    self.told = max(self.told, epochs_in(self.log)[:end_offset], key=len)

            records = memoryview(bytearray(build([(NOW_MS, None, b"v", [])])))
            self.waiting.add(end_offset)
            kind = self.rng.choice(["on_written", "on_replicated"])
            self.harness.partition().append(records, now_ms=NOW_MS, **{kind: told})  # type: ignore[arg-type]

    def peer_fetches(self) -> None:
        if self.role is Role.LEADER:
            end_offset = self.log.written_end_offset
            self.peer_offset = min(self.peer_offset + self.rng.randrange(3), end_offset)
            self.harness.partition().record_follower_fetch(PEER, self.peer_offset, broker_epoch=20)

    # --- around it

    def elect(self) -> None:
        """Another one leads, which may not have all that is not committed."""
        if self.leader == ME:
            leader = PEER
            self.theirs = epochs_in(self.log)[: self.peer_offset]
            self.committed = min(self.log.high_watermark, self.peer_offset)
        else:
            leader = self.rng.choice([one for one in (ME, PEER, THIRD) if one != self.leader])
            if leader == ME:
                self.peer_offset = min(self.log.written_end_offset, self.log.high_watermark)
            else:
                kept = self.rng.randrange(min(self.committed, len(self.theirs)), len(self.theirs) + 1)
                del self.theirs[kept:]
        self.leader, self.epoch = leader, self.epoch + 1
        if leader != ME:
            self.theirs += [self.epoch] * self.rng.randrange(3)
        self.positions.clear()
        for sent in list(self.harness.sent):
            self.harness.sent.remove(sent)
            self.harness.answer(sent, PeerUnreachable("it leads no more"))
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

    def keep_house(self) -> None:
        self.harness.logs.tick(self.harness.host.monotonic_ms())
        self.harness.replicas.flush_due_logs()
        self.harness.logs.checkpoint(self.harness.host)

    # --- the end

    def settle(self) -> None:
        """Left alone, all comes to its end."""
        for _ in range(300):
            if self.held:
                self.held.pop(0).deliver()
            else:
                self.harness.host.advance(300)
            self.harness.turn()
            self.fetch()
            self.peer_fetches()
            self.harness.turn()
            self.listen()
        assert self.log.is_recoverable
        assert self.harness.logs.future_log("t", 0) is None
        assert (self.role is Role.LEADER) == (self.leader == ME)
        if self.role is Role.LEADER:
            assert not self.waiting
            assert self.log.high_watermark == self.log.log_end_offset
        else:
            assert epochs_in(self.log) == self.theirs

    def end(self) -> None:
        ending = self.rng.choice(["kill", "stop", "settle", *(["power"] if self.is_flushed else [])])
        if ending == "settle":
            self.settle()
        elif ending == "stop":
            self.harness.moves.stop()
            self.harness.host.held_work = None
            self.harness.turn()
            self.listen()
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
        assert here[: len(self.told)] == self.told


def run(seed: int) -> None:
    trouble = Trouble(seed)
    trouble.go_on()
    trouble.end()
    trouble.check()


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 50))
def test_what_was_told_is_there(first_seed: int) -> None:
    hold(run, range(first_seed, first_seed + 50))


def asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Follower.__init__

    def begins(self: Follower, *terms: Any) -> None:
        begin(self, *terms)
        self.has_staged = bool(self.partition.log.staged)

    monkeypatch.setattr(Follower, "__init__", begins)


def counts_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Partition) -> None:
        promises, self._flushing = self._flushing, ()
        self._on_written(promises, self.log.log_end_offset)

    monkeypatch.setattr(Partition, "_flush_moved_log", keep)


def never(name: str) -> Break:
    return lambda monkeypatch: monkeypatch.setattr(Log, name, property(lambda self: False))


BREAKAGES = {
    "a log on its way is counted on": (241, never("has_unrecoverable_records")),
    "a cut is not waited for": (21, never("awaits_sync")),
    "a new leader is told of what is not synced": (97, asks_at_once),
    "a sync of the old directory counts for the new one": (96, counts_the_old_one),
}


@pytest.mark.parametrize(("seed", "breakage"), BREAKAGES.values(), ids=BREAKAGES)
def test_what_holds_it_together_is_missed_when_it_is_gone(
    seed: int, breakage: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    miss(run, seed, breakage, monkeypatch)
