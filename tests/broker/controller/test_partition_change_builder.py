"""What brokers that come and go do to a partition: its leader, its in-sync set, who stays eligible."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import AlterPartitionReassignments
from kwire.broker.metadata.image import RECOVERING
from kwire.wire.records.metadata import PartitionChangeRecord

WITHOUT_ELR = (("metadata.version", 20),)


def told(cluster: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Leader, in-sync set, eligible leaders, and the last known one."""
    partition = cluster.image.topics["t"].partitions[0]
    return partition.leader, partition.isr, partition.elr, partition.last_known_elr


def changes(cluster: Any) -> list[PartitionChangeRecord]:
    """What the last command wrote of partitions."""
    return [record for record, _ in cluster.records if isinstance(record, PartitionChangeRecord)]


def made(bare_cluster: Any, brokers: int, *features: tuple[str, int]) -> Any:
    cluster = bare_cluster(features) if features else bare_cluster()
    for broker_id in range(1, brokers + 1):
        cluster.start(broker_id)
    cluster.create_on("t", [list(range(1, brokers + 1))])
    return cluster


def test_the_others_of_the_in_sync_set_carry_on(bare_cluster: Any) -> None:
    three = made(bare_cluster, 3)
    three.stop(2)
    assert told(three) == (1, (1, 3), (), ())
    [change] = changes(three)
    assert change.leader == -2, "who leads on needs no new epoch"
    three.stop(1)
    assert told(three) == (3, (3,), (), ())
    three.stop(3)
    assert told(three) == (-1, (), (3,), (3,))


def test_before_3_6_a_smaller_set_needs_a_new_epoch(bare_cluster: Any) -> None:
    three = made(bare_cluster, 3, ("metadata.version", 11))
    three.stop(2)
    assert [(change.leader, change.isr) for change in changes(three)] == [(1, [1, 3])]


def test_without_eligible_leaders_the_last_one_stays_in_the_set(bare_cluster: Any) -> None:
    one = made(bare_cluster, 1, *WITHOUT_ELR)
    one.stop(1)
    assert told(one) == (-1, (1,), (), ())
    one.register(1)
    assert changes(one) == []
    one.unfence(1)
    assert told(one) == (1, (1,), (), ())


def test_who_ended_in_order_leads_again(bare_cluster: Any) -> None:
    one = made(bare_cluster, 1)
    one.stop(1)
    one.register(1, previous_broker_epoch=one.image.brokers[1].broker_epoch)
    assert changes(one) == []
    one.unfence(1)
    assert told(one) == (1, (1,), (), ())
    assert one.image.topics["t"].partitions[0].leader_recovery_state == 0


@pytest.mark.parametrize("had_ended", [False, True])
def test_who_may_have_lost_something_leads_as_the_last_known_one(bare_cluster: Any, had_ended: bool) -> None:
    one = made(bare_cluster, 1)
    if had_ended:
        one.stop(1)
    one.end_sessions()
    one.register(1)
    assert told(one) == (-1, (), (), (1,))
    one.unfence(1)
    assert told(one) == (1, (1,), (), ())
    assert [change.leader_recovery_state for change in changes(one)] == [RECOVERING]


def test_a_partition_that_is_recovering_is_said_to_be_so_once(bare_cluster: Any) -> None:
    one = made(bare_cluster, 1)
    for expected in (RECOVERING, -1):
        one.end_sessions()
        one.register(1)
        one.unfence(1)
        assert [change.leader_recovery_state for change in changes(one)] == [expected]
    assert one.image.topics["t"].partitions[0].leader_recovery_state == RECOVERING


def test_nobody_leads_for_one_that_is_not_there(bare_cluster: Any) -> None:
    two = made(bare_cluster, 2)
    two.stop(1)
    two.stop(2)
    two.register(2)
    assert told(two) == (-1, (), (), (2,))
    two.start(1)
    assert told(two) == (-1, (), (), (2,)), "it was not in sync to the end"
    two.unfence(2)
    assert told(two) == (2, (2,), (), ())


def test_who_holds_nothing_changes_nothing(bare_cluster: Any) -> None:
    cluster = made(bare_cluster, 1)
    cluster.start(2)
    cluster.stop(2)
    assert changes(cluster) == []


def test_whom_a_move_has_left_out_is_not_eligible_when_another_one_brings_him_back(bare_cluster: Any) -> None:
    """He has deleted what he had, and Kafka would have him lead."""
    four = made(bare_cluster, 4)
    four.set_topic_config("t", "min.insync.replicas", "3")
    four.stop(4)
    four.stop(3)
    assert told(four) == (1, (1, 2), (3,), ())
    four.run(AlterPartitionReassignments([("t", 0, [1, 2])]))
    assert told(four) == (1, (1, 2), (), ())
    four.run(AlterPartitionReassignments([("t", 0, [1, 2, 3])]))
    assert told(four) == (1, (1, 2), (), ())
