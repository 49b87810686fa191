"""ElectLeaders, AlterPartitionReassignments, UnregisterBroker: what Apache Kafka 4.3.1 answers and writes."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller.commands import (
    AlterReassignments,
    Election,
    ElectLeaders,
    Fault,
    ShutDownBroker,
    UnfenceBroker,
    UnregisterBroker,
)
from kwire.wire.errors import ApiError, ErrorCode


@pytest.fixture
def three(bare_cluster: Any) -> Any:
    """Three brokers, and the topic t on all of them, led by 1."""
    cluster = bare_cluster()
    for broker_id in (1, 2, 3):
        cluster.start(broker_id)
    cluster.create("t", replication_factor=3)
    assert state(cluster)[:3] == ((1, 2, 3), (1, 2, 3), 1)
    return cluster


def state(cluster: Any) -> tuple[Any, ...]:
    """Replicas, in-sync set, leader, and who is added and removed."""
    partition = cluster.image.topics["t"].partitions[0]
    return (
        partition.replicas,
        partition.isr,
        partition.leader,
        partition.adding_replicas,
        partition.removing_replicas,
    )


def elect(cluster: Any, election: Election, topics: Any = (("t", [0]),)) -> list[tuple[str, int, int]]:
    return [
        (result.topic, partition.partition_id, partition.error_code)
        for result in cluster.run(ElectLeaders(election, topics))
        for partition in result.partition_result
    ]


def move(cluster: Any, replicas: list[int] | None, **how: bool) -> Fault | None:
    [fault] = cluster.run(AlterReassignments([("t", 0, replicas)], **how))
    assert fault is None or isinstance(fault, Fault)
    return fault


def test_what_needs_no_election(cluster: Any) -> None:
    cluster.create("t", 2)
    for election in (Election.PREFERRED, Election.UNCLEAN):
        asked = [("t", [0, 1, 5, -1]), ("nowhere", [0])]
        assert elect(cluster, election, asked) == [
            ("t", 0, ErrorCode.ELECTION_NOT_NEEDED),
            ("t", 1, ErrorCode.ELECTION_NOT_NEEDED),
            ("t", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert elect(cluster, election, None) == []
    assert cluster.records == []


def test_the_preferred_leader_takes_over_again(three: Any) -> None:
    three.run(ShutDownBroker(1))
    assert state(three)[1:3] == ((2, 3), 2)
    assert elect(three, Election.PREFERRED) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    # Back, but not in sync before it has asked its way into the set.
    three.start(1)
    assert elect(three, Election.PREFERRED) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert move(three, [3, 2, 1]) is None
    assert elect(three, Election.PREFERRED, None) == [("t", 0, ErrorCode.NONE)]
    assert state(three)[2] == 3


def test_unclean_elections_take_who_lives(three: Any) -> None:
    assert move(three, [2, 3]) is None
    for broker_id in (2, 3):
        three.run(ShutDownBroker(broker_id))
    partition = three.image.topics["t"].partitions[0]
    assert (partition.isr, partition.elr, partition.leader) == ((), (3,), -1)
    assert elect(three, Election.UNCLEAN) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    three.register(2, previous_broker_epoch=three.image.brokers[2].broker_epoch)
    three.run(UnfenceBroker(2))
    before = partition.leader_epoch
    assert elect(three, Election.PREFERRED) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert elect(three, Election.UNCLEAN) == [("t", 0, ErrorCode.NONE)]
    partition = three.image.topics["t"].partitions[0]
    assert (partition.isr, partition.elr, partition.leader) == ((2,), (), 2)
    assert (partition.leader_recovery_state, partition.leader_epoch) == (1, before + 1)


def test_moves_that_are_refused(cluster: Any) -> None:
    cluster.create("t")
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(cluster, None) == Fault(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    text = "The manual partition assignment includes an empty replica list."
    assert move(cluster, []) == Fault(refused, text)
    text = "The manual partition assignment includes broker 2, but no such broker is registered."
    assert move(cluster, [1, 2]) == Fault(refused, text)
    text = "The manual partition assignment includes the broker 1 more than once."
    assert move(cluster, [1, 1]) == Fault(refused, text)
    replies = cluster.run(AlterReassignments([("nowhere", 0, [1]), ("t", 1, [1]), ("t", 1, None)]))
    assert replies == [
        Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nowhere."),
        Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:1."),
        Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:1."),
    ]
    assert move(cluster, [1]) is None
    assert cluster.records == []


def test_an_order_is_changed_at_once(three: Any) -> None:
    assert move(three, [3, 1, 2]) is None
    assert state(three) == ((3, 1, 2), (1, 2, 3), 1, (), ())


def test_replicas_are_given_up_at_once(three: Any) -> None:
    before = three.image.topics["t"].partitions[0]
    assert move(three, [1, 2]) is None
    after = three.image.topics["t"].partitions[0]
    assert state(three) == ((1, 2), (1, 2), 1, (), ())
    assert after.leader_epoch == before.leader_epoch + 1
    assert len(after.directories) == 2


def test_a_new_replica_is_waited_for(three: Any) -> None:
    assert move(three, [1]) is None
    assert move(three, [2]) is None
    assert state(three) == ((2, 1), (1,), 1, (2,), (1,))
    fault = move(three, [2, 3], allow_replication_factor_change=False)
    text = "The replication factor is changed from 1 to 2"
    assert fault == Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    assert move(three, [3], allow_replication_factor_change=False) is None
    assert state(three) == ((3, 1, 2), (1,), 1, (3,), (1, 2))
    assert move(three, None) is None
    assert state(three) == ((1, 2), (1,), 1, (), ())
    assert move(three, None) == Fault(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


def test_a_broker_is_forgotten(three: Any) -> None:
    with pytest.raises(ApiError, match="Broker ID 7 is not currently registered"):
        three.decide(UnregisterBroker(7))
    three.run(ShutDownBroker(1))
    three.run(UnregisterBroker(1))
    assert sorted(three.image.brokers) == [2, 3]
    assert state(three)[:3] == ((1, 2, 3), (2, 3), 2)
