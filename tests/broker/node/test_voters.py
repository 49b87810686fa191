"""Dynamic quorums: voters are added, removed and replaced."""

from __future__ import annotations

import random
from typing import Any

from kwire.broker.config import load
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import InitialMetadata, format_directories
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from kwire.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from kwire.wire.primitives import Uuid
from tests.broker.node.test_cluster import CLUSTER_ID, SERVED, VirtualCluster
from tests.broker.node.test_controllers import NAMES, QUORUM, ThreeControllers, combined_node

SERVERS = ",".join(f"{name}:9093" for name in NAMES.values())
DYNAMIC = {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": SERVERS}
JOINS = DYNAMIC | {"controller.quorum.auto.join.enable": "true"}


class VoterCluster(VirtualCluster):
    """A cluster with requests to describe, add and remove voters."""

    def directory(self, node_id: int) -> Uuid:
        return self.nodes[node_id].node.quorum.log.directory_id

    def voter_ids(self, by: str) -> list[int]:
        found = self.request(by, 2, QUORUM).topics[0].partitions[0]
        return [one.replica_id for one in found.current_voters]

    def add_voter(self, node_id: int, by: str) -> Any:
        request = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=1_000,
            voter_id=node_id,
            voter_directory_id=self.directory(node_id),
            listeners=[Listener(name="CONTROLLER", host=NAMES[node_id], port=9093)],
        )
        return self.request(by, 1, request)

    def remove_voter(self, node_id: int, by: str, directory_id: Uuid | None = None) -> Any:
        directory_id = directory_id or self.directory(node_id)
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=directory_id
        )
        return self.request(by, 0, request)


class GrowingCluster(VoterCluster):
    """Combined nodes, with the first as the only voter."""

    def __init__(self, *, joins: bool = False) -> None:
        super().__init__()
        for node_id in NAMES:
            self.add(combined_node(node_id) | (JOINS if joins else DYNAMIC), is_first_voter=node_id == 1)
        self.events.advance(10_000)

    def leader(self) -> VirtualNode:
        running = [node for node in self.nodes.values() if node.is_running]
        [leader] = [node for node in running if node.node.quorum.leads]
        assert {node.node.quorum.leader_id for node in running} == {leader.node.node_id}
        return leader

    def follower(self) -> str:
        """Return the host name of a running node that is not the leader."""
        leader = self.leader()
        return next(
            NAMES[node_id]
            for node_id, node in self.nodes.items()
            if node.is_running and node is not leader and node.node.lifecycle.stage is LifecycleStage.UNFENCED
        )

    def add_all_voters(self) -> None:
        for node_id in (2, 3):
            assert self.add_voter(node_id, "cluster").error_code == ErrorCode.NONE
            self.events.advance(2_000)

    def reformat(self, node_id: int) -> None:
        """Restart a node with an empty disk, formatted again by an operator."""
        node = self.nodes[node_id]
        node.die()
        node.wipe()
        config = load(None, {}, node.settings)
        rng = random.Random(f"another {node_id}")
        format_directories(
            config, node.disk, rng, 0, cluster_id=CLUSTER_ID, initial_metadata=InitialMetadata(SERVED)
        )
        node.start()
        self.events.advance(10_000)


class UpgradedCluster(ThreeControllers, VoterCluster):
    """A static quorum that is upgraded to a dynamic one."""


def test_quorum_grows_from_one_voter_to_three_and_shrinks_to_one() -> None:
    cluster = GrowingCluster()
    assert cluster.voter_ids("cluster") == [1]
    for node_id in (2, 3):
        assert cluster.add_voter(node_id, "cluster").error_code == 0
        assert cluster.voter_ids("one") == list(range(1, node_id + 1))
        cluster.events.advance(2_000)
    for node_id in (1, 2):
        cluster.remove_voter(node_id, "cluster")
        cluster.events.advance(10_000)
        assert cluster.voter_ids("cluster") == list(range(node_id + 1, 4))
    assert cluster.nodes[3].node.quorum.leads
    assert cluster.create("after", by="one").error_code == 0


