"""AssignReplicasToDirs: a broker reports the log directories of its replicas."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import AssignReplicasToDirs
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import PartitionChangeRecord
from tests.broker.controller.conftest import DIRECTORY

OTHER = Uuid(b"another-one-of-1")
NOWHERE = Uuid(b"no-such-topic-at")


@pytest.fixture
def cluster(bare_cluster: Any) -> Any:
    """Return a broker with two log directories and a topic of two partitions."""
    cluster = bare_cluster()
    cluster.start(1, log_dirs=[DIRECTORY, OTHER])
    cluster.create("t", 2)
    return cluster


def assign(cluster: Any, directories: dict[tuple[Uuid, int], Uuid]) -> dict[tuple[Uuid, int], ErrorCode]:
    epoch = cluster.image.brokers[1].broker_epoch
    reply: dict[tuple[Uuid, int], ErrorCode] = cluster.run(AssignReplicasToDirs(1, epoch, directories))
    return reply


def test_only_a_changed_directory_is_recorded(cluster: Any) -> None:
    topic_id = cluster.image.topics["t"].topic_id
    assert assign(cluster, {(topic_id, 0): DIRECTORY}) == {}
    assert assign(cluster, {(topic_id, 0): DIRECTORY, (topic_id, 1): OTHER}) == {}
    assert [stored.record for stored in cluster.records] == [
        PartitionChangeRecord(partition_id=1, topic_id=topic_id, directories=[OTHER])
    ]
    first, second = cluster.image.topics["t"].partitions
    assert (first.directories, second.directories) == ((DIRECTORY,), (OTHER,))
    assert (second.leader_epoch, second.partition_epoch) == (0, 1)


def test_unknown_partitions_and_stale_epochs_are_refused(cluster: Any) -> None:
    topic_id = cluster.image.topics["t"].topic_id
    refused = {
        (NOWHERE, 0): ErrorCode.UNKNOWN_TOPIC_ID,
        (topic_id, 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (topic_id, -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert assign(cluster, dict.fromkeys(refused, OTHER)) == refused
    assert cluster.records == []
    cluster.start(2)
    epoch = cluster.image.brokers[2].broker_epoch
    not_there = cluster.run(AssignReplicasToDirs(2, epoch, {(topic_id, 0): OTHER}))
    assert not_there == {(topic_id, 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}
    with pytest.raises(ApiError, match=f"Expected broker epoch {epoch}, but got broker epoch 7"):
        cluster.decide(AssignReplicasToDirs(2, 7, {}))


def test_a_replica_in_a_failed_directory_loses_its_leadership(cluster: Any) -> None:
    topic_id = cluster.image.topics["t"].topic_id
    assert assign(cluster, {(topic_id, 1): NOWHERE}) == {}
    partition = cluster.image.topics["t"].partitions[1]
    assert (partition.directories, partition.isr, partition.leader) == ((NOWHERE,), (), -1)
    assert (partition.elr, partition.last_known_elr) == ((1,), (1,))
