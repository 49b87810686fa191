"""Partition changes when brokers start and stop: leader, ISR and eligible leader replicas."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import AlterPartitionReassignments
from kwire.broker.metadata.image import RECOVERING
from kwire.wire.records.metadata import PartitionChangeRecord

WITHOUT_ELR = (("metadata.version", 20),)


def leadership(cluster: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the leader, the ISR, the ELR and the last known ELR of partition t-0."""
    partition = cluster.image.topics["t"].partitions[0]
    return partition.leader, partition.isr, partition.elr, partition.last_known_elr


def changes(cluster: Any) -> list[PartitionChangeRecord]:
    """Return the partition changes of the last command."""
    return [record for record, _ in cluster.records if isinstance(record, PartitionChangeRecord)]


def cluster_of(bare_cluster: Any, brokers: int, *features: tuple[str, int]) -> Any:
    cluster = bare_cluster(features) if features else bare_cluster()
    for broker_id in range(1, brokers + 1):
        cluster.start(broker_id)
    cluster.create_on("t", [list(range(1, brokers + 1))])
    return cluster


def test_stopped_brokers_leave_the_isr_and_the_leader_moves(bare_cluster: Any) -> None:
    three = cluster_of(bare_cluster, 3)
    three.stop(2)
    assert leadership(three) == (1, (1, 3), (), ())
    [change] = changes(three)
    assert change.leader == -2, "a leader that stays leader needs no new leader epoch"
    three.stop(1)
    assert leadership(three) == (3, (3,), (), ())
    three.stop(3)
    assert leadership(three) == (-1, (), (3,), (3,))


def test_before_3_6_an_isr_shrink_needs_a_new_leader_epoch(bare_cluster: Any) -> None:
    three = cluster_of(bare_cluster, 3, ("metadata.version", 11))
    three.stop(2)
    assert [(change.leader, change.isr) for change in changes(three)] == [(1, [1, 3])]


def test_without_elr_the_last_replica_stays_in_the_isr(bare_cluster: Any) -> None:
    one = cluster_of(bare_cluster, 1, *WITHOUT_ELR)
    one.stop(1)
    assert leadership(one) == (-1, (1,), (), ())
    one.register(1)
    assert changes(one) == []
    one.unfence(1)
    assert leadership(one) == (1, (1,), (), ())


def test_after_a_clean_shutdown_the_broker_is_leader_again(bare_cluster: Any) -> None:
    one = cluster_of(bare_cluster, 1)
    one.stop(1)
    one.register(1, previous_broker_epoch=one.image.brokers[1].broker_epoch)
    assert changes(one) == []
    one.unfence(1)
    assert leadership(one) == (1, (1,), (), ())
    assert one.image.topics["t"].partitions[0].leader_recovery_state == 0


@pytest.mark.parametrize("was_stopped", [False, True])
def test_after_an_unclean_shutdown_the_last_known_leader_is_elected(
    bare_cluster: Any, was_stopped: bool
) -> None:
    one = cluster_of(bare_cluster, 1)
    if was_stopped:
        one.stop(1)
    one.end_sessions()
    one.register(1)
    assert leadership(one) == (-1, (), (), (1,))
    one.unfence(1)
    assert leadership(one) == (1, (1,), (), ())
    assert [change.leader_recovery_state for change in changes(one)] == [RECOVERING]


def test_recovering_state_is_recorded_once(bare_cluster: Any) -> None:
    one = cluster_of(bare_cluster, 1)
    for expected in (RECOVERING, -1):
        one.end_sessions()
        one.register(1)
        one.unfence(1)
        assert [change.leader_recovery_state for change in changes(one)] == [expected]
    assert one.image.topics["t"].partitions[0].leader_recovery_state == RECOVERING


def test_only_the_last_known_leader_is_elected(bare_cluster: Any) -> None:
    two = cluster_of(bare_cluster, 2)
    two.stop(1)
    two.stop(2)
    two.register(2)
    assert leadership(two) == (-1, (), (), (2,))
    two.start(1)
    assert leadership(two) == (-1, (), (), (2,)), "broker 1 was not in sync to the end"
    two.unfence(2)
    assert leadership(two) == (2, (2,), (), ())


def test_a_broker_without_replicas_changes_no_partition(bare_cluster: Any) -> None:
    cluster = cluster_of(bare_cluster, 1)
    cluster.start(2)
    cluster.stop(2)
    assert changes(cluster) == []


def test_a_reassigned_replica_is_not_eligible_when_it_is_added_again(bare_cluster: Any) -> None:
    """The removed replica has deleted its data. Apache Kafka could elect this replica as leader."""
    four = cluster_of(bare_cluster, 4)
    four.set_topic_config("t", "min.insync.replicas", "3")
    four.stop(4)
    four.stop(3)
    assert leadership(four) == (1, (1, 2), (3,), ())
    four.run(AlterPartitionReassignments([("t", 0, [1, 2])]))
    assert leadership(four) == (1, (1, 2), (), ())
    four.run(AlterPartitionReassignments([("t", 0, [1, 2, 3])]))
    assert leadership(four) == (1, (1, 2), (), ())
