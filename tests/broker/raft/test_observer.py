"""An observer fetches from a controller over a network with faults, restarts and power loss."""

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
from tests.broker.raft.observer_node import DIRECTORY, ObserverNode

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


class ObserverCluster:
    """A controller and an observer on a simulated network."""

    def __init__(self, seed: int | None = None, faults: NetworkFaults = NO_FAULTS, **settings: str) -> None:
        rng = None if seed is None else random.Random(seed)
        self.network = Network(EventQueue(), rng, faults)
        self.controller = VirtualNode({**CONTROLLER, **settings}, network=self.network)
        self.observer = ObserverNode(self.network, self.controller.node.cluster_id, **settings)  # type: ignore[arg-type]
        self.topics = 0

    def advance(self, delay_ms: int = 1_000) -> None:
        self.network.events.advance(delay_ms)

    def create(self, count: int = 1, partitions: int = 1) -> None:
        """Create topics on the controller directly, independent of the network."""
        for _ in range(count):
            self.topics += 1
            topic = CreatableTopic(name=f"t{self.topics}", num_partitions=partitions, replication_factor=1)
            self.controller.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000))

    def snapshot_controller(self) -> None:
        """Move the start of the controller's log to a snapshot."""
        self.create(30, partitions=20)
        self.advance(70_000)
        assert self.controller.node.quorum.log.start_offset > 0

    def is_replicated(self) -> bool:
        """Return whether the observer's image and log equal the controller's."""
        mine, theirs = self.observer.image, self.controller.node.image
        if mine.offset < theirs.offset - 1:  # except for NoOpRecord
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
        assert self.is_replicated()


@pytest.fixture
def cluster() -> ObserverCluster:
    return ObserverCluster()


def test_observer_log_equals_the_leaders_byte_for_byte(cluster: ObserverCluster) -> None:
    cluster.create(5)
    cluster.observer.start()
    assert cluster.observer.observer.leader_id == -1
    cluster.advance()
    cluster.create(5)
    cluster.advance()
    assert cluster.is_replicated()
    assert set(cluster.observer.image.topics) == {f"t{number}" for number in range(1, 11)}
    view = cluster.observer.observer
    assert (view.leader_id, view.epoch, view.leads) == (1, 1, False)
    assert view.leader_address() == PeerAddress("one", 9093)
    assert cluster.observer.leaders == [(1, 1)]
    own, its = cluster.log_bytes(cluster.observer.disk), cluster.log_bytes(cluster.controller.disk)
    assert own == its[: len(own)]
    assert len(its) - len(own) < 500


def test_committed_record_reaches_the_observer_at_once(cluster: ObserverCluster) -> None:
    cluster.observer.start()
    cluster.advance(400)
    cluster.create()
    cluster.advance(5)
    assert "t1" in cluster.observer.image.topics


def test_quorum_state_file_of_an_observer(cluster: ObserverCluster) -> None:
    cluster.observer.start()
    cluster.advance()
    assert cluster.observer.disk.read(f"{DIRECTORY}/quorum-state") == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def test_idle_leader_writes_no_op_records_only_while_observers_fetch(cluster: ObserverCluster) -> None:
    quorum = cluster.controller.node.quorum
    before = quorum.log.end_offset
    cluster.advance(10_000)
    assert quorum.log.end_offset == before
    cluster.observer.start()
    cluster.advance(10_000)
    moved = quorum.log.end_offset - before
    assert 18 <= moved <= 20
    assert cluster.is_replicated()
    cluster.observer.stop()
    cluster.advance(310_000)
    before = quorum.log.end_offset
    cluster.advance(10_000)
    assert quorum.log.end_offset == before


def test_restarted_observer_continues_with_its_log(cluster: ObserverCluster) -> None:
    cluster.create(5)
    cluster.observer.start()
    cluster.advance()
    end_offset = cluster.observer.log.end_offset
    cluster.observer.stop()
    cluster.create(5)
    cluster.observer.start()
    assert cluster.observer.log.end_offset == end_offset
    assert cluster.observer.image.offset == -1, (
        "the high watermark is unknown before the first fetch response"
    )
    cluster.advance()
    assert cluster.is_replicated()


def test_observer_follows_a_restarted_controller_in_its_new_epoch(cluster: ObserverCluster) -> None:
    cluster.observer.start()
    cluster.advance()
    cluster.controller.stop()
    cluster.advance(5_000)
    cluster.controller.start()
    cluster.create()
    cluster.settle()
    assert cluster.observer.leaders == [(1, 1), (1, 2)]


def test_observer_of_a_trimmed_log_starts_with_a_snapshot() -> None:
    cluster = ObserverCluster(**SMALL, **{"controller.quorum.fetch.snapshot.max.bytes": "1000"})  # type: ignore[arg-type]
    cluster.snapshot_controller()
    cluster.observer.start()
    cluster.advance(5_000)
    assert cluster.is_replicated()
    assert cluster.observer.log.start_offset > 0
    snapshot = next(name for name in cluster.observer.disk.names(DIRECTORY) if name.endswith(".checkpoint"))
    path = f"{DIRECTORY}/{snapshot}"
    assert cluster.controller.disk.read(path) == cluster.observer.disk.read(path)
    cluster.observer.stop()
    cluster.observer.start()
    assert cluster.observer.image.topics, "a snapshot holds committed records only"
    cluster.settle()


