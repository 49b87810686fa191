"""AlterPartition and AssignReplicasToDirs requests to a controller."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from kwire.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    RequestDirectoryData,
)
from kwire.wire.messages.assign_replicas_to_dirs import RequestPartitionData as AssignedPartition
from kwire.wire.messages.assign_replicas_to_dirs import RequestTopicData as AssignedTopic
from kwire.wire.primitives import Uuid
from tests.node_harness import NodeHarness

NOWHERE = Uuid(b"no-such-topic-at")


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("t", partitions=2)
    harness.turn()  # the broker reports its log directories
    return harness


def call_controller(harness: NodeHarness, version: int, request: Any) -> Any:
    return harness.connect(listener="CONTROLLER", role=ListenerRole.CONTROLLER).call(version, request)


@pytest.mark.parametrize("version", [2, 3])
def test_alter_partition_has_an_error_per_partition(harness: NodeHarness, version: int) -> None:
    topic = harness.node.image.topics["t"]
    broker = harness.node.image.brokers[harness.node.node_id]

    def partition(index: int, member: int = broker.broker_id) -> RequestPartitionData:
        if version == 2:
            return RequestPartitionData(partition_index=index, partition_epoch=1, new_isr=[member])
        state = BrokerState(broker_id=member, broker_epoch=broker.broker_epoch)
        return RequestPartitionData(partition_index=index, partition_epoch=1, new_isr_with_epochs=[state])

    request = AlterPartitionRequest(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        topics=[
            RequestTopicData(topic_id=topic.topic_id, partitions=[partition(1), partition(0, 9)]),
            RequestTopicData(topic_id=NOWHERE, partitions=[partition(0)]),
        ],
    )
    response = call_controller(harness, version, request)
    assert response.error_code == ErrorCode.NONE
    assert [
        (result.topic_id, one.partition_index, one.error_code)
        for result in response.topics
        for one in result.partitions
    ] == [
        (topic.topic_id, 1, ErrorCode.NONE),
        (topic.topic_id, 0, ErrorCode.INVALID_REQUEST),
        (NOWHERE, 0, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert (response.topics[0].partitions[0].leader_id, response.topics[0].partitions[0].isr) == (
        broker.broker_id,
        [broker.broker_id],
    )


def test_an_old_broker_epoch_returns_stale_broker_epoch(harness: NodeHarness) -> None:
    for request in (
        AlterPartitionRequest(broker_id=9, broker_epoch=7, topics=[]),
        AssignReplicasToDirsRequest(broker_id=9, broker_epoch=7, directories=[]),
    ):
        version = 3 if isinstance(request, AlterPartitionRequest) else 0
        assert call_controller(harness, version, request).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_assigned_log_directories_are_recorded(harness: NodeHarness) -> None:
    topic = harness.node.image.topics["t"]
    broker = harness.node.image.brokers[harness.node.node_id]
    directory = next(one for one in broker.log_dirs if one != topic.partitions[0].directories[0])
    request = AssignReplicasToDirsRequest(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        directories=[
            RequestDirectoryData(
                id=directory,
                topics=[
                    AssignedTopic(
                        topic_id=topic.topic_id,
                        partitions=[AssignedPartition(partition_index=index) for index in (0, 7)],
                    )
                ],
            )
        ],
    )
    response = call_controller(harness, 0, request)
    [result] = response.directories[0].topics[0].partitions[1:]
    assert (response.directories[0].id, result.error_code) == (
        directory,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    # The broker has corrected the assignment since.
    assert harness.node.image.topics["t"].partitions[0].partition_epoch == 3
