"""Quorums of three controllers, with separate brokers or as combined nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from kwire.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)
from kwire.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.broker.node.test_cluster import SESSION_MS, VirtualCluster, broker

NAMES = {1: "one", 2: "two", 3: "cluster"}
VOTERS = {"controller.quorum.voters": ",".join(f"{node_id}@{name}:9093" for node_id, name in NAMES.items())}
NO_SETTINGS: Mapping[str, str] = {}
ELECTION_MS = 10_000
"""An election completes within this time."""
QUORUM = DescribeQuorumRequest(
    topics=[RequestTopicData(topic_name="__cluster_metadata", partitions=[RequestPartitionData()])]
)


def controller_node(node_id: int) -> dict[str, str]:
    listeners = f"CONTROLLER://{NAMES[node_id]}:9093"
    return {"process.roles": "controller", "node.id": str(node_id), "listeners": listeners} | VOTERS


def combined_node(node_id: int) -> dict[str, str]:
    name = NAMES[node_id]
    listeners = f"CONTROLLER://{name}:9093,PLAINTEXT://{name}:9092"
    return {"process.roles": "broker,controller", "node.id": str(node_id), "listeners": listeners} | VOTERS


def set_level(feature: str, level: int, *, check: bool = False) -> UpdateFeaturesRequest:
    """Build a request that upgrades a feature, or downgrades it to level 0."""
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=1 if level else 2)
    return UpdateFeaturesRequest(feature_updates=[update], validate_only=check, timeout_ms=1_000)


class ThreeControllers(VirtualCluster):
    """Three controllers, and two brokers unless the nodes are combined."""

    def __init__(self, kind: str, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        self.is_combined = kind == "both"
        if self.is_combined:
            nodes = [*map(combined_node, NAMES)]
        else:
            nodes = [*map(controller_node, NAMES), broker(4, "four") | VOTERS, broker(5, "five") | VOTERS]
        super().__init__(*(node | dict(settings) for node in nodes))
        self.events.advance(ELECTION_MS)

    @property
    def brokers(self) -> list[int]:
        return list(NAMES) if self.is_combined else [4, 5]

    def voters(self) -> list[VirtualNode]:
        return [self.nodes[node_id] for node_id in NAMES if self.nodes[node_id].is_running]

    def leader(self) -> VirtualNode:
        [leader] = [node for node in self.voters() if node.node.quorum.leads]
        for node in self.voters():
            assert node.node.quorum.leader_id == leader.node.node_id
            assert node.node.quorum.epoch == leader.node.quorum.epoch
        return leader

    def other_broker(self, than: VirtualNode) -> str:
        """Return the host name of another broker."""
        names = NAMES | {4: "four", 5: "five"}
        return next(names[node_id] for node_id in self.brokers if self.nodes[node_id] is not than)

    def quorum(self, by: str) -> Any:
        return self.request(by, 2, QUORUM).topics[0].partitions[0]

    def set_level(self, feature: str, level: int, *, by: str = "", check: bool = False) -> Any:
        by = by or self.other_broker(self.leader())
        return self.request(by, 2, set_level(feature, level, check=check))


@pytest.fixture(params=["controllers", "both"])
def cluster(request: pytest.FixtureRequest) -> ThreeControllers:
    return ThreeControllers(request.param)


def test_one_controller_is_elected_and_brokers_register(cluster: ThreeControllers) -> None:
    cluster.leader()
    assert {cluster.stage(node_id) for node_id in cluster.brokers} == {LifecycleStage.UNFENCED}
    assert set(cluster.leader().node.image.controllers) == set(NAMES)
    for name in NAMES.values():
        described = cluster.request(name, 1, DescribeClusterRequest(endpoint_type=2), port=9093)
        assert {one.broker_id for one in described.brokers} == set(NAMES)
        assert described.controller_id == cluster.leader().node.node_id


def test_any_broker_forwards_topic_creation(cluster: ThreeControllers) -> None:
    names = NAMES if cluster.is_combined else {4: "four", 5: "five"}
    for name in names.values():
        assert cluster.create(f"by-{name}", by=name).error_code == ErrorCode.NONE
    for node in cluster.nodes.values():
        assert len(node.node.image.topics) == len(names)


def test_quorum_survives_the_death_of_two_leaders_in_turn(cluster: ThreeControllers) -> None:
    for number in range(4):
        leader = cluster.leader()
        leader.die()
        cluster.events.advance(ELECTION_MS)
        successor = cluster.leader()
        assert successor is not leader
        assert cluster.create(f"t{number}", by=cluster.other_broker(leader)).error_code == ErrorCode.NONE
        leader.start()
        cluster.events.advance(ELECTION_MS)
        assert f"t{number}" in leader.node.image.topics
        assert not leader.fatal


def test_clean_stop_of_the_leader_elects_another_quickly(cluster: ThreeControllers) -> None:
    leader = cluster.leader()
    left: list[int] = []
    began_ms = cluster.events.clock.monotonic_ms()
    leader.node.controlled_shutdown(lambda: left.append(cluster.events.clock.monotonic_ms()))
    cluster.events.advance(1_000)
    assert left
    assert left[0] - began_ms < 500
    leader.stop()
    cluster.events.advance(100)
    assert cluster.leader() is not leader


def test_quorum_and_cluster_are_described_completely(cluster: ThreeControllers) -> None:
    leader = cluster.leader()
    found = cluster.quorum("four" if not cluster.is_combined else "two")
    assert (found.error_code, found.leader_id) == (0, leader.node.node_id)
    assert [one.replica_id for one in found.current_voters] == list(NAMES)
    assert [one.replica_id for one in found.observers] == ([] if cluster.is_combined else [4, 5])
    ends = {one.log_end_offset for one in found.current_voters}
    assert max(ends) - min(ends) <= 2


def test_feature_levels_change_once_all_controllers_support_them(cluster: ThreeControllers) -> None:
    for level in (0, 1):
        assert cluster.set_level("group.version", level, check=True).error_code == ErrorCode.NONE
        assert cluster.leader().node.image.features.get("group.version", 0) == 1 - level
        assert cluster.set_level("group.version", level).error_code == ErrorCode.NONE
        for node in cluster.nodes.values():
            assert node.node.image.features.get("group.version", 0) == level
    by = cluster.other_broker(cluster.leader())
    cluster.leader().die()
    cluster.events.advance(ELECTION_MS)
    # The registration of a stopped controller stays.
    assert cluster.set_level("group.version", 0, by=by).error_code == ErrorCode.NONE


def test_feature_update_waits_for_an_unregistered_controller() -> None:
    cluster = VirtualCluster(combined_node(1), combined_node(2))
    cluster.events.advance(ELECTION_MS)
    answer = cluster.request("one", 2, set_level("group.version", 0))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message.endswith("controller 3 has not registered, and may not support this feature")


def test_static_quorum_becomes_dynamic(cluster: ThreeControllers) -> None:
    assert cluster.set_level("kraft.version", 1, check=True).error_code == ErrorCode.NONE
    assert cluster.leader().node.quorum.kraft_version == 0
    assert cluster.set_level("kraft.version", 1).error_code == ErrorCode.NONE
    for _ in range(2):
        for node in cluster.voters():
            quorum = node.node.quorum
            assert quorum.kraft_version == 1
            for voter_id in NAMES:
                known = quorum.log.voters.of_id(voter_id)
                assert known is not None
                assert known.key.directory_id == cluster.nodes[voter_id].node.quorum.log.directory_id
        leader = cluster.leader()
        leader.die()
        cluster.events.advance(ELECTION_MS)
        leader.start()
        cluster.events.advance(ELECTION_MS)
    refused = cluster.set_level("kraft.version", 0)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.set_level("kraft.version", 1).error_code == ErrorCode.NONE


def test_kraft_version_upgrade_requires_every_voters_directory(cluster: ThreeControllers) -> None:
    leader = cluster.leader()
    dead = next(node for node in cluster.voters() if node is not leader)
    dead.die()
    leader.stop()
    leader.start()
    cluster.events.advance(ELECTION_MS)
    for check in (True, False):
        answer = cluster.set_level("kraft.version", 1, by=cluster.other_broker(dead), check=check)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "not every voter has registered" in answer.error_message
    dead.start()
    cluster.events.advance(ELECTION_MS)
    assert cluster.set_level("kraft.version", 1).error_code == ErrorCode.NONE


@pytest.mark.parametrize("kind", ["controllers", "both"])
def test_new_leader_restarts_every_broker_session(kind: str) -> None:
    """No live broker is fenced because of a long election."""
    slow = {"controller.quorum.election.timeout.ms": "5000", "controller.quorum.fetch.timeout.ms": "5000"}
    cluster = ThreeControllers(kind, slow)
    cluster.events.advance(2 * ELECTION_MS)
    leader = cluster.leader()
    alive = [node_id for node_id in cluster.brokers if cluster.nodes[node_id] is not leader]
    epochs = {node_id: cluster.nodes[node_id].node.lifecycle.broker_epoch for node_id in alive}
    began_ms = cluster.events.clock.monotonic_ms()
    leader.die()
    while not any(node.node.quorum.leads for node in cluster.voters()):
        cluster.events.advance(50)
    active_ms = cluster.events.clock.monotonic_ms()
    assert active_ms - began_ms >= 4_500, "the last heartbeat may precede the death by half a second"

    def is_fenced(node_id: int) -> bool:
        return cluster.leader().node.image.brokers[node_id].fenced

    while cluster.events.clock.monotonic_ms() < active_ms + 3 * SESSION_MS:
        assert not any(map(is_fenced, alive))
        if cluster.is_combined and cluster.events.clock.monotonic_ms() < active_ms + SESSION_MS:
            # Dead brokers get a complete session too: the new leader cannot know.
            assert not is_fenced(leader.node.node_id)
        cluster.events.advance(50)
    assert epochs == {node_id: cluster.nodes[node_id].node.lifecycle.broker_epoch for node_id in alive}
    if cluster.is_combined:
        assert is_fenced(leader.node.node_id)