def test_empty_log_after_a_snapshot_is_not_restarted(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ObserverCluster(**SMALL)  # type: ignore[arg-type]
    cluster.snapshot_controller()
    cluster.observer.start()
    while not cluster.observer.image.topics:
        cluster.advance(1)
    cluster.observer.kill()
    assert cluster.observer.log.start_offset == cluster.observer.log.end_offset
    with caplog.at_level("INFO"):
        cluster.observer.start()
    assert "Loading metadata snapshot" in caplog.text
    assert "restarting it after" not in caplog.text
    cluster.settle()


def test_observer_behind_the_log_start_restarts_from_a_snapshot() -> None:
    cluster = ObserverCluster(**SMALL)  # type: ignore[arg-type]
    cluster.create(3)
    cluster.observer.start()
    cluster.advance()
    cluster.network.isolate(cluster.observer.name)
    created: list[set[str]] = []
    cluster.observer.publisher.subscribe(
        lambda image, delta: created.append({topic.name for topic in delta.created_topics})
    )
    cluster.snapshot_controller()
    cluster.settle()
    assert len(created[0]) > 3, "one delta has all missed topics"
    assert cluster.observer.log.start_offset > 0


def test_fetched_snapshot_cancels_the_observers_own() -> None:
    cluster = ObserverCluster(**SMALL)  # type: ignore[arg-type]
    cluster.create(3)
    cluster.observer.start(**{"metadata.max.retention.bytes": "-1"})
    cluster.advance()
    cluster.network.isolate(cluster.observer.name)
    held = cluster.observer.host.hold_work()
    cluster.observer.snapshotter._begin("a test requests it")
    cluster.advance(50)
    own, done = held[0], 1
    cluster.snapshot_controller()
    cluster.network.heal()
    for _ in range(20):
        cluster.advance(500)
        while done < len(held):
            held[done].deliver()
            done += 1
            cluster.observer.host.run_pending()
    assert cluster.observer.log.start_offset > 0
    own.deliver()
    cluster.advance(100)
    while done < len(held):
        held[done].deliver()
        done += 1
        cluster.observer.host.run_pending()
    assert [name for name in cluster.observer.disk.names(DIRECTORY) if name.endswith(".part")] == []
    assert cluster.observer.log.snapshots.known[0].end_offset >= cluster.observer.log.start_offset
    assert not cluster.observer.fatal


def test_snapshot_is_resumed_after_disconnects() -> None:
    cluster = ObserverCluster(seed=3, **SMALL, **{"controller.quorum.fetch.snapshot.max.bytes": "500"})  # type: ignore[arg-type]
    cluster.snapshot_controller()
    cluster.observer.start()
    for _ in range(20):
        cluster.advance(5)
        cluster.network.break_some(1.0)
    cluster.settle()


def test_observer_of_another_cluster_fails() -> None:
    cluster = ObserverCluster()
    cluster.observer.cluster_id = "AAAAAAAAAAAAAAAAAAAAAA"
    cluster.observer.start()
    cluster.advance()
    [reason] = cluster.observer.fatal
    assert "another cluster" in reason


def test_observer_takes_its_own_snapshots() -> None:
    cluster = ObserverCluster(**SMALL)  # type: ignore[arg-type]
    cluster.observer.start()
    cluster.create(30, partitions=20)
    cluster.advance(70_000)
    assert cluster.observer.log.start_offset > 0
    cluster.create()
    cluster.settle()
    cluster.observer.kill()
    cluster.observer.start()
    cluster.settle()


def test_describe_quorum_returns_observers(cluster: ObserverCluster) -> None:
    cluster.observer.start()
    cluster.advance()
    topic = RequestTopicData(
        topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)]
    )
    answer = cluster.controller.call(2, DescribeQuorumRequest(topics=[topic]))
    [observer] = answer.topics[0].partitions[0].observers
    assert observer.replica_id == 7
    assert observer.replica_directory_id == cluster.observer.log.directory_id
    assert 0 < observer.log_end_offset <= cluster.observer.log.end_offset
    now_ms = cluster.controller.host.now_ms()
    assert now_ms - 600 <= observer.last_caught_up_timestamp <= observer.last_fetch_timestamp <= now_ms
    cluster.observer.stop()
    cluster.advance(301_000)
    assert (
        cluster.controller.call(2, DescribeQuorumRequest(topics=[topic])).topics[0].partitions[0].observers
        == []
    )


FAULTY = NetworkFaults(shortest_ms=1, longest_ms=20, slow=0.02, slowest_ms=3_000, breaks=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_observer_converges_after_random_faults(seed: int) -> None:
    rng = random.Random(seed)
    cluster = ObserverCluster(seed, FAULTY, **SMALL, **{"controller.quorum.fetch.snapshot.max.bytes": "700"})
    observer = cluster.observer
    observer.start()
    for _ in range(30):
        cluster.advance(rng.choice([1, 10, 100, 1_000, 3_000]))
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
                cluster.network.cut(observer.name, cluster.controller.host.name, both_ways=rng.random() < 0.5)
            case 5:
                cluster.network.heal()
            case 6:
                cluster.controller.stop()
                cluster.advance(rng.choice([0, 100, 4_000]))
                cluster.controller.start()
            case 7:
                cluster.controller.die()
                cluster.controller.start()
            case _:
                cluster.create(rng.randrange(1, 5), partitions=rng.randrange(1, 30))
    cluster.settle(30_000)
