"""Who leads what in a cluster of whole nodes: when brokers die, come back, are asked to move or to lead."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.wire.batch import build
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kwire.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kwire.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kwire.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest
from tests.broker.node.test_cluster import CONTROLLER, HEARTBEAT_MS, SESSION_MS, Cluster, broker

NAMES = {2: "two", 3: "three", 4: "four"}
QUICK = {"replica.lag.time.max.ms": "2000"}


class Led(Cluster):
    """A controller, three brokers, and a topic on two of them."""

    def __init__(self, controller: dict[str, str] | None = None, **configs: str) -> None:
        brokers = [broker(node_id, name) | QUICK for node_id, name in NAMES.items()]
        super().__init__(CONTROLLER | (controller or {}), *brokers)
        self.events.advance(1_000)
        self.make("t", [2, 3], **configs)
        self.send(b"one")

    def make(self, name: str, replicas: list[int], **configs: str) -> None:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
        topic = CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        answer = self.ask("two", 7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000)).topics[0]
        assert answer.error_code == ErrorCode.NONE, answer

    def partition(self) -> PartitionImage:
        found = self.nodes[1].node.image.partition("t", 0)
        assert found is not None
        return found

    def send(self, value: bytes) -> None:
        """To the leader, for all that are in sync."""
        data = PartitionProduceData(
            index=0, records=memoryview(build([(self.nodes[1].host.now_ms(), None, value, [])]))
        )
        topic = TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        answer = self.ask(NAMES[self.partition().leader], 9, request, within_ms=5_000)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    def move(self, *replicas: int) -> None:
        partition = ReassignablePartition(partition_index=0, replicas=list(replicas) or None)
        topics = [ReassignableTopic(name="t", partitions=[partition])]
        answer = self.ask("two", 1, AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=1_000))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer

    def moving(self) -> list[Any]:
        topics = self.ask("two", 0, ListPartitionReassignmentsRequest(topics=None, timeout_ms=1_000)).topics
        return [
            (one.replicas, one.adding_replicas, one.removing_replicas)
            for topic in topics
            for one in topic.partitions
        ]

    def files(self, node_id: int) -> dict[str, bytes]:
        """The segments of the partition on a broker."""
        disk = self.nodes[node_id].disk
        names = disk.names("/data/t-0") if disk.exists("/data/t-0") else []
        return {name: bytes(disk.read(f"/data/t-0/{name}")) for name in names if name.endswith(".log")}


def test_others_lead_when_a_broker_dies_and_it_follows_when_it_is_back() -> None:
    cluster = Led()
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2, 3))
    cluster.nodes[2].die()
    cluster.events.advance(SESSION_MS + 1_000)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (3,))
    cluster.send(b"two")
    cluster.nodes[2].start()
    cluster.events.advance(5_000)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (2, 3))
    assert cluster.files(2) == cluster.files(3)


def test_the_preferred_leader_takes_over_in_time() -> None:
    cluster = Led({"leader.imbalance.check.interval.seconds": "30"})
    left: list[None] = []
    cluster.nodes[2].node.controlled_shutdown(lambda: left.append(None))
    cluster.events.advance(3 * HEARTBEAT_MS)
    assert left
    assert cluster.partition().leader == 3
    cluster.nodes[2].stop()
    cluster.nodes[2].start()
    cluster.events.advance(5_000)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (2, 3))
    cluster.events.advance(30_000)
    assert cluster.partition().leader == 2
    cluster.send(b"two")


@pytest.mark.parametrize("target", [(2, 4), (4, 3), (4,), (2, 3, 4)])
def test_a_partition_moves_once_the_new_replicas_have_it_all(target: tuple[int, ...]) -> None:
    cluster = Led()
    cluster.move(*target)
    cluster.events.advance(5_000)
    partition = cluster.partition()
    assert partition.replicas == target
    assert set(partition.isr) == set(target)
    assert (partition.adding_replicas, partition.removing_replicas) == ((), ())
    assert cluster.moving() == []
    assert partition.leader in target
    cluster.send(b"two")
    cluster.events.advance(1_000)
    assert all(cluster.files(node_id) == cluster.files(partition.leader) for node_id in target)
    assert all(not cluster.files(node_id) for node_id in {2, 3, 4} - set(target))


def test_a_move_that_cannot_end_is_told_of_and_called_off() -> None:
    cluster = Led()
    cluster.nodes[4].host.pause()
    cluster.move(2, 4)
    assert cluster.moving() == [([2, 4, 3], [4], [3])]
    cluster.move()
    assert cluster.moving() == []
    assert (cluster.partition().replicas, cluster.partition().isr) == ((2, 3), (2, 3))
    cluster.nodes[4].host.resume()
    cluster.send(b"two")


@pytest.mark.parametrize("may_lose", ["false", "true"])
def test_who_is_not_in_sync_leads_only_where_it_may(may_lose: str) -> None:
    cluster = Led({"unclean.leader.election.interval.ms": "20000"}, unclean_leader_election_enable=may_lose)
    cluster.nodes[3].die()
    cluster.events.advance(SESSION_MS + 1_000)
    assert cluster.partition().isr == (2,)
    cluster.send(b"two")
    cluster.nodes[2].die()
    cluster.events.advance(SESSION_MS + 1_000)
    assert cluster.partition().leader == -1
    cluster.nodes[3].start()
    cluster.events.advance(30_000)
    assert cluster.partition().leader == (3 if may_lose == "true" else -1)
    cluster.nodes[2].start()
    cluster.events.advance(10_000)
    # Where nobody has taken its place it is the last one known to have all of it.
    assert cluster.partition().leader == (3 if may_lose == "true" else 2)
    assert set(cluster.partition().isr) == {2, 3}
    assert cluster.partition().leader_recovery_state == 0
    assert cluster.files(2) == cluster.files(3)


def test_a_broker_that_does_not_come_back_is_forgotten() -> None:
    cluster = Led()
    cluster.nodes[3].die()
    cluster.events.advance(SESSION_MS + 1_000)
    answer = cluster.ask("two", 0, UnregisterBrokerRequest(broker_id=3))
    assert answer.error_code == ErrorCode.NONE
    assert sorted(cluster.nodes[2].node.image.brokers) == [2, 4]
    cluster.send(b"two")
    cluster.nodes[3].start()
    cluster.events.advance(5_000)
    assert cluster.partition().isr == (2, 3)
    assert cluster.files(2) == cluster.files(3)
