"""AlterPartitionReassignments, compared with the responses and records of Apache Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller import partition_reassignments
from kwire.broker.controller.commands import (
    TOO_MANY_RECORDS,
    AlterPartitionReassignments,
    Fault,
)
from kwire.wire.errors import ErrorCode


@pytest.fixture
def three(bare_cluster: Any) -> Any:
    """Three brokers, and topic t on all of them with leader 1."""
    cluster = bare_cluster()
    for broker_id in (1, 2, 3):
        cluster.start(broker_id)
    cluster.create_on("t", [[1, 2, 3]])
    assert state(cluster)[:3] == ((1, 2, 3), (1, 2, 3), 1)
    return cluster


def state(cluster: Any) -> tuple[Any, ...]:
    """Return the replicas, the ISR, the leader, and the adding and removing replicas of partition t-0."""
    partition = cluster.image.topics["t"].partitions[0]
    return (
        partition.replicas,
        partition.isr,
        partition.leader,
        partition.adding_replicas,
        partition.removing_replicas,
    )


def reassign(cluster: Any, replicas: list[int] | None, **options: bool) -> Fault | None:
    [fault] = cluster.run(AlterPartitionReassignments([("t", 0, replicas)], **options))
    assert fault is None or isinstance(fault, Fault)
    return fault


def test_an_invalid_reassignment_is_refused(cluster: Any) -> None:
    cluster.create("t")
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, None) == Fault(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    text = "The manual partition assignment includes an empty replica list."
    assert reassign(cluster, []) == Fault(refused, text)
    text = "The manual partition assignment includes broker 2, but no such broker is registered."
    assert reassign(cluster, [1, 2]) == Fault(refused, text)
    text = "The manual partition assignment includes the broker 1 more than once."
    assert reassign(cluster, [1, 1]) == Fault(refused, text)
    replies = cluster.run(AlterPartitionReassignments([("nowhere", 0, [1]), ("t", 1, [1]), ("t", 1, None)]))
    assert replies == [
        Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nowhere."),
        Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:1."),
        Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:1."),
    ]
    assert reassign(cluster, [1]) is None
    assert cluster.records == []


def test_a_new_order_of_replicas_applies_at_once(three: Any) -> None:
    assert reassign(three, [3, 1, 2]) is None
    assert state(three) == ((3, 1, 2), (1, 2, 3), 1, (), ())


def test_removed_replicas_are_removed_at_once(three: Any) -> None:
    before = three.image.topics["t"].partitions[0]
    assert reassign(three, [1, 2]) is None
    after = three.image.topics["t"].partitions[0]
    assert state(three) == ((1, 2), (1, 2), 1, (), ())
    assert after.leader_epoch == before.leader_epoch + 1
    assert len(after.directories) == 2


def test_reassignment_waits_for_a_new_replica_and_can_be_canceled(three: Any) -> None:
    assert reassign(three, [1]) is None
    assert reassign(three, [2]) is None
    assert state(three) == ((2, 1), (1,), 1, (2,), (1,))
    fault = reassign(three, [2, 3], allow_replication_factor_change=False)
    text = "The replication factor is changed from 1 to 2"
    assert fault == Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    assert reassign(three, [3], allow_replication_factor_change=False) is None
    assert state(three) == ((3, 1, 2), (1,), 1, (3,), (1, 2))
    assert reassign(three, None) is None
    assert state(three) == ((1, 2), (1,), 1, (), ())
    assert reassign(three, None) == Fault(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


def test_reassignments_per_request_are_limited(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reassignments, "MAX_RECORDS_PER_REQUEST", 3)
    cluster.start(2)
    cluster.create_on("t", [[1]] * 5)
    replies = cluster.run(AlterPartitionReassignments([("t", index, [2]) for index in range(5)]))
    assert replies == [None] * 3 + [TOO_MANY_RECORDS] * 2
