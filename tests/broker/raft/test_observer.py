"""An observer follows a controller over a network, whatever happens to either of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.metadata.snapshot import snapshot_records
from kwire.host.host import PeerAddress
from kwire.testing.network import NO_FAULTS, Network, NetworkFaults
from kwire.testing.virtual_host import EventQueue
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from tests.broker.raft.observing import DIRECTORY, ObservingNode

CONTROLLER = {
    "node.id": "1",
    "log.dirs": "/data",
    "listeners": "PLAINTEXT://one:9092,CONTROLLER://one:9093",
    "advertised.listeners": "PLAINTEXT://one:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@one:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
SMALL = {
    "metadata.log.max.record.bytes.between.snapshots": "5000",
    "metadata.max.retention.bytes": "10000",
    "internal.metadata.log.segment.bytes": "5000",
    "internal.metadata.delete.delay.millis": "100",
}


class World:
    """A controller, an observer, and what is between them."""

    def __init__(self, seed: int | None = None, faults: NetworkFaults = NO_FAULTS, **settings: str) -> None:
        rng = None if seed is None else random.Random(seed)
        self.network = Network(EventQueue(), rng, faults)
        self.controller = VirtualNode({**CONTROLLER, **settings}, network=self.network)
        self.observer = ObservingNode(self.network, self.controller.node.cluster_id, **settings)
        self.topics = 0

    def advance(self, delay_ms: int = 1_000) -> None:
        self.network.events.advance(delay_ms)

    def create(self, count: int = 1, partitions: int = 1) -> None:
        """Topics, one after another, of the controller itself: no matter what the network does."""
        for _ in range(count):
            self.topics += 1
            topic = CreatableTopic(name=f"t{self.topics}", num_partitions=partitions, replication_factor=1)
            self.controller.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000))

    def trim(self) -> None:
        """Have the controller's log begin with a snapshot."""
        self.create(30, partitions=20)
        self.advance(70_000)
        assert self.controller.node.quorum.log.start_offset > 0

    def is_followed(self) -> bool:
        """Whether the observer knows what the controller knows, and has it as the controller has it."""
        mine, theirs = self.observer.image, self.controller.node.image
        if mine.offset < theirs.offset - 1:  # but for what keeps the log moving
            return False
        assert list(map(repr, snapshot_records(mine))) == list(map(repr, snapshot_records(theirs)))
        own, its = self.log_bytes(self.observer.disk), self.log_bytes(self.controller.disk)
        assert own
        return own[-2_000:] in its or its[-2_000:] in own

    @staticmethod
    def log_bytes(disk: Any) -> bytes:
        names = sorted(name for name in disk.names(DIRECTORY) if name.endswith(".log"))
        return b"".join(disk.read(f"{DIRECTORY}/{name}") for name in names)

    def settle(self, delay_ms: int = 20_000) -> None:
        self.network.heal()
        self.network.faults = NO_FAULTS
        self.advance(delay_ms)
        assert not self.observer.fatal
        assert self.is_followed()


@pytest.fixture
def world() -> World:
    return World()


def test_the_log_is_the_leaders_byte_by_byte(world: World) -> None:
    world.create(5)
    world.observer.start()
    assert world.observer.observer.leader_id == -1
    world.advance()
    world.create(5)
    world.advance()
    assert world.is_followed()
    assert set(world.observer.image.topics) == {f"t{number}" for number in range(1, 11)}
    view = world.observer.observer
    assert (view.leader_id, view.epoch, view.leads) == (1, 1, False)
    assert view.leader_address() == PeerAddress("one", 9093)
    assert world.observer.leaders == [(1, 1)]
    own, its = world.log_bytes(world.observer.disk), world.log_bytes(world.controller.disk)
    assert own == its[: len(own)]
    assert len(its) - len(own) < 500


def test_what_is_committed_is_heard_of_at_once(world: World) -> None:
    world.observer.start()
    world.advance(400)
    world.create()
    world.advance(5)
    assert "t1" in world.observer.image.topics


def test_the_file_of_elections_is_that_of_an_observer(world: World) -> None:
    world.observer.start()
    world.advance()
    assert world.observer.disk.read(f"{DIRECTORY}/quorum-state") == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def test_a_quiet_log_moves_while_it_is_followed_and_only_then(world: World) -> None:
    quorum = world.controller.node.quorum
    before = quorum.log.end_offset
    world.advance(10_000)
    assert quorum.log.end_offset == before
    world.observer.start()
    world.advance(10_000)
    moved = quorum.log.end_offset - before
    assert 18 <= moved <= 20
    assert world.is_followed()
    world.observer.stop()
    world.advance(310_000)
    before = quorum.log.end_offset
    world.advance(10_000)
    assert quorum.log.end_offset == before


def test_a_restart_goes_on_with_what_was_written(world: World) -> None:
    world.create(5)
    world.observer.start()
    world.advance()
    end_offset = world.observer.log.end_offset
    world.observer.stop()
    world.create(5)
    world.observer.start()
    assert world.observer.log.end_offset == end_offset
    assert world.observer.image.offset == -1, "what is committed is not known before somebody says it"
    world.advance()
    assert world.is_followed()


def test_the_controller_restarts_and_is_followed_in_its_new_epoch(world: World) -> None:
    world.observer.start()
    world.advance()
    world.controller.stop()
    world.advance(5_000)
    world.controller.start()
    world.create()
    world.settle()
    assert world.observer.leaders == [(1, 1), (1, 2)]


