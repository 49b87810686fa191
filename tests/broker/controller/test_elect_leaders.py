"""ElectLeaders, compared with the responses and records of Apache Kafka 4.3.1."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.controller import elect_leaders
from kwire.broker.controller.commands import (
    AlterPartitionReassignments,
    Election,
    ElectLeaders,
    RunPeriodicElection,
    UnregisterBroker,
)
from kwire.wire.errors import ApiError, ErrorCode


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


def elect(cluster: Any, election: Election, topics: Any = (("t", [0]),)) -> list[tuple[str, int, int]]:
    return [
        (result.topic, partition.partition_id, partition.error_code)
        for result in cluster.run(ElectLeaders(election, topics))
        for partition in result.partition_result
    ]


def test_partitions_with_their_preferred_leader_need_no_election(cluster: Any) -> None:
    cluster.create("t", 2)
    for election in (Election.PREFERRED, Election.UNCLEAN):
        topics = [("t", [0, 1, 5, -1]), ("nowhere", [0])]
        assert elect(cluster, election, topics) == [
            ("t", 0, ErrorCode.ELECTION_NOT_NEEDED),
            ("t", 1, ErrorCode.ELECTION_NOT_NEEDED),
            ("t", 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert elect(cluster, election, None) == []
    assert cluster.records == []


def test_preferred_leader_is_elected_once_it_is_in_sync(three: Any) -> None:
    three.stop(1)
    assert state(three)[1:3] == ((2, 3), 2)
    assert elect(three, Election.PREFERRED) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    # Broker 1 is back, but not yet in the ISR.
    three.start(1)
    assert elect(three, Election.PREFERRED) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert three.run(AlterPartitionReassignments([("t", 0, [3, 2, 1])])) == [None]
    assert elect(three, Election.PREFERRED, None) == [("t", 0, ErrorCode.NONE)]
    assert state(three)[2] == 3


def test_unclean_election_takes_any_active_replica(three: Any) -> None:
    assert three.run(AlterPartitionReassignments([("t", 0, [2, 3])])) == [None]
    for broker_id in (2, 3):
        three.stop(broker_id)
    partition = three.image.topics["t"].partitions[0]
    assert (partition.isr, partition.elr, partition.leader) == ((), (3,), -1)
    assert elect(three, Election.UNCLEAN) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    three.register(2, previous_broker_epoch=three.image.brokers[2].broker_epoch)
    three.unfence(2)
    before = partition.leader_epoch
    assert elect(three, Election.PREFERRED) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert elect(three, Election.UNCLEAN) == [("t", 0, ErrorCode.NONE)]
    partition = three.image.topics["t"].partitions[0]
    assert (partition.isr, partition.elr, partition.leader) == ((2,), (), 2)
    assert (partition.leader_recovery_state, partition.leader_epoch) == (1, before + 1)


def test_an_unregistered_broker_loses_its_leaderships(three: Any) -> None:
    with pytest.raises(ApiError, match="Broker ID 7 is not currently registered"):
        three.decide(UnregisterBroker(7))
    three.stop(1)
    three.run(UnregisterBroker(1))
    assert sorted(three.image.brokers) == [2, 3]
    assert state(three)[:3] == ((1, 2, 3), (2, 3), 2)


def test_elections_are_limited_per_request_and_per_periodic_run(
    bare_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elect_leaders, "MAX_RECORDS_PER_REQUEST", 3)
    monkeypatch.setattr(elect_leaders, "MAX_ELECTIONS_AT_ONCE", 3)
    cluster = bare_cluster()
    for broker_id in (1, 2):
        cluster.start(broker_id)
    cluster.create_on("t", [[1, 2]] * 4)
    cluster.run(AlterPartitionReassignments([("t", index, [2, 1]) for index in range(4)]))
    with pytest.raises(ApiError, match="Unable to perform excessively large batch operation"):
        cluster.decide(ElectLeaders(Election.PREFERRED, None))
    assert cluster.run(RunPeriodicElection(Election.PREFERRED)) is True
    assert len(cluster.records) == 3
    assert cluster.run(RunPeriodicElection(Election.PREFERRED)) is False
    assert [partition.leader for partition in cluster.image.topics["t"].partitions] == [2] * 4
