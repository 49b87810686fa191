"""Coordinators on a complete node when partitions are added to their topics."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.broker.api.groups.client import Client

GROUPS = [f"g{number}" for number in range(8)]

TRANSACTION = 1


@pytest.fixture
def client() -> Client:
    client = Client()
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1))
    for key_type in (0, TRANSACTION):
        for _ in range(2):  # the first creates the topic
            client.call(4, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]))
            client.host.advance(1_000)
    return client


def commit(client: Client, group: str) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    response = client.call(8, OffsetCommitRequest(group_id=group, member_id="", topics=[topic]))
    return int(response.topics[0].partitions[0].error_code)


def fetch_offset(client: Client, group: str) -> int:
    topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    response = client.call(7, OffsetFetchRequest(group_id=group, topics=[topic]))
    return int(response.topics[0].partitions[0].committed_offset)


def grow(client: Client, name: str, count: int) -> None:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    response = client.call(3, CreatePartitionsRequest(topics=[topic], timeout_ms=1_000))
    assert response.results[0].error_code == 0
    client.host.advance(1_000)


def test_groups_keep_their_partition_when_offsets_topic_grows(client: Client) -> None:
    assert [commit(client, group) for group in GROUPS] == [0] * 8
    grow(client, "__consumer_offsets", 11)
    assert [fetch_offset(client, group) for group in GROUPS] == [7] * 8
    assert [commit(client, group) for group in [*GROUPS, "another"]] == [0] * 9


def begin(client: Client, transactional_id: str) -> Any:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    response = client.call(4, request)
    if response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # no producer ids yet
        response = client.call(4, request)
    return response


def test_transactional_ids_keep_their_partition_when_topic_grows(client: Client) -> None:
    first = {name: begin(client, name) for name in GROUPS}
    assert {one.error_code for one in first.values()} == {0}
    grow(client, "__transaction_state", 60)
    later = {name: begin(client, name) for name in GROUPS}
    assert {name: one.producer_id for name, one in later.items()} == {
        name: one.producer_id for name, one in first.items()
    }
    assert {one.producer_epoch for one in later.values()} == {1}