def test_a_log_that_begins_later_is_begun_with_a_snapshot() -> None:
    world = World(**SMALL, **{"controller.quorum.fetch.snapshot.max.bytes": "1000"})
    world.trim()
    world.observer.start()
    world.advance(5_000)
    assert world.is_followed()
    assert world.observer.log.start_offset > 0
    snapshot = next(name for name in world.observer.disk.names(DIRECTORY) if name.endswith(".checkpoint"))
    path = f"{DIRECTORY}/{snapshot}"
    assert world.controller.disk.read(path) == world.observer.disk.read(path)
    world.observer.stop()
    world.observer.start()
    assert world.observer.image.topics, "the snapshot is known to be committed"
    world.settle()


def test_a_log_that_is_still_empty_is_not_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    world = World(**SMALL)
    world.trim()
    world.observer.start()
    while not world.observer.image.topics:
        world.advance(1)
    world.observer.kill()
    assert world.observer.log.start_offset == world.observer.log.end_offset
    with caplog.at_level("INFO"):
        world.observer.start()
    assert "Loading snapshot" in caplog.text
    assert "restarting it after" not in caplog.text
    world.settle()


def test_an_observer_that_is_left_behind_begins_anew() -> None:
    world = World(**SMALL)
    world.create(3)
    world.observer.start()
    world.advance()
    world.network.isolate(world.observer.name)
    told: list[set[str]] = []
    world.observer.publisher.subscribe(
        lambda image, delta: told.append({topic.name for topic in delta.created_topics})
    )
    world.trim()
    world.settle()
    assert len(told[0]) > 3, "one change tells all that was missed"
    assert world.observer.log.start_offset > 0


def test_an_own_snapshot_is_given_up_for_one_that_was_fetched() -> None:
    world = World(**SMALL)
    world.create(3)
    world.observer.start(**{"metadata.max.retention.bytes": "-1"})
    world.advance()
    world.network.isolate(world.observer.name)
    works = world.observer.host.hold_work()
    world.observer.snapshotter._begin("a test asks for it")
    world.advance(50)
    own, done = works[0], 1
    world.trim()
    world.network.heal()
    for _ in range(20):
        world.advance(500)
        while done < len(works):
            works[done].deliver()
            done += 1
            world.observer.host.run_pending()
    assert world.observer.log.start_offset > 0
    own.deliver()
    world.advance(100)
    while done < len(works):
        works[done].deliver()
        done += 1
        world.observer.host.run_pending()
    assert [name for name in world.observer.disk.names(DIRECTORY) if name.endswith(".part")] == []
    assert world.observer.log.snapshots.known[0].end_offset >= world.observer.log.start_offset
    assert not world.observer.fatal


def test_a_snapshot_goes_on_after_lost_connections() -> None:
    world = World(seed=3, **SMALL, **{"controller.quorum.fetch.snapshot.max.bytes": "500"})
    world.trim()
    world.observer.start()
    for _ in range(20):
        world.advance(5)
        world.network.break_some(1.0)
    world.settle()


def test_another_cluster_is_refused() -> None:
    world = World()
    world.observer.cluster_id = "AAAAAAAAAAAAAAAAAAAAAA"
    world.observer.start()
    world.advance()
    [reason] = world.observer.fatal
    assert "another cluster" in reason


def test_the_observer_takes_snapshots_of_its_own() -> None:
    world = World(**SMALL)
    world.observer.start()
    world.create(30, partitions=20)
    world.advance(70_000)
    assert world.observer.log.start_offset > 0
    world.create()
    world.settle()
    world.observer.kill()
    world.observer.start()
    world.settle()


def test_the_quorum_tells_of_its_observers(world: World) -> None:
    world.observer.start()
    world.advance()
    topic = RequestTopicData(
        topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)]
    )
    answer = world.controller.call(2, DescribeQuorumRequest(topics=[topic]))
    [observer] = answer.topics[0].partitions[0].observers
    assert observer.replica_id == 7
    assert observer.replica_directory_id == world.observer.log.directory_id
    assert 0 < observer.log_end_offset <= world.observer.log.end_offset
    now_ms = world.controller.host.now_ms()
    assert now_ms - 600 <= observer.last_caught_up_timestamp <= observer.last_fetch_timestamp <= now_ms
    world.observer.stop()
    world.advance(301_000)
    assert (
        world.controller.call(2, DescribeQuorumRequest(topics=[topic])).topics[0].partitions[0].observers
        == []
    )


FAULTY = NetworkFaults(shortest_ms=1, longest_ms=20, slow=0.02, slowest_ms=3_000, breaks=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_it_converges_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed, FAULTY, **SMALL, **{"controller.quorum.fetch.snapshot.max.bytes": "700"})
    observer = world.observer
    observer.start()
    for _ in range(30):
        world.advance(rng.choice([1, 10, 100, 1_000, 3_000]))
        match rng.randrange(10):
            case 0:
                observer.stop()
                observer.start()
            case 1:
                observer.kill()
                observer.start()
            case 2:
                observer.lose_power(rng)
                observer.start()
            case 3:
                observer.wipe()
                observer.start()
            case 4:
                world.network.cut(observer.name, world.controller.host.name, both_ways=rng.random() < 0.5)
            case 5:
                world.network.heal()
            case 6:
                world.controller.stop()
                world.advance(rng.choice([0, 100, 4_000]))
                world.controller.start()
            case 7:
                world.controller.die()
                world.controller.start()
            case _:
                world.create(rng.randrange(1, 5), partitions=rng.randrange(1, 30))
    world.settle(30_000)
