"""Brokers and a controller of one cluster, over a simulated network."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole, apis_for
from kwire.broker.config import BrokerConfig, load
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import InitialMetadata, format_directories, standalone_voter
from kwire.broker.storage.dirs.meta_properties import StartRefused
from kwire.host.host import PeerAddress
from kwire.testing.disk import MemoryDisk
from kwire.testing.network import Network
from kwire.testing.virtual_host import EventQueue
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest
from kwire.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
COMMON = {
    "log.dirs": "/data",
    "controller.quorum.voters": "1@one:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
CONTROLLER = {"process.roles": "controller", "node.id": "1", "listeners": "CONTROLLER://one:9093"}
BOTH = {"node.id": "1", "listeners": "CONTROLLER://one:9093,PLAINTEXT://one:9092"}
SERVED = {"share.version": 0, "streams.version": 0}
HEARTBEAT_MS = 2_000
SESSION_MS = 9_000


def broker(node_id: int, name: str) -> dict[str, str]:
    return {"process.roles": "broker", "node.id": str(node_id), "listeners": f"PLAINTEXT://{name}:9092"}


class VirtualCluster:
    """The nodes of one cluster."""

    def __init__(
        self, *nodes: dict[str, str], features: dict[str, int] = SERVED, cluster_id: str = CLUSTER_ID
    ) -> None:
        self.network = Network(EventQueue())
        self.events = self.network.events
        self.nodes: dict[int, VirtualNode] = {}
        for settings in nodes:
            self.add(settings, features, cluster_id)

    def add(
        self,
        settings: dict[str, str],
        features: dict[str, int] = SERVED,
        cluster_id: str = CLUSTER_ID,
        *,
        is_first_voter: bool = False,
    ) -> VirtualNode:
        settings = COMMON | settings
        disk, node_id = MemoryDisk(), int(settings["node.id"])
        rng = random.Random(node_id)
        config = load(None, {}, settings)
        voters = [standalone_voter(config, rng)] if is_first_voter else []
        initial_metadata = InitialMetadata(features, voters=voters)
        format_directories(config, disk, rng, 0, cluster_id=cluster_id, initial_metadata=initial_metadata)
        self.formatted(disk, config)
        node = VirtualNode(settings, disk=disk, network=self.network, seed=len(self.nodes))
        self.nodes.setdefault(node_id, node)
        return node

    def formatted(self, disk: MemoryDisk, config: BrokerConfig) -> None:
        """Change a directory after formatting, before its node starts."""

    def stage(self, node_id: int) -> LifecycleStage:
        return self.nodes[node_id].node.lifecycle.stage

    def request(
        self, host: str, version: int, request: Any, *, port: int = 9092, within_ms: int = 1_000
    ) -> Any:
        answers: list[Any] = []
        client = self.network.connect(PeerAddress(host, port), "a client")
        client.send(version, request, answers.append)
        self.events.advance(within_ms)
        client.close()
        (answer,) = answers
        return answer

    def create(self, name: str, *, by: str, replicas: int = 2, within_ms: int = 1_000) -> Any:
        topic = CreatableTopic(name=name, num_partitions=2, replication_factor=replicas)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
        return self.request(by, 7, request, within_ms=within_ms).topics[0]


@pytest.fixture(params=[CONTROLLER, BOTH], ids=["controller", "both"])
def cluster(request: pytest.FixtureRequest) -> VirtualCluster:
    made = VirtualCluster(request.param, broker(2, "two"), broker(3, "three") | {"broker.rack": "there"})
    made.events.advance(1_000)
    return made


def test_brokers_register_and_are_unfenced(cluster: VirtualCluster) -> None:
    assert {cluster.stage(2), cluster.stage(3)} == {LifecycleStage.UNFENCED}
    for host in ("two", "three"):
        told = cluster.request(host, 12, MetadataRequest(topics=[]))
        known = {(one.node_id, one.host, one.rack) for one in told.brokers}
        assert known >= {(2, "two", None), (3, "three", "there")}
        described = cluster.request(host, 1, DescribeClusterRequest(endpoint_type=1))
        assert described.cluster_id == CLUSTER_ID
        assert described.controller_id in {one.broker_id for one in described.brokers}


def test_controller_describes_controllers(cluster: VirtualCluster) -> None:
    described = cluster.request("one", 1, DescribeClusterRequest(endpoint_type=2), port=9093)
    assert [(one.broker_id, one.host, one.port) for one in described.brokers] == [(1, "one", 9093)]
    assert described.controller_id == 1


def test_broker_forwards_controller_requests(cluster: VirtualCluster) -> None:
    created = cluster.create("t", by="three")
    assert (created.error_code, created.num_partitions) == (ErrorCode.NONE, 2)
    assert created.configs
    for node in cluster.nodes.values():
        assert "t" in node.node.image.topics
    assert cluster.create("t", by="two").error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_broker_forwards_only_requests_that_it_does_not_serve(cluster: VirtualCluster) -> None:
    cluster.create("t", by="two")
    wanted = [(2, "t", "retention.ms", "1"), (8, "2", "kwire.none", "INFO"), (2, "gone", "retention.ms", "1")]
    resources = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[AlterableConfig(name=key, config_operation=0, value=value)],
        )
        for kind, name, key, value in wanted
    ]
    answer = cluster.request("two", 1, IncrementalAlterConfigsRequest(resources=resources))
    assert [(one.resource_name, one.error_code) for one in answer.responses] == [
        ("t", ErrorCode.NONE),
        ("2", ErrorCode.INVALID_CONFIG),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert cluster.nodes[3].node.image.config(2, "t") == {"retention.ms": "1"}


def test_broker_limits_forwarded_apis_to_the_controllers_versions(cluster: VirtualCluster) -> None:
    for node_id in (2, 3):
        forwarding = cluster.nodes[node_id].node.forwarding
        assert forwarding is not None
        assert forwarding.versions().keys() == apis_for(ListenerRole.CONTROLLER).keys()
    controller = cluster.nodes[1].node.forwarding
    assert controller is None or not controller.versions()


def test_forwarded_request_waits_for_a_controller(cluster: VirtualCluster) -> None:
    cluster.nodes[1].host.pause()
    cluster.events.timers.add(4_000, cluster.nodes[1].host.resume)
    assert cluster.create("t", by="two", within_ms=10_000).error_code == ErrorCode.NONE


def test_controlled_shutdown_of_a_broker(cluster: VirtualCluster) -> None:
    cluster.create("t", by="two")
    left: list[int] = []
    cluster.nodes[3].node.controlled_shutdown(lambda: left.append(cluster.events.clock.monotonic_ms()))
    cluster.events.advance(2 * HEARTBEAT_MS)
    assert left
    assert cluster.stage(3) is LifecycleStage.STOPPED
    image = cluster.nodes[2].node.image
    assert image.brokers[3].fenced
    assert all(partition.leader != 3 for partition in image.topics["t"].partitions)
    epoch = cluster.nodes[3].node.lifecycle.broker_epoch
    cluster.nodes[3].stop()
    cluster.nodes[3].start()
    cluster.events.advance(1_000)
    assert cluster.stage(3) is LifecycleStage.UNFENCED
    assert cluster.nodes[3].node.lifecycle.broker_epoch > epoch


def test_broker_without_heartbeats_is_fenced_and_recovers(cluster: VirtualCluster) -> None:
    epoch = cluster.nodes[2].node.lifecycle.broker_epoch
    cluster.nodes[2].host.pause()
    cluster.events.advance(SESSION_MS + 1_000)
    assert cluster.nodes[3].node.image.brokers[2].fenced
    cluster.nodes[2].host.resume()
    cluster.events.advance(2 * HEARTBEAT_MS)
    assert not cluster.nodes[3].node.image.brokers[2].fenced
    assert cluster.nodes[2].node.lifecycle.broker_epoch == epoch


def test_killed_broker_registers_after_its_session_times_out(cluster: VirtualCluster) -> None:
    cluster.nodes[2].die()
    cluster.nodes[2].start()
    cluster.events.advance(1_000)
    assert cluster.stage(2) is LifecycleStage.STARTING
    cluster.events.advance(2 * SESSION_MS)
    assert cluster.stage(2) is LifecycleStage.UNFENCED


def test_restarted_controller_gets_its_brokers_back(cluster: VirtualCluster) -> None:
    cluster.nodes[1].die()
    cluster.events.advance(3_000)
    cluster.nodes[1].start()
    cluster.events.advance(3_000)
    assert cluster.create("t", by="two").error_code == ErrorCode.NONE
    assert {cluster.stage(2), cluster.stage(3)} == {LifecycleStage.UNFENCED}


def test_combined_node_moves_its_leaders_before_it_shuts_down() -> None:
    cluster = VirtualCluster(BOTH, broker(2, "two"), broker(3, "three"))
    cluster.events.advance(1_000)
    cluster.create("t", by="two", replicas=3)
    left: list[bool] = []
    cluster.nodes[1].node.controlled_shutdown(lambda: left.append(True))
    cluster.events.advance(3 * HEARTBEAT_MS)
    assert left
    image = cluster.nodes[2].node.image
    assert image.brokers[1].fenced
    assert {partition.leader for partition in image.topics["t"].partitions} <= {2, 3}
    cluster.nodes[1].stop()
    cluster.nodes[1].start()
    cluster.events.advance(3 * HEARTBEAT_MS)
    assert [cluster.stage(node_id) for node_id in (1, 2, 3)] == [LifecycleStage.UNFENCED] * 3


def test_unregistered_broker_registers_again(cluster: VirtualCluster) -> None:
    epoch = cluster.nodes[3].node.lifecycle.broker_epoch
    answer = cluster.request("two", 0, UnregisterBrokerRequest(broker_id=3))
    assert answer.error_code == ErrorCode.NONE
    cluster.events.advance(2 * HEARTBEAT_MS)
    assert not cluster.nodes[2].node.image.brokers[3].fenced
    assert cluster.nodes[3].node.lifecycle.broker_epoch > epoch


def test_upgrade_adds_the_directories_of_brokers() -> None:
    cluster = VirtualCluster(BOTH, broker(2, "two"), features={"metadata.version": 14})
    cluster.events.advance(1_000)
    assert cluster.stage(2) is LifecycleStage.UNFENCED
    epochs = {node_id: node.node.lifecycle.broker_epoch for node_id, node in cluster.nodes.items()}
    assert [broker.log_dirs for broker in cluster.nodes[1].node.image.brokers.values()] == [(), ()]
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=19, upgrade_type=1)
    answer = cluster.request("two", 1, UpdateFeaturesRequest(feature_updates=[update], timeout_ms=1_000))
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    cluster.events.advance(2 * HEARTBEAT_MS)
    for node_id, known in cluster.nodes[2].node.image.brokers.items():
        assert len(known.log_dirs) == 1
        assert (known.broker_epoch, known.fenced) == (epochs[node_id], False)


def test_second_broker_with_the_same_id_is_rejected(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    epoch = cluster.nodes[3].node.lifecycle.broker_epoch
    twin = cluster.add(broker(3, "four"))
    cluster.events.advance(3 * SESSION_MS)
    assert twin.node.lifecycle.stage is LifecycleStage.STARTING
    assert "Cannot register broker 3 (DUPLICATE_BROKER_REGISTRATION)" in caplog.text
    assert cluster.nodes[2].node.image.brokers[3].broker_epoch == epoch


def test_auto_topic_creation_by_a_broker(cluster: VirtualCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    assert cluster.request("two", 12, request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.request("three", 12, request).topics[0].error_code == ErrorCode.NONE


def test_broker_of_another_cluster_fails_with_an_error() -> None:
    cluster = VirtualCluster(CONTROLLER)
    cluster.add(broker(2, "two"), cluster_id="AAAAAAAAAAAAAAAAAAAAAg")
    cluster.events.advance(1_000)
    assert cluster.stage(2) is LifecycleStage.STARTING
    [reason] = cluster.nodes[2].fatal
    assert "the quorum belongs to another cluster" in reason


def test_unsupported_feature_fails_the_registration(caplog: pytest.LogCaptureFixture) -> None:
    cluster = VirtualCluster(CONTROLLER, broker(2, "two"), features={"streams.version": 0})
    cluster.events.advance(5_000)
    assert cluster.stage(2) is LifecycleStage.STARTING
    assert "kafka-features downgrade --feature share.version=0" in caplog.text


def test_broker_without_a_controller_has_no_cluster_id() -> None:
    with pytest.raises(StartRefused, match="kwire format"):
        VirtualNode(COMMON | broker(2, "two"))


def test_broker_that_never_registered_leaves_its_logs_unchanged() -> None:
    cluster = VirtualCluster(broker(2, "two"))
    cluster.events.advance(1_000)
    node = cluster.nodes[2]
    assert not node.node.is_open
    node.stop()
    assert "/data/.kafka_cleanshutdown" not in node.disk.names("/data")


def test_clients_are_rejected_until_the_logs_are_open() -> None:
    cluster = VirtualCluster(broker(2, "two"))
    answers: list[Any] = []
    cluster.network.connect(PeerAddress("two", 9092), "a client").send(
        12, MetadataRequest(topics=[]), answers.append
    )
    cluster.events.advance(100)
    assert isinstance(answers[0], Exception)
    cluster.add(CONTROLLER)
    cluster.events.advance(3_000)
    assert cluster.request("two", 12, MetadataRequest(topics=[])).cluster_id == CLUSTER_ID
    assert cluster.nodes[1].connect("CONTROLLER", ListenerRole.CONTROLLER)
