"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments on a single broker."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kwire.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kwire.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from tests.node_harness import NodeHarness


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_unneeded_election_returns_election_not_needed(harness: NodeHarness, version: int) -> None:
    topics = [TopicPartitions(topic="a", partitions=[0, 9])]
    response = harness.call(version, ElectLeadersRequest(topic_partitions=topics, timeout_ms=1_000))
    (topic,) = response.replica_election_results
    assert [(one.partition_id, one.error_code) for one in topic.partition_result] == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize(
    ("election", "timeout_ms", "code"),
    [(7, 1_000, ErrorCode.INVALID_REQUEST), (0, 0, ErrorCode.REQUEST_TIMED_OUT)],
)
def test_an_invalid_election_is_an_error_of_each_partition(
    harness: NodeHarness, election: int, timeout_ms: int, code: ErrorCode
) -> None:
    request = ElectLeadersRequest(
        election_type=election,
        topic_partitions=[TopicPartitions(topic="a", partitions=[0, 1])],
        timeout_ms=timeout_ms,
    )
    response = harness.call(2, request)
    assert response.error_code == code
    (topic,) = response.replica_election_results
    assert {one.error_code for one in topic.partition_result} == {code}


def test_reassignments_have_an_error_per_partition(harness: NodeHarness) -> None:
    partitions = [
        ReassignablePartition(partition_index=0, replicas=[1]),
        ReassignablePartition(partition_index=1, replicas=[9]),
        ReassignablePartition(partition_index=5, replicas=[1]),
    ]
    topics = [ReassignableTopic(name="a", partitions=partitions)]
    response = harness.call(1, AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=1_000))
    assert response.error_code == ErrorCode.NONE
    assert [one.error_code for one in response.responses[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    refused = harness.call(1, AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=0))
    assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert harness.call(0, ListPartitionReassignmentsRequest(topics=None)).topics == []
