"""A follower's replica moves between log directories while its leader has more for it, or has less."""

from __future__ import annotations

import pytest

from kwire.broker.storage.log.log import Log
from kwire.testing.virtual_host import WorkerTask
from tests.broker.replication.follower_harness import FollowerHarness, data, stored

SMALL = {"log.segment.bytes": "1048576"}
BIG = 100_000


def moving(records: int = 9) -> tuple[FollowerHarness, Log, list[WorkerTask]]:
    """A follower on its way to the other directory; what it does in workers is up to the test."""
    harness = FollowerHarness(SMALL, directories=2)
    harness.follow()
    harness.fetch(data(stored(0, *[3] * records, size_bytes=BIG), high_watermark=2))
    old = harness.log()
    held = harness.host.hold_work()
    harness.moves.start(harness.partition(), harness.logs.directories()[old.directory.startswith("/d")])
    harness.host.run_pending()
    return harness, old, held


def work_on(harness: FollowerHarness, held: list[WorkerTask], most: int = 1000) -> None:
    """Do what is to be done in workers."""
    for _ in range(most):
        if not held:
            return
        held.pop(0).deliver()
        harness.host.run_pending()


def content(log: Log) -> list[tuple[int, int]]:
    """Base offset and epoch of each batch."""
    found: list[tuple[int, int]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset)
        head = region.read()[:16]
        found.append((int.from_bytes(head[:8], "big"), int.from_bytes(head[12:], "big")))
        offset += 1
    return found


def test_what_is_fetched_meanwhile_moves_along() -> None:
    harness, old, held = moving()
    work_on(harness, held, 2)
    harness.fetch(data(stored(9, 4, 4), high_watermark=11))
    work_on(harness, held)
    new = harness.log()
    assert new is not old
    assert (new.log_end_offset, new.high_watermark, new.leader_epochs) == (11, 11, [(3, 0), (4, 9)])
    harness.idle()
    harness.fetch(data(stored(11, 4), high_watermark=11))
    assert harness.asked == {0: (12, 4, 4)}
    assert harness.log() is new


@pytest.mark.parametrize("steps", range(12))
def test_what_the_leader_has_cut_away_does_not_come_back(steps: int) -> None:
    harness, old, held = moving()
    work_on(harness, held, steps)
    harness.fetch(data(diverging=(3, 4)))
    work_on(harness, held, 3)
    while 0 not in harness.asked:
        harness.idle()
        work_on(harness, held, 1)
    harness.fetch(data(stored(4, 4, 4), high_watermark=6))
    work_on(harness, held)
    harness.host.advance(5_000)
    work_on(harness, held)
    log = harness.log()
    assert log is not old
    assert content(log) == [(0, 3), (1, 3), (2, 3), (3, 3), (4, 4), (5, 4)]
    assert log.failure is None


def test_a_log_that_starts_anew_has_its_copy_do_so() -> None:
    harness, old, held = moving()
    work_on(harness, held, 3)
    harness.log().truncate_fully_and_start_at(50)
    harness.moves.source_truncated(harness.partition())
    work_on(harness, held)
    assert harness.log() is not old
    assert (harness.log().log_start_offset, harness.log().log_end_offset) == (50, 50)
