"""A client of a node on virtual time, and its requests about groups."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.testing.virtual_node import VirtualClient, VirtualNode
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)

PROPERTIES = {
    "log.dirs": "/data",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "3000",
}

DELAY_MS = 3_000
"""group.initial.rebalance.delay.ms, as it is with a properties file."""

PROTOCOLS = [JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")]


class Client(VirtualClient):
    """A connection to a new node, or to the node of another client."""

    def __init__(self, other: Client | None = None) -> None:
        super().__init__(VirtualNode(PROPERTIES) if other is None else other.virtual_node, 1)


@pytest.fixture
def new_cluster_client() -> Client:
    """Return a client of a cluster without an offsets topic."""
    return Client()


@pytest.fixture
def client(new_cluster_client: Client) -> Client:
    """Return a client of a cluster with topic `t` of two partitions and an active group coordinator."""
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    assert (
        new_cluster_client.call(5, CreateTopicsRequest(topics=[topic], timeout_ms=1)).topics[0].error_code
        == 0
    )
    find_coordinator(new_cluster_client, 0)
    assert find_coordinator(new_cluster_client, 0).error_code == 0
    return new_cluster_client


def find_coordinator(client: Client, version: int, key_type: int = 0) -> Any:
    if version >= 4:
        return client.call(version, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]))
    return client.call(version, FindCoordinatorRequest(key="g", key_type=key_type))


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        # Ignored in version 0.
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=PROTOCOLS,
    )


def join(client: Client, version: int) -> Any:
    """Join an empty group in a version that needs no member id first."""
    client.send(version, join_request())
    assert client.receive(version, JoinGroupRequest) is None
    client.host.advance(DELAY_MS)
    return client.receive(version, JoinGroupRequest)


def commit(client: Client, version: int, offsets: dict[str, list[int]], **fields: Any) -> dict[str, Any]:
    """Commit offset 7 for partitions of topics, and return the errors in the order of the response."""
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=7, committed_metadata="m"
                )
                for index in indexes
            ],
        )
        for name, indexes in offsets.items()
    ]
    request = OffsetCommitRequest(**{"group_id": "g", "member_id": "", "topics": topics, **fields})
    response = client.call(version, request)
    return {
        topic.name: [(one.partition_index, one.error_code) for one in topic.partitions]
        for topic in response.topics
    }


def fetch_one(client: Client, version: int, index: int) -> Any:
    """Send OffsetFetch for one partition of `t`, before v8."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[index])]
    response = client.call(version, OffsetFetchRequest(group_id="g", topics=topics))
    return response, response.topics[0].partitions[0] if response.topics else None
