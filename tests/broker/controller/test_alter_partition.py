"""AlterPartition: valid changes of the ISR, and the order in which the controller checks for errors."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import (
    AlteredPartition,
    AlterPartition,
    AlterPartitionReassignments,
    FenceBroker,
    PartitionAlteration,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.primitives import Uuid

NOWHERE = Uuid(b"no-such-topic-at")
REFUSED = [
    ({"leader_epoch": 1, "partition_epoch": -1}, ErrorCode.NOT_CONTROLLER),
    ({"partition_epoch": 1, "leader_epoch": -1}, ErrorCode.NOT_CONTROLLER),
    ({"leader_epoch": -1, "broker_id": 2}, ErrorCode.FENCED_LEADER_EPOCH),
    ({"broker_id": 2, "partition_epoch": -1}, ErrorCode.INVALID_REQUEST),
    ({"partition_epoch": -1, "isr": [9]}, ErrorCode.INVALID_UPDATE_VERSION),
    ({"isr": [1, 1]}, ErrorCode.INVALID_REQUEST),
    ({"isr": [1, 4]}, ErrorCode.INVALID_REQUEST),
    ({"isr": [2, 3]}, ErrorCode.INVALID_REQUEST),
    ({"isr": []}, ErrorCode.INVALID_REQUEST),
    ({"isr": [1], "recovery": 7}, ErrorCode.INVALID_REQUEST),
    ({"isr": [1], "recovery": 1}, ErrorCode.INVALID_REQUEST),
    ({"isr": [1, 2], "recovery": 1}, ErrorCode.INVALID_REQUEST),
    ({"isr": [1, 2], "epochs": {2: 7}}, ErrorCode.INELIGIBLE_REPLICA),
]


@pytest.fixture
def three(bare_cluster: Any) -> Any:
    """Return a cluster of four brokers, with topic t on brokers 1 (the leader), 2 and 3."""
    cluster = bare_cluster()
    for broker_id in (1, 2, 3, 4):
        cluster.start(broker_id)
    cluster.create_on("t", [[1, 2, 3]])
    return cluster


def alteration(cluster: Any, fields: dict[str, Any]) -> PartitionAlteration:
    """Return the leader's request; epochs are given relative to the current ones."""
    partition = cluster.image.topics["t"].partitions[0]
    epochs = fields.get("epochs", {})
    return PartitionAlteration(
        cluster.image.topics["t"].topic_id,
        fields.get("index", 0),
        partition.leader_epoch + fields.get("leader_epoch", 0),
        partition.partition_epoch + fields.get("partition_epoch", 0),
        [(member, epochs.get(member, -1)) for member in fields.get("isr", [1, 2])],
        fields.get("recovery", 0),
    )


def alter(cluster: Any, **fields: Any) -> AlteredPartition:
    broker_id = fields.get("broker_id", cluster.image.topics["t"].partitions[0].leader)
    epoch = cluster.image.brokers[broker_id].broker_epoch
    [reply] = cluster.run(AlterPartition(broker_id, epoch, [alteration(cluster, fields)]))
    assert isinstance(reply, AlteredPartition)
    return reply


def test_isr_shrinks_and_expands(three: Any) -> None:
    epoch = three.image.brokers[3].broker_epoch
    for isr, epochs in (([1, 2], {}), ([1], {}), ([1, 3], {3: epoch}), ([3, 1, 2], {})):
        before = three.image.topics["t"].partitions[0]
        reply = alter(three, isr=isr, epochs=epochs)
        after = three.image.topics["t"].partitions[0]
        assert after == before._replace(isr=tuple(isr), partition_epoch=before.partition_epoch + 1)
        assert (reply.error, reply.leader_id, reply.isr) == (ErrorCode.NONE, 1, tuple(isr))
        assert (reply.leader_epoch, reply.partition_epoch) == (after.leader_epoch, after.partition_epoch)


def test_an_unchanged_isr_writes_no_record(three: Any) -> None:
    assert alter(three, isr=[1, 2, 3]).error is ErrorCode.NONE
    assert three.records == []


@pytest.mark.parametrize(("fields", "error"), REFUSED)
def test_an_invalid_request_changes_nothing(three: Any, fields: dict[str, Any], error: ErrorCode) -> None:
    assert alter(three, **fields).error is error
    assert three.records == []