def test_removed_leader_resigns_and_becomes_observer() -> None:
    cluster = GrowingCluster()
    cluster.add_all_voters()
    leader = cluster.leader()
    former_id = leader.node.node_id
    answer = cluster.remove_voter(former_id, cluster.follower())
    assert answer.error_code == ErrorCode.NONE
    cluster.events.advance(10_000)
    successor = cluster.leader()
    assert successor is not leader
    assert cluster.voter_ids(cluster.follower()) == [each for each in NAMES if each != former_id]
    epoch = successor.node.quorum.epoch
    assert cluster.create("after", by=NAMES[former_id]).error_code == ErrorCode.NONE
    assert "after" in leader.node.image.topics
    # An observer disturbs no election, also after a restart.
    leader.die()
    leader.start()
    cluster.events.advance(30_000)
    assert (cluster.leader(), successor.node.quorum.epoch) == (successor, epoch)
    assert cluster.add_voter(former_id, NAMES[former_id]).error_code == ErrorCode.NONE
    assert cluster.voter_ids(NAMES[former_id]) == list(NAMES)


def test_invalid_voter_changes_are_rejected() -> None:
    cluster = GrowingCluster()
    cluster.add_all_voters()
    assert cluster.add_voter(2, "cluster").error_code == ErrorCode.DUPLICATE_VOTER
    unknown = Uuid(bytes(15) + b"x")
    assert cluster.remove_voter(2, "cluster", unknown).error_code == ErrorCode.VOTER_NOT_FOUND
    assert cluster.remove_voter(2, "cluster").error_code == ErrorCode.NONE
    assert cluster.remove_voter(2, "cluster").error_code == ErrorCode.VOTER_NOT_FOUND
    cluster.events.advance(2_000)
    assert cluster.voter_ids("one") == [1, 3]
    # One of two voters is no majority. A third voter counts once its record is written.
    cluster.nodes[3].die()
    assert cluster.add_voter(2, "one").error_code == ErrorCode.NONE
    assert cluster.create("after", by="two").error_code == ErrorCode.NONE


def test_reformatted_voter_must_be_added_again() -> None:
    cluster = GrowingCluster()
    cluster.add_all_voters()
    former = cluster.directory(3)
    cluster.reformat(3)
    assert cluster.directory(3) != former
    assert cluster.add_voter(3, "two").error_code == ErrorCode.DUPLICATE_VOTER
    assert cluster.remove_voter(3, "two", former).error_code == ErrorCode.NONE
    cluster.events.advance(2_000)
    assert cluster.add_voter(3, "two").error_code == ErrorCode.NONE
    cluster.leader().die()
    cluster.events.advance(10_000)
    known = cluster.leader().node.quorum.log.voters.of_id(3)
    assert known is not None
    assert known.key.directory_id == cluster.directory(3)


def test_auto_join_adds_controllers_as_voters() -> None:
    cluster = GrowingCluster(joins=True)
    cluster.events.advance(10_000)
    assert cluster.voter_ids("one") == list(NAMES)
    former = cluster.directory(2)
    cluster.reformat(2)
    cluster.events.advance(10_000)
    known = cluster.leader().node.quorum.log.voters.of_id(2)
    assert known is not None
    assert known.key.directory_id == cluster.directory(2) != former
    assert cluster.voter_ids("cluster") == list(NAMES)


def test_auto_join_controller_returns_after_its_removal() -> None:
    cluster = GrowingCluster(joins=True)
    cluster.events.advance(10_000)
    follower = next(node_id for node_id, node in cluster.nodes.items() if node is not cluster.leader())
    assert cluster.remove_voter(follower, "one").error_code == ErrorCode.NONE
    cluster.events.advance(10_000)
    assert cluster.voter_ids("one") == list(NAMES)


def test_voters_change_after_the_upgrade_to_a_dynamic_quorum() -> None:
    cluster = UpgradedCluster("both")
    assert cluster.set_level("kraft.version", 1).error_code == ErrorCode.NONE
    follower = next(node_id for node_id, node in cluster.nodes.items() if node is not cluster.leader())
    assert cluster.remove_voter(follower, "one").error_code == ErrorCode.NONE
    cluster.events.advance(2_000)
    assert cluster.voter_ids("one") == [node_id for node_id in NAMES if node_id != follower]
    assert cluster.add_voter(follower, "one").error_code == ErrorCode.NONE
    cluster.leader().die()
    cluster.events.advance(10_000)
    assert cluster.leader()
