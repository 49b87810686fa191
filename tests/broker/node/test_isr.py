"""The ISR of a leader follows the fetches of its followers, through the controller on the same node."""

from __future__ import annotations

from typing import Any

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.metadata.features import registered_features
from kwire.broker.metadata.image import PartitionImage
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from kwire.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from kwire.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kwire.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kwire.wire.primitives import Uuid
from tests.node_harness import NodeHarness, produce_request

UNSERVED = ("share.version", "streams.version")
"""Features that a broker other than kwire may not support."""


class IsrHarness(NodeHarness):
    """A node that leads a partition, with broker 2 played by the test."""

    def __init__(self) -> None:
        super().__init__(**{"replica.lag.time.max.ms": "2000", "min.insync.replicas": "2"})  # type: ignore[arg-type]
        off = [FeatureUpdateKey(feature=name, max_version_level=0, upgrade_type=2) for name in UNSERVED]
        self.request_controller(2, UpdateFeaturesRequest(feature_updates=off, timeout_ms=1_000))
        features = [
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in registered_features().items()
        ]
        registration = BrokerRegistrationRequest(
            broker_id=2,
            cluster_id=self.node.cluster_id,
            incarnation_id=Uuid(b"a-life-of-node-2"),
            listeners=[Listener(name="PLAINTEXT", host="two", port=9092)],
            features=features,
            log_dirs=[Uuid(b"directory-of-two")],
        )
        self.epoch = self.request_controller(4, registration).broker_epoch
        self.heartbeat()
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
        topics = [
            CreatableTopic(name="a", num_partitions=-1, replication_factor=-1, assignments=[assignment])
        ]
        answer = self.call(7, CreateTopicsRequest(topics=topics, timeout_ms=1_000))
        assert answer.topics[0].error_code == ErrorCode.NONE
        self.client = self.connect()

    def request_controller(self, version: int, request: Any) -> Any:
        return self.connect("CONTROLLER", ListenerRole.CONTROLLER).call(version, request)

    def heartbeat(self) -> None:
        heartbeat = BrokerHeartbeatRequest(
            broker_id=2, broker_epoch=self.epoch, current_metadata_offset=self.node.image.offset
        )
        assert self.request_controller(1, heartbeat).error_code == ErrorCode.NONE

    def run(self, seconds: int, fetches_from: int | None = None) -> None:
        for _ in range(seconds):
            self.heartbeat()
            if fetches_from is not None:
                self.fetch(fetches_from)
            self.host.advance(1_000)

    def fetch(self, offset: int) -> None:
        partition = FetchPartition(
            partition=0, current_leader_epoch=0, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topic = FetchTopic(topic_id=self.node.image.topics["a"].topic_id, partitions=[partition])
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=self.epoch),
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[topic],
        )
        found = self.connect().call(18, request).responses[0].partitions[0]
        assert found.error_code == ErrorCode.NONE

    def send_produce(self) -> None:
        self.client.send(12, produce_request("a", acks=-1))

    def produce_result(self) -> ErrorCode | None:
        answer = self.client.receive(12, type(produce_request("a")))
        return None if answer is None else ErrorCode(answer.responses[0].partition_responses[0].error_code)

    @property
    def partition(self) -> PartitionImage:
        found = self.node.image.partition("a", 0)
        assert found is not None
        return found


def test_isr_follows_the_fetches_of_a_replica() -> None:
    harness = IsrHarness()
    assert harness.partition.isr == (1, 2)
    harness.send_produce()
    assert harness.produce_result() is None
    harness.fetch(1)
    assert harness.produce_result() == ErrorCode.NONE

    harness.run(5)
    assert harness.partition.isr == (1, 2), "it is at the log end"
    harness.send_produce()
    harness.run(4)
    assert (harness.partition.isr, harness.partition.leader, harness.partition.leader_epoch) == ((1,), 1, 0)  # type: ignore[comparison-overlap]
    assert harness.produce_result() == ErrorCode.REQUEST_TIMED_OUT
    harness.send_produce()
    assert harness.produce_result() == ErrorCode.NOT_ENOUGH_REPLICAS

    harness.run(2, fetches_from=0)
    assert harness.partition.isr == (1,), "it is below the high watermark"  # type: ignore[comparison-overlap]
    harness.fetch(2)
    harness.host.advance(100)
    assert harness.partition.isr == (1, 2)
    harness.send_produce()
    harness.fetch(3)
    assert harness.produce_result() == ErrorCode.NONE


def test_fenced_broker_does_not_join_the_isr() -> None:
    harness = IsrHarness()
    harness.host.advance(20_000)
    assert harness.partition.isr == (1,)
    for _ in range(3):
        harness.fetch(0)
        harness.host.advance(100)
    assert harness.partition.isr == (1,)
    harness.heartbeat()
    assert harness.partition.isr == (1,)
    harness.fetch(0)
    harness.host.advance(100)
    assert harness.partition.isr == (1, 2)  # type: ignore[comparison-overlap]
