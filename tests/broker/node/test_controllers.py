"""Several controllers, which elect one of them; alone, and as brokers, too."""

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
from tests.broker.node.test_cluster import SESSION_MS, Cluster, broker

NAMES = {1: "one", 2: "two", 3: "three"}
VOTERS = {"controller.quorum.voters": ",".join(f"{node_id}@{name}:9093" for node_id, name in NAMES.items())}
NOTHING: Mapping[str, str] = {}
ELECTION_MS = 10_000
"""Within which somebody is elected, whoever stands how often."""
QUORUM = DescribeQuorumRequest(
    topics=[RequestTopicData(topic_name="__cluster_metadata", partitions=[RequestPartitionData()])]
)


def controller(node_id: int) -> dict[str, str]:
    listeners = f"CONTROLLER://{NAMES[node_id]}:9093"
    return {"process.roles": "controller", "node.id": str(node_id), "listeners": listeners} | VOTERS


def both(node_id: int) -> dict[str, str]:
    name = NAMES[node_id]
    listeners = f"CONTROLLER://{name}:9093,PLAINTEXT://{name}:9092"
    return {"process.roles": "broker,controller", "node.id": str(node_id), "listeners": listeners} | VOTERS


def set_level(feature: str, level: int, *, check: bool = False) -> UpdateFeaturesRequest:
    """Up; to 0, down."""
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=1 if level else 2)
    return UpdateFeaturesRequest(feature_updates=[update], validate_only=check, timeout_ms=1_000)


class Three(Cluster):
    """Three controllers and, where those are none, two brokers."""

    def __init__(self, kind: str, settings: Mapping[str, str] = NOTHING) -> None:
        self.is_combined = kind == "both"
        if self.is_combined:
            nodes = [*map(both, NAMES)]
        else:
            nodes = [*map(controller, NAMES), broker(4, "four") | VOTERS, broker(5, "five") | VOTERS]
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

    def another(self, than: VirtualNode) -> str:
        """The name of a broker that is another node."""
        names = NAMES | {4: "four", 5: "five"}
        return next(names[node_id] for node_id in self.brokers if self.nodes[node_id] is not than)

    def quorum(self, by: str) -> Any:
        return self.ask(by, 2, QUORUM).topics[0].partitions[0]

    def set_level(self, feature: str, level: int, *, by: str = "", check: bool = False) -> Any:
        by = by or self.another(self.leader())
        return self.ask(by, 2, set_level(feature, level, check=check))


@pytest.fixture(params=["controllers", "both"])
def three(request: pytest.FixtureRequest) -> Three:
    return Three(request.param)


def test_one_is_elected_and_the_brokers_come(three: Three) -> None:
    three.leader()
    assert {three.stage(node_id) for node_id in three.brokers} == {LifecycleStage.UNFENCED}
    assert set(three.leader().node.image.controllers) == set(NAMES)
    for name in NAMES.values():
        described = three.ask(name, 1, DescribeClusterRequest(endpoint_type=2), port=9093)
        assert {one.broker_id for one in described.brokers} == set(NAMES)
        assert described.controller_id == three.leader().node.node_id


def test_any_broker_has_topics_made(three: Three) -> None:
    names = NAMES if three.is_combined else {4: "four", 5: "five"}
    for name in names.values():
        assert three.create(f"by-{name}", by=name).error_code == ErrorCode.NONE
    for node in three.nodes.values():
        assert len(node.node.image.topics) == len(names)


def test_it_goes_on_when_the_leader_dies_and_again(three: Three) -> None:
    for number in range(4):
        leader = three.leader()
        leader.die()
        three.events.advance(ELECTION_MS)
        successor = three.leader()
        assert successor is not leader
        assert three.create(f"t{number}", by=three.another(leader)).error_code == ErrorCode.NONE
        leader.start()
        three.events.advance(ELECTION_MS)
        assert f"t{number}" in leader.node.image.topics
        assert not leader.fatal


def test_a_leader_that_ends_has_another_one_elected_soon(three: Three) -> None:
    leader = three.leader()
    left: list[int] = []
    began_ms = three.events.clock.monotonic_ms()
    leader.node.controlled_shutdown(lambda: left.append(three.events.clock.monotonic_ms()))
    three.events.advance(1_000)
    assert left
    assert left[0] - began_ms < 500
    leader.stop()
    three.events.advance(100)
    assert three.leader() is not leader


