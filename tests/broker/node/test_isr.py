"""The ISR of what a node leads follows from who fetches, through the controller: here the same node."""

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
"""What a broker beside kwire's may not find in its cluster."""


class Cluster(NodeHarness):
    """A node that is all but broker 2, which only says that it lives, and fetches when the test says so."""

    def __init__(self) -> None:
        super().__init__(**{"replica.lag.time.max.ms": "2000", "min.insync.replicas": "2"})
        off = [FeatureUpdateKey(feature=name, max_version_level=0, upgrade_type=2) for name in UNSERVED]
        self.ask(2, UpdateFeaturesRequest(feature_updates=off, timeout_ms=1_000))
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
        self.epoch = self.ask(4, registration).broker_epoch
        self.beat()
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
        topics = [
            CreatableTopic(name="a", num_partitions=-1, replication_factor=-1, assignments=[assignment])
        ]
        answer = self.call(7, CreateTopicsRequest(topics=topics, timeout_ms=1_000))
        assert answer.topics[0].error_code == ErrorCode.NONE
        self.client = self.connect()

    def ask(self, version: int, request: Any) -> Any:
        return self.connect("CONTROLLER", ListenerRole.CONTROLLER).call(version, request)

    def beat(self) -> None:
        beat = BrokerHeartbeatRequest(
            broker_id=2, broker_epoch=self.epoch, current_metadata_offset=self.node.image.offset
        )
        assert self.ask(1, beat).error_code == ErrorCode.NONE

    def live(self, seconds: int, fetches_from: int | None = None) -> None:
        for _ in range(seconds):
            self.beat()
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

    def send(self) -> None:
        self.client.send(12, produce_request("a", acks=-1))

    def told(self) -> ErrorCode | None:
        answer = self.client.receive(12, type(produce_request("a")))
        return None if answer is None else ErrorCode(answer.responses[0].partition_responses[0].error_code)

    @property
    def known(self) -> PartitionImage:
        found = self.node.image.partition("a", 0)
        assert found is not None
        return found


def test_who_fetches_is_in_the_isr_and_who_does_not_is_out_of_it() -> None:
    cluster = Cluster()
    assert cluster.known.isr == (1, 2)
    cluster.send()
    assert cluster.told() is None
    cluster.fetch(1)
    assert cluster.told() == ErrorCode.NONE

    cluster.live(5)
    assert cluster.known.isr == (1, 2), "it has all that there is"
    cluster.send()
    cluster.live(4)
    assert (cluster.known.isr, cluster.known.leader, cluster.known.leader_epoch) == ((1,), 1, 0)
    assert cluster.told() == ErrorCode.REQUEST_TIMED_OUT
    cluster.send()
    assert cluster.told() == ErrorCode.NOT_ENOUGH_REPLICAS

    cluster.live(2, fetches_from=0)
    assert cluster.known.isr == (1,), "it does not have what is committed"
    cluster.fetch(2)
    cluster.host.advance(100)
    assert cluster.known.isr == (1, 2)
    cluster.send()
    cluster.fetch(3)
    assert cluster.told() == ErrorCode.NONE


def test_a_broker_that_is_fenced_joins_no_isr() -> None:
    cluster = Cluster()
    cluster.host.advance(20_000)
    assert cluster.known.isr == (1,)
    for _ in range(3):
        cluster.fetch(0)
        cluster.host.advance(100)
    assert cluster.known.isr == (1,)
    cluster.beat()
    assert cluster.known.isr == (1,)
    cluster.fetch(0)
    cluster.host.advance(100)
    assert cluster.known.isr == (1, 2)
