"""Leaders of partitions in a cluster: dead brokers, restarts, reassignments and preferred leaders."""

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
from tests.broker.node.test_cluster import CONTROLLER, HEARTBEAT_MS, SESSION_MS, VirtualCluster, broker

NAMES = {2: "two", 3: "three", 4: "four"}
QUICK = {"replica.lag.time.max.ms": "2000"}


class LeaderCluster(VirtualCluster):
    """A controller, three brokers, and a topic on two of them."""

    def __init__(self, controller: dict[str, str] | None = None, **configs: str) -> None:
        brokers = [broker(node_id, name) | QUICK for node_id, name in NAMES.items()]
        super().__init__(CONTROLLER | (controller or {}), *brokers)
        self.events.advance(1_000)
        self.create_topic("t", [2, 3], **configs)
        self.produce(b"one")

    def create_topic(self, name: str, replicas: list[int], **configs: str) -> None:
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
        answer = self.request("two", 7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000)).topics[0]
        assert answer.error_code == ErrorCode.NONE, answer

    def partition(self) -> PartitionImage:
        found = self.nodes[1].node.image.partition("t", 0)
        assert found is not None
        return found

    def produce(self, value: bytes) -> None:
        """Produce to the leader with acks=all."""
        data = PartitionProduceData(
            index=0, records=memoryview(build([(self.nodes[1].host.now_ms(), None, value, [])]))
        )
        topic = TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic])
        answer = self.request(NAMES[self.partition().leader], 9, request, within_ms=5_000)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    def reassign(self, *replicas: int) -> None:
        partition = ReassignablePartition(partition_index=0, replicas=list(replicas) or None)
        topics = [ReassignableTopic(name="t", partitions=[partition])]
        answer = self.request("two", 1, AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=1_000))
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer

    def reassignments(self) -> list[Any]:
        topics = self.request(
            "two", 0, ListPartitionReassignmentsRequest(topics=None, timeout_ms=1_000)
        ).topics
        return [
            (one.replicas, one.adding_replicas, one.removing_replicas)
            for topic in topics
            for one in topic.partitions
        ]

    def segments(self, node_id: int) -> dict[str, bytes]:
        """Return the log segments of the partition on a broker."""
        disk = self.nodes[node_id].disk
        names = disk.names("/data/t-0") if disk.exists("/data/t-0") else []
        return {name: bytes(disk.read(f"/data/t-0/{name}")) for name in names if name.endswith(".log")}


def test_dead_leader_is_replaced_and_follows_after_its_restart() -> None:
    cluster = LeaderCluster()
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2, 3))
    cluster.nodes[2].die()
    cluster.events.advance(SESSION_MS + 1_000)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (3,))
    cluster.produce(b"two")
    cluster.nodes[2].start()
    cluster.events.advance(5_000)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (2, 3))
    assert cluster.segments(2) == cluster.segments(3)


def test_preferred_leader_is_elected_at_the_check_interval() -> None:
    cluster = LeaderCluster({"leader.imbalance.check.interval.seconds": "30"})
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
    cluster.produce(b"two")


@pytest.mark.parametrize("target", [(2, 4), (4, 3), (4,), (2, 3, 4)])
def test_reassignment_completes_once_the_new_replicas_are_in_sync(target: tuple[int, ...]) -> None:
    cluster = LeaderCluster()
    cluster.reassign(*target)
    cluster.events.advance(5_000)
    partition = cluster.partition()
    assert partition.replicas == target
    assert set(partition.isr) == set(target)
    assert (partition.adding_replicas, partition.removing_replicas) == ((), ())
    assert cluster.reassignments() == []
    assert partition.leader in target
    cluster.produce(b"two")
    cluster.events.advance(1_000)
    assert all(cluster.segments(node_id) == cluster.segments(partition.leader) for node_id in target)
    assert all(not cluster.segments(node_id) for node_id in {2, 3, 4} - set(target))


def test_stuck_reassignment_is_listed_and_canceled() -> None:
    cluster = LeaderCluster()
    cluster.nodes[4].host.pause()
    cluster.reassign(2, 4)
    assert cluster.reassignments() == [([2, 4, 3], [4], [3])]
    cluster.reassign()
    assert cluster.reassignments() == []
    assert (cluster.partition().replicas, cluster.partition().isr) == ((2, 3), (2, 3))
    cluster.nodes[4].host.resume()
    cluster.produce(b"two")


@pytest.mark.parametrize("may_lose", ["false", "true"])
def test_replica_outside_the_isr_leads_only_with_unclean_election(may_lose: str) -> None:
    cluster = LeaderCluster(
        {"unclean.leader.election.interval.ms": "20000"}, unclean_leader_election_enable=may_lose
    )
    cluster.nodes[3].die()
    cluster.events.advance(SESSION_MS + 1_000)
    assert cluster.partition().isr == (2,)
    cluster.produce(b"two")
    cluster.nodes[2].die()
    cluster.events.advance(SESSION_MS + 1_000)
    assert cluster.partition().leader == -1
    cluster.nodes[3].start()
    cluster.events.advance(30_000)
    assert cluster.partition().leader == (3 if may_lose == "true" else -1)
    cluster.nodes[2].start()
    cluster.events.advance(10_000)
    # Without an unclean election, the leader is the last known in-sync replica.
    assert cluster.partition().leader == (3 if may_lose == "true" else 2)
    assert set(cluster.partition().isr) == {2, 3}
    assert cluster.partition().leader_recovery_state == 0
    assert cluster.segments(2) == cluster.segments(3)


def test_dead_broker_is_replaced_and_unregistered() -> None:
    cluster = LeaderCluster()
    cluster.nodes[3].die()
    cluster.events.advance(SESSION_MS + 1_000)
    answer = cluster.request("two", 0, UnregisterBrokerRequest(broker_id=3))
    assert answer.error_code == ErrorCode.NONE
    assert sorted(cluster.nodes[2].node.image.brokers) == [2, 4]
    cluster.produce(b"two")
    cluster.nodes[3].start()
    cluster.events.advance(5_000)
    assert cluster.partition().isr == (2, 3)
    assert cluster.segments(2) == cluster.segments(3)