def test_unknown_partition_topic_and_broker_epoch_are_errors(three: Any) -> None:
    assert alter(three, index=1).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    epoch = three.image.brokers[1].broker_epoch
    alterations = [PartitionAlteration(NOWHERE, 0, 0, 0, [(1, -1)])]
    [reply] = three.run(AlterPartition(1, epoch, alterations))
    assert reply.error is ErrorCode.UNKNOWN_TOPIC_ID
    with pytest.raises(ApiError, match="but got broker epoch 7"):
        three.decide(AlterPartition(1, 7, alterations))


def test_a_fenced_broker_cannot_join_the_isr(three: Any) -> None:
    assert alter(three, isr=[1]).error is ErrorCode.NONE
    three.run(FenceBroker(3, three.image.brokers[3].broker_epoch))
    assert alter(three, isr=[1, 3]).error is ErrorCode.INELIGIBLE_REPLICA
    assert alter(three, isr=[1, 2]).error is ErrorCode.NONE


def test_second_change_of_a_partition_in_a_request_has_an_old_epoch(three: Any) -> None:
    alterations = [alteration(three, {"isr": [1, 2]}), alteration(three, {"isr": [1]})]
    replies = three.run(AlterPartition(1, three.image.brokers[1].broker_epoch, alterations))
    assert [reply.error for reply in replies] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert three.image.topics["t"].partitions[0].isr == (1, 2)


def test_a_leader_reports_the_end_of_its_recovery(bare_cluster: Any) -> None:
    cluster = bare_cluster()
    for broker_id in (1, 2):
        cluster.start(broker_id)
    cluster.create_on("t", [[1, 2]])
    cluster.stop(2)
    cluster.stop(1)
    for broker_id in (1, 2):
        cluster.start(broker_id)
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), 1)
    assert alter(cluster, isr=[1], recovery=1).error is ErrorCode.NONE
    assert cluster.records == []
    assert alter(cluster, isr=[1, 2], recovery=1).error is ErrorCode.INVALID_REQUEST
    assert alter(cluster, isr=[1, 2], recovery=0).leader_recovery_state == 0
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.isr, partition.leader_recovery_state) == ((1, 2), 0)


def test_reassignment_completes_when_the_new_replicas_are_in_sync(three: Any) -> None:
    assert three.run(AlterPartitionReassignments([("t", 0, [4, 1])])) == [None]
    partition = three.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.adding_replicas) == ((4, 1, 2, 3), (4,))
    reply = alter(three, isr=[1, 2, 3, 4])
    partition = three.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((4, 1), (1, 4), 1)
    assert (partition.adding_replicas, partition.removing_replicas) == ((), ())
    # The leader epoch changed, so that a removed replica is not taken for a current one.
    assert (reply.error, reply.isr, reply.leader_epoch) == (ErrorCode.NONE, (1, 4), partition.leader_epoch)


def test_reassignment_without_the_leader_elects_a_new_leader(three: Any) -> None:
    assert three.run(AlterPartitionReassignments([("t", 0, [4])])) == [None]
    assert alter(three, isr=[1, 2, 3, 4]).error is ErrorCode.NEW_LEADER_ELECTED
    partition = three.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((4,), (4,), 4)


def test_a_replica_removed_below_min_isr_stays_eligible(three: Any) -> None:
    three.set_topic_config("t", "min.insync.replicas", "2")
    alter(three, isr=[1, 2])
    alter(three, isr=[1])
    assert three.image.topics["t"].partitions[0].elr == (2,)
    alter(three, isr=[1, 3])
    assert three.image.topics["t"].partitions[0].elr == ()


def test_reassignment_waits_only_for_the_added_replicas(three: Any) -> None:
    alter(three, isr=[1, 2])
    assert three.run(AlterPartitionReassignments([("t", 0, [1, 3, 4])])) == [None]
    assert alter(three, isr=[1, 2, 4]).error is ErrorCode.NONE
    partition = three.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.isr) == ((1, 3, 4), (1, 4)), "3 was out of sync before"
    # No replica is added, so all that stay must be in sync.
    assert three.run(AlterPartitionReassignments([("t", 0, [1, 3])])) == [None]
    assert three.image.topics["t"].partitions[0].removing_replicas == (4,)
    alter(three, isr=[1, 3, 4])
    assert three.image.topics["t"].partitions[0].replicas == (1, 3)