def test_everybody_is_described(three: Three) -> None:
    leader = three.leader()
    found = three.quorum("four" if not three.is_combined else "two")
    assert (found.error_code, found.leader_id) == (0, leader.node.node_id)
    assert [one.replica_id for one in found.current_voters] == list(NAMES)
    assert [one.replica_id for one in found.observers] == ([] if three.is_combined else [4, 5])
    ends = {one.log_end_offset for one in found.current_voters}
    assert max(ends) - min(ends) <= 2


def test_levels_go_up_and_down_once_every_controller_has_told_what_it_can_do(three: Three) -> None:
    for level in (0, 1):
        assert three.set_level("group.version", level, check=True).error_code == ErrorCode.NONE
        assert three.leader().node.image.features.get("group.version", 0) == 1 - level
        assert three.set_level("group.version", level).error_code == ErrorCode.NONE
        for node in three.nodes.values():
            assert node.node.image.features.get("group.version", 0) == level
    by = three.another(three.leader())
    three.leader().die()
    three.events.advance(ELECTION_MS)
    # What one that is down has told stands.
    assert three.set_level("group.version", 0, by=by).error_code == ErrorCode.NONE


def test_a_controller_that_never_came_is_waited_for() -> None:
    cluster = Cluster(both(1), both(2))
    cluster.events.advance(ELECTION_MS)
    answer = cluster.ask("one", 2, set_level("group.version", 0))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message.endswith("controller 3 has not registered, and may not support this feature")


def test_a_static_quorum_becomes_dynamic(three: Three) -> None:
    assert three.set_level("kraft.version", 1, check=True).error_code == ErrorCode.NONE
    assert three.leader().node.quorum.kraft_version == 0
    assert three.set_level("kraft.version", 1).error_code == ErrorCode.NONE
    for _ in range(2):
        for node in three.voters():
            quorum = node.node.quorum
            assert quorum.kraft_version == 1
            for voter_id in NAMES:
                known = quorum.log.voters.of_id(voter_id)
                assert known is not None
                assert known.key.directory_id == three.nodes[voter_id].node.quorum.log.directory_id
        leader = three.leader()
        leader.die()
        three.events.advance(ELECTION_MS)
        leader.start()
        three.events.advance(ELECTION_MS)
    refused = three.set_level("kraft.version", 0)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert three.set_level("kraft.version", 1).error_code == ErrorCode.NONE


def test_a_quorum_does_not_become_dynamic_before_every_voter_has_told_of_its_directory(three: Three) -> None:
    leader = three.leader()
    dead = next(node for node in three.voters() if node is not leader)
    dead.die()
    leader.stop()
    leader.start()
    three.events.advance(ELECTION_MS)
    for check in (True, False):
        answer = three.set_level("kraft.version", 1, by=three.another(dead), check=check)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "not every voter has registered" in answer.error_message
    dead.start()
    three.events.advance(ELECTION_MS)
    assert three.set_level("kraft.version", 1).error_code == ErrorCode.NONE


@pytest.mark.parametrize("kind", ["controllers", "both"])
def test_a_new_leader_gives_every_broker_a_whole_session(kind: str) -> None:
    """However long the election took: nobody who lives is fenced for that it could not be heard."""
    slow = {"controller.quorum.election.timeout.ms": "5000", "controller.quorum.fetch.timeout.ms": "5000"}
    three = Three(kind, slow)
    three.events.advance(2 * ELECTION_MS)
    leader = three.leader()
    alive = [node_id for node_id in three.brokers if three.nodes[node_id] is not leader]
    epochs = {node_id: three.nodes[node_id].node.lifecycle.broker_epoch for node_id in alive}
    began_ms = three.events.clock.monotonic_ms()
    leader.die()
    while not any(node.node.quorum.leads for node in three.voters()):
        three.events.advance(50)
    active_ms = three.events.clock.monotonic_ms()
    assert active_ms - began_ms >= 4_500, "the last answer may be half a second older than the death"

    def is_fenced(node_id: int) -> bool:
        return three.leader().node.image.brokers[node_id].fenced

    while three.events.clock.monotonic_ms() < active_ms + 3 * SESSION_MS:
        assert not any(map(is_fenced, alive))
        if three.is_combined and three.events.clock.monotonic_ms() < active_ms + SESSION_MS:
            # Also who is dead has all of it: the new leader cannot know.
            assert not is_fenced(leader.node.node_id)
        three.events.advance(50)
    assert epochs == {node_id: three.nodes[node_id].node.lifecycle.broker_epoch for node_id in alive}
    if three.is_combined:
        assert is_fenced(leader.node.node_id)
