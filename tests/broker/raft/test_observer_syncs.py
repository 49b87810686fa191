"""An observer never waits for its disk on the loop, also after a truncation or a restart of its log.

It sends no fetch, and so appends nothing, until a worker has made the change durable.
"""

from __future__ import annotations

import random

import pytest

from kwire.testing.network import Network
from kwire.testing.virtual_host import EventQueue, WorkerTask
from kwire.wire.errors import ApiError
from tests.broker.node.test_syncs import WatchedDisk
from tests.broker.raft.observer_node import ObserverNode
from tests.broker.raft.test_observer import SMALL, ObserverCluster
from tests.broker.raft.test_observer_elections import CheckedObserver, FakeQuorum


class NonVoterLeadership:
    """The leadership of a controller that is no voter; it syncs its appends like a voter."""

    def check_bootstrap(self) -> None:
        pass

    def became_leader(self, epoch: int) -> None:
        raise AssertionError

    def resigned(self, reason: ApiError) -> None:
        raise AssertionError

    def committed(self, offset: int) -> None:
        raise AssertionError

    def idle(self) -> None:
        raise AssertionError


@pytest.fixture(params=["observer", "controller"])
def leadership(request: pytest.FixtureRequest) -> NonVoterLeadership | None:
    return NonVoterLeadership() if request.param == "controller" else None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> WatchedDisk:
    disk, work = WatchedDisk(), WorkerTask.run

    def run(self: WorkerTask) -> None:
        disk.in_worker = True
        work(self)
        disk.in_worker = False

    monkeypatch.setattr(WorkerTask, "run", run)
    return disk


def finish_work(node: ObserverNode, held: list[WorkerTask]) -> None:
    """Run the queued work of the workers and its callbacks."""
    while held:
        held.pop(0).deliver()
        node.host.run_pending()


def test_truncation_is_synced_in_a_worker(disk: WatchedDisk, leadership: NonVoterLeadership | None) -> None:
    events, quorum = EventQueue(), FakeQuorum(random.Random(1))
    leader = quorum.leader

    def all_know(epoch: int) -> None:
        for copy in quorum.voters.values():
            copy.epoch, copy.leader_id = epoch, leader.leader_id

    all_know(leader.epoch)
    quorum.append(8)
    node = CheckedObserver(Network(events), quorum)
    node.disk, node.leadership, node.work_delays = disk, leadership, None
    node.start()
    events.advance(2_000)
    assert node.log.end_offset == 9
    disk.on_loop.clear()
    all_know(leader.epoch + 1)
    del leader.epochs[3:]
    quorum.append(2)
    held = node.host.hold_work()
    events.advance(2_000)
    assert (node.log.end_offset, node.log.awaits_sync, disk.on_loop) == (3, True, [])
    assert node.observer.leader_id == leader.leader_id
    finish_work(node, held)
    assert not node.log.awaits_sync
    for _ in range(10):
        events.advance(200)
        finish_work(node, held)
    assert node.log.end_offset == 5
    assert not node.fatal
    assert disk.on_loop == []


def test_log_restart_after_a_snapshot_is_synced_in_a_worker(
    disk: WatchedDisk, leadership: NonVoterLeadership | None
) -> None:
    cluster = ObserverCluster(**SMALL)  # type: ignore[arg-type]
    cluster.create(3)
    node = cluster.observer
    node.disk, node.leadership = disk, leadership
    node.start()
    cluster.advance()
    cluster.network.isolate(node.name)
    cluster.snapshot_controller()
    disk.on_loop.clear()
    held = node.host.hold_work()
    cluster.network.heal()
    for _ in range(5_000):
        while held:
            held.pop(0).deliver()
        cluster.advance(1)
        if node.log.start_offset:
            break
    assert (disk.on_loop, node.log.awaits_sync) == ([], True)
    begins_at = node.log.start_offset
    assert begins_at > 0
    assert node.image.offset == begins_at - 1, "the image of the snapshot is visible at once"
    cluster.create()
    cluster.advance(2_000)
    assert (node.log.start_offset, node.log.end_offset) == (begins_at, begins_at)
    finish_work(node, held)
    assert not node.log.awaits_sync
    for _ in range(20):
        cluster.advance(100)
        finish_work(node, held)
    assert node.log.end_offset > begins_at
    assert not node.fatal
    assert disk.on_loop == []
