"""Who follows the quorum never waits for its disk on the loop, also where its log is cut or begins anew.

Until a worker has made that durable it asks for nothing, and so nothing is appended.
"""

from __future__ import annotations

import random

import pytest

from kwire.testing.network import Network
from kwire.testing.virtual_host import EventQueue, WorkerTask
from kwire.wire.errors import ApiError
from tests.broker.node.test_syncs import WatchedDisk
from tests.broker.raft.observing import ObservingNode
from tests.broker.raft.test_elections_seen import FakeQuorum, Observing
from tests.broker.raft.test_observer import SMALL, World


class Standby:
    """The lead that a controller never gets which is no voter: it syncs what it appends all the same."""

    def became_leader(self, epoch: int) -> None:
        raise AssertionError

    def resigned(self, reason: ApiError) -> None:
        raise AssertionError

    def committed(self, offset: int) -> None:
        raise AssertionError

    def idle(self) -> None:
        raise AssertionError


@pytest.fixture(params=["observer", "controller"])
def leadership(request: pytest.FixtureRequest) -> Standby | None:
    return Standby() if request.param == "controller" else None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> WatchedDisk:
    disk, work = WatchedDisk(), WorkerTask.run

    def run(self: WorkerTask) -> None:
        disk.in_worker = True
        work(self)
        disk.in_worker = False

    monkeypatch.setattr(WorkerTask, "run", run)
    return disk


def deliver(node: ObservingNode, works: list[WorkerTask]) -> None:
    """Have the work that is held back be done, with what comes of it."""
    while works:
        works.pop(0).deliver()
        node.host.run_pending()


def test_a_cut_is_synced_in_a_worker(disk: WatchedDisk, leadership: Standby | None) -> None:
    events, quorum = EventQueue(), FakeQuorum(random.Random(1))
    leader = quorum.leader

    def all_know(epoch: int) -> None:
        for copy in quorum.voters.values():
            copy.epoch, copy.leader_id = epoch, leader.leader_id

    all_know(leader.epoch)
    quorum.append(8)
    node = Observing(Network(events), quorum)
    node.disk, node.leadership, node.work_delays = disk, leadership, None
    node.start()
    events.advance(2_000)
    assert node.log.end_offset == 9
    disk.on_loop.clear()
    all_know(leader.epoch + 1)
    del leader.epochs[3:]
    quorum.append(2)
    works = node.host.hold_work()
    events.advance(2_000)
    assert (node.log.end_offset, node.log.awaits_sync, disk.on_loop) == (3, True, [])
    assert node.observer.leader_id == leader.leader_id
    deliver(node, works)
    assert not node.log.awaits_sync
    for _ in range(10):
        events.advance(200)
        deliver(node, works)
    assert node.log.end_offset == 5
    assert not node.fatal
    assert disk.on_loop == []


def test_a_log_begins_anew_behind_a_snapshot_with_a_sync_in_a_worker(
    disk: WatchedDisk, leadership: Standby | None
) -> None:
    world = World(**SMALL)
    world.create(3)
    node = world.observer
    node.disk, node.leadership = disk, leadership
    node.start()
    world.advance()
    world.network.isolate(node.name)
    world.trim()
    disk.on_loop.clear()
    works = node.host.hold_work()
    world.network.heal()
    for _ in range(5_000):
        while works:
            works.pop(0).deliver()
        world.advance(1)
        if node.log.start_offset:
            break
    assert (disk.on_loop, node.log.awaits_sync) == ([], True)
    begins_at = node.log.start_offset
    assert begins_at > 0
    assert node.image.offset == begins_at - 1, "what the snapshot says is known at once"
    world.create()
    world.advance(2_000)
    assert (node.log.start_offset, node.log.end_offset) == (begins_at, begins_at)
    deliver(node, works)
    assert not node.log.awaits_sync
    for _ in range(20):
        world.advance(100)
        deliver(node, works)
    assert node.log.end_offset > begins_at
    assert not node.fatal
    assert disk.on_loop == []
