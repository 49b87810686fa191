"""Quorums whose directories Apache Kafka 4.4 has formatted, and controllers without bootstrap metadata."""

from __future__ import annotations

import logging
import random

import pytest

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.batches import CorruptMetadata, MetadataBatch, decode_batches
from kwire.broker.node.broker_lifecycle import LifecycleStage
from kwire.broker.node.format import all_directories
from kwire.broker.storage.dirs.meta_properties import BOOTSTRAP_CHECKPOINT
from kwire.testing.disk import MemoryDisk
from kwire.testing.simulated.nodes import move_bootstrap_to_snapshot
from kwire.testing.virtual_node import VirtualNode
from kwire.wire.errors import ErrorCode
from kwire.wire.records.metadata import ConfigRecord, FeatureLevelRecord
from kwire.wire.schema import Message
from tests.broker.node.test_cluster import BOTH, SERVED
from tests.broker.node.test_controllers import NAMES, combined_node
from tests.broker.node.test_voters import DYNAMIC, VoterCluster

LOG = "/data/__cluster_metadata-0/00000000000000000000.log"
SLOW = {"controller.quorum.election.timeout.ms": "60000"}
QUICK = {"controller.quorum.election.timeout.ms": "100"}


class KafkaFormattedCluster(VoterCluster):
    """Combined nodes on directories in the layout of Apache Kafka 4.4."""

    def formatted(self, disk: MemoryDisk, config: BrokerConfig) -> None:
        move_bootstrap_to_snapshot(disk, config)


class ClusterWithoutMetadata(VoterCluster):
    """Combined nodes, some of whose directories have no bootstrap metadata."""

    def __init__(self, *without: int) -> None:
        self.without = without
        super().__init__()

    def formatted(self, disk: MemoryDisk, config: BrokerConfig) -> None:
        if config.node_id in self.without:
            for directory in all_directories(config):
                disk.remove(f"{directory}/{BOOTSTRAP_CHECKPOINT}")


def leaders(cluster: VoterCluster) -> list[int]:
    running = [(node_id, node.node.quorum) for node_id, node in cluster.nodes.items() if node.is_running]
    return [node_id for node_id, quorum in running if quorum.leads]


def batches(node: VirtualNode) -> list[MetadataBatch]:
    return list(decode_batches(node.disk.read(LOG)))


def written_once(node: VirtualNode, kind: type[Message]) -> list[Message]:
    return [record for batch in batches(node) for record in batch.records if isinstance(record, kind)]


def check_features(cluster: VoterCluster) -> None:
    """Check that the features are in the log once, and that every broker is unfenced."""
    cluster.events.advance(10_000)
    for node_id, node in cluster.nodes.items():
        assert cluster.stage(node_id) is LifecycleStage.UNFENCED
        levels = [record.name for record in written_once(node, FeatureLevelRecord)]  # type: ignore[attr-defined]
        assert sorted(levels) == [
            "eligible.leader.replicas.version",
            "group.version",
            "metadata.version",
            "transaction.version",
        ]
        assert len(written_once(node, ConfigRecord)) == 1, "the cluster-wide min.insync.replicas"
        assert node.node.image.features == {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "transaction.version": 2,
        }


@pytest.mark.parametrize("first", NAMES)
def test_first_leader_commits_the_records_of_the_snapshot(first: int) -> None:
    cluster = KafkaFormattedCluster()
    for node_id in NAMES:
        cluster.add(combined_node(node_id) | (QUICK if node_id == first else SLOW))
    cluster.events.advance(5_000)
    assert leaders(cluster) == [first]
    check_features(cluster)
    # The next leader finds the records in the log.
    cluster.nodes[first].die()
    cluster.events.advance(120_000)
    assert cluster.create("t", by="cluster" if first != 3 else "one").error_code == ErrorCode.NONE
    cluster.nodes[first].start()
    check_features(cluster)


def test_standalone_voter_commits_the_records_of_the_snapshot() -> None:
    cluster = KafkaFormattedCluster()
    for node_id in NAMES:
        cluster.add(combined_node(node_id) | DYNAMIC, is_first_voter=node_id == 1)
    cluster.events.advance(10_000)
    assert cluster.voter_ids("cluster") == [1]
    check_features(cluster)
    for node_id in (2, 3):
        assert cluster.add_voter(node_id, "cluster").error_code == ErrorCode.NONE
        cluster.events.advance(2_000)
    assert cluster.voter_ids("one") == [1, 2, 3]
    check_features(cluster)


def test_records_are_committed_once_although_the_first_leader_dies_early() -> None:
    rng = random.Random(1)
    for _ in range(10):
        cluster = KafkaFormattedCluster()
        for node_id in NAMES:
            cluster.add(combined_node(node_id))
        while not leaders(cluster):
            cluster.events.advance(1)
        [first] = leaders(cluster)
        cluster.events.advance(rng.randrange(10))
        cluster.nodes[first].die(power_failure=rng)
        cluster.events.advance(10_000)
        cluster.nodes[first].start()
        check_features(cluster)


def test_controller_without_bootstrap_metadata_stands_in_no_election(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = ClusterWithoutMetadata(1, 2)
    for node_id in (1, 2):
        cluster.add(combined_node(node_id) | QUICK)
    cluster.events.advance(30_000)
    assert leaders(cluster) == []
    assert [node.node.quorum.epoch for node in cluster.nodes.values()] == [0, 0]
    refusals = [record for record in caplog.records if "no bootstrap metadata" in record.message]
    assert [record.levelno for record in refusals] == [logging.WARNING] * 2, "one line each"
    # The third controller has the metadata, and becomes leader with the votes of the others.
    cluster.add(combined_node(3) | SLOW)
    cluster.events.advance(200_000)
    assert leaders(cluster) == [3]
    check_features(cluster)
    # Once the others have fetched the metadata, they may become leader.
    cluster.nodes[3].die()
    cluster.events.advance(10_000)
    assert leaders(cluster) in ([1], [2])
    # After a restart, they may not if their records are truncated, because these were not committed.
    cluster.nodes[1].die()
    cluster.nodes[1].start()
    log = cluster.nodes[1].node.quorum.log
    assert log.may_lead
    assert not log.has_bootstrap


def test_only_voter_without_bootstrap_metadata_refuses_to_start() -> None:
    cluster = ClusterWithoutMetadata(1)
    with pytest.raises(CorruptMetadata, match="/data has no bootstrap metadata"):
        cluster.add(BOTH, SERVED)
