"""Moves of a follower's log between directories while it fetches or truncates."""

from __future__ import annotations

import pytest

from kwire.broker.storage.log.log import Log
from kwire.testing.virtual_host import WorkerTask
from tests.broker.replication.follower_harness import FollowerHarness, data, leader_batches

SMALL = {"log.segment.bytes": "1048576"}
BIG = 100_000


def start_move(records: int = 9) -> tuple[FollowerHarness, Log, list[WorkerTask]]:
    """Start a move to the other directory; the test runs the work of the workers."""
    harness = FollowerHarness(SMALL, directories=2)
    harness.follow()
    harness.fetch(data(leader_batches(0, *[3] * records, size_bytes=BIG), high_watermark=2))
    old = harness.log()
    held = harness.host.hold_work()
    harness.moves.start(harness.partition(), harness.logs.directories()[old.directory.startswith("/d")])
    harness.host.run_pending()
    return harness, old, held


def run_workers(harness: FollowerHarness, held: list[WorkerTask], most: int = 1000) -> None:
    """Run the queued work of the workers."""
    for _ in range(most):
        if not held:
            return
        held.pop(0).deliver()
        harness.host.run_pending()


def offsets_and_epochs(log: Log) -> list[tuple[int, int]]:
    """Return base offset and epoch of each batch."""
    found: list[tuple[int, int]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset)
        head = region.read()[:16]
        found.append((int.from_bytes(head[:8], "big"), int.from_bytes(head[12:], "big")))
        offset += 1
    return found


def test_records_fetched_during_a_move_are_in_the_new_log() -> None:
    harness, old, held = start_move()
    run_workers(harness, held, 2)
    harness.fetch(data(leader_batches(9, 4, 4), high_watermark=11))
    run_workers(harness, held)
    new = harness.log()
    assert new is not old
    assert (new.log_end_offset, new.high_watermark, new.leader_epochs) == (11, 11, [(3, 0), (4, 9)])
    harness.respond_empty()
    harness.fetch(data(leader_batches(11, 4), high_watermark=11))
    assert harness.fetch_positions == {0: (12, 4, 4)}
    assert harness.log() is new


@pytest.mark.parametrize("steps", range(12))
def test_truncated_records_do_not_return_after_a_move(steps: int) -> None:
    harness, old, held = start_move()
    run_workers(harness, held, steps)
    harness.fetch(data(diverging=(3, 4)))
    run_workers(harness, held, 3)
    while 0 not in harness.fetch_positions:
        harness.respond_empty()
        run_workers(harness, held, 1)
    harness.fetch(data(leader_batches(4, 4, 4), high_watermark=6))
    run_workers(harness, held)
    harness.host.advance(5_000)
    run_workers(harness, held)
    log = harness.log()
    assert log is not old
    assert offsets_and_epochs(log) == [(0, 3), (1, 3), (2, 3), (3, 3), (4, 4), (5, 4)]
    assert log.failure is None


def test_full_truncation_during_a_move_applies_to_the_new_log() -> None:
    harness, old, held = start_move()
    run_workers(harness, held, 3)
    harness.log().truncate_fully_and_start_at(50)
    harness.moves.source_truncated(harness.partition())
    run_workers(harness, held)
    assert harness.log() is not old
    assert (harness.log().log_start_offset, harness.log().log_end_offset) == (50, 50)
