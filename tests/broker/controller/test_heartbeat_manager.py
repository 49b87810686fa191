"""Broker sessions on the active controller, and its periodic tasks."""

from __future__ import annotations

import pytest

from kwire.broker.controller.commands import (
    AlterPartition,
    BrokerHeartbeat,
    CreateTopics,
    FeatureUpdate,
    PartitionAlteration,
    RegisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from kwire.broker.controller.periodic_tasks import NO_PERIODIC_TASKS, TaskPeriods
from kwire.broker.metadata.features import registered_features
from kwire.broker.metadata.image import EndpointImage
from kwire.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kwire.wire.primitives import Uuid
from tests.broker.controller.conftest import directory_of
from tests.broker.controller.test_runtime import RuntimeHarness

SESSION_MS, HEARTBEAT_MS = 9_000, 2_000


class HeartbeatCluster(RuntimeHarness):
    """Controller 1, which is also a broker, and brokers that send heartbeats when a test requests it."""

    def __init__(self, periods: TaskPeriods = NO_PERIODIC_TASKS) -> None:
        super().__init__(periods)
        self.become_active()
        self.commit()
        off = FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)
        self.submit(UpdateFeatures({"share.version": off, "streams.version": off}), "features")
        self.commit()
        for broker_id in (1, 2, 3):
            self.register(broker_id)
            self.heartbeat(broker_id)

    def register(self, broker_id: int) -> None:
        endpoints = [EndpointImage("PLAINTEXT", "127.0.0.1", 9090 + broker_id)]
        incarnation_id = Uuid(self.end_offset.to_bytes(16, "big"))
        directories = [directory_of(broker_id)]
        self.submit(
            RegisterBroker(broker_id, incarnation_id, endpoints, registered_features(), None, directories),
            "register",
        )
        self.commit()

    def heartbeat(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            broker = self.publisher.image.brokers[broker_id]
            offset = self.publisher.image.offset
            self.submit(BrokerHeartbeat(broker_id, broker.broker_epoch, offset, False, False), "heartbeat")
        self.commit()

    def pass_ms(self, passed_ms: int, *alive: int) -> None:
        """Advance the clock while these brokers send heartbeats."""
        for _ in range(passed_ms // HEARTBEAT_MS):
            self.host.advance(HEARTBEAT_MS)
            self.commit()
            self.heartbeat(*alive)

    def unfenced(self) -> list[int]:
        return [broker.broker_id for broker in self.publisher.image.alive_brokers()]

    def create_on(self, *brokers: int) -> None:
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(brokers))
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
        )
        self.submit(CreateTopics([topic]), "create")
        self.commit()

    def alter_isr(self, *isr: int) -> None:
        topic = self.publisher.image.topics["t"]
        [partition] = topic.partitions
        alteration = PartitionAlteration(
            topic.topic_id,
            0,
            partition.leader_epoch,
            partition.partition_epoch,
            [(member, -1) for member in isr],
        )
        epoch = self.publisher.image.brokers[partition.leader].broker_epoch
        self.submit(AlterPartition(partition.leader, epoch, [alteration]), "isr")
        self.commit()

    def leader(self) -> int:
        return self.publisher.image.topics["t"].partitions[0].leader


@pytest.fixture
def cluster() -> HeartbeatCluster:
    return HeartbeatCluster()


def test_a_broker_is_fenced_after_its_session_timeout(cluster: HeartbeatCluster) -> None:
    cluster.host.advance(SESSION_MS)
    cluster.commit()
    assert cluster.unfenced() == [1, 2, 3]
    cluster.heartbeat(2)
    cluster.host.advance(1)
    cluster.commit()
    assert cluster.unfenced() == [1, 2], "the session of the controller's own broker does not time out"


def test_heartbeats_keep_brokers_unfenced_and_write_no_records(cluster: HeartbeatCluster) -> None:
    before = cluster.publisher.image.offset
    cluster.pass_ms(60_000, 1, 2, 3)
    assert cluster.publisher.image.offset == before


def test_each_broker_is_fenced_on_top_of_the_previous_one(cluster: HeartbeatCluster) -> None:
    cluster.create_on(3, 2, 1)
    cluster.host.advance(SESSION_MS + 1)
    assert [len(batch.records) for batch in cluster.appended] == [2, 2]
    cluster.commit()
    assert (cluster.unfenced(), cluster.leader()) == ([1], 1)


def test_a_fenced_broker_is_unfenced_by_a_heartbeat(cluster: HeartbeatCluster) -> None:
    cluster.pass_ms(12_000, 2)
    assert cluster.unfenced() == [1, 2]
    cluster.heartbeat(3)
    assert cluster.unfenced() == [1, 2, 3]


def test_a_new_controller_starts_a_full_session_for_each_broker(cluster: HeartbeatCluster) -> None:
    cluster.host.advance(8_000)
    cluster.resign()
    cluster.host.advance(20_000)
    assert cluster.appended == []
    cluster.become_active()
    cluster.pass_ms(8_000, 2)
    assert cluster.unfenced() == [1, 2, 3]
    cluster.pass_ms(2_000, 2)
    assert cluster.unfenced() == [1, 2]


def test_a_paused_controller_does_not_fence_brokers_when_it_resumes(cluster: HeartbeatCluster) -> None:
    cluster.host.pause()
    cluster.host.advance(60_000)
    cluster.host.resume()
    cluster.host.run_pending()
    cluster.commit()
    assert cluster.unfenced() == [1, 2, 3]
    cluster.pass_ms(10_000, 2)
    assert cluster.unfenced() == [1, 2]


def test_preferred_leaders_are_elected_periodically() -> None:
    cluster = HeartbeatCluster(TaskPeriods(preferred_election_ms=300_000))
    cluster.create_on(3, 2)
    cluster.pass_ms(12_000, 2)
    assert cluster.leader() == 2
    cluster.heartbeat(3)
    cluster.alter_isr(2, 3)
    cluster.pass_ms(280_000, 2, 3)
    assert cluster.leader() == 2
    cluster.pass_ms(20_000, 2, 3)
    assert cluster.leader() == 3
    cluster.resign()
    cluster.host.advance(900_000)
    assert cluster.appended == []
