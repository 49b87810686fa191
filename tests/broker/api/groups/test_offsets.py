"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kwire.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kwire.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kwire.wire.primitives import Uuid
from tests.broker.api.groups.client import Client, commit, fetch_one


def test_offset_fetch_v1_has_the_error_at_the_partitions(new_cluster_client: Client) -> None:
    assert fetch_one(new_cluster_client, 1, 0)[1].error_code == ErrorCode.NOT_COORDINATOR
    response, partition = fetch_one(new_cluster_client, 2, 0)
    assert (response.error_code, partition) == (ErrorCode.NOT_COORDINATOR, None)


def test_offset_commit_v2_and_offset_fetch_v1(client: Client) -> None:
    assert commit(client, 2, {"t": [0]}) == {"t": [(0, 0)]}
    committed, nothing = (fetch_one(client, 1, index)[1] for index in (0, 1))
    assert (committed.committed_offset, committed.metadata, committed.error_code) == (7, "m", 0)
    assert (nothing.committed_offset, nothing.metadata, nothing.error_code) == (-1, "", 0)


@pytest.mark.parametrize(("retention_ms", "expected"), [(1_000, -1), (-1, 7), (1 << 62, 7)])
def test_offset_commit_v2_keeps_offsets_for_the_retention_time(
    client: Client, retention_ms: int, expected: int
) -> None:
    commit(client, 2, {"t": [0]}, retention_time_ms=retention_ms)
    client.host.advance(client.node.config.offsets_retention_check_interval_ms)
    assert fetch_one(client, 1, 0)[1].committed_offset == expected


def test_offset_commit_v2_refuses_an_overflowing_retention_time(client: Client) -> None:
    longest_ms = (1 << 63) - 1 - client.host.now_ms()
    refused = commit(client, 2, {"t": [0]}, retention_time_ms=longest_ms + 1)
    assert refused == {"t": [(0, ErrorCode.INVALID_REQUEST)]}
    assert fetch_one(client, 1, 0)[1].committed_offset == -1
    assert commit(client, 2, {"t": [0]}, retention_time_ms=longest_ms) == {"t": [(0, 0)]}


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("m" * 4096, ErrorCode.NONE),
        ("m" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4096, ErrorCode.NONE),
        ("\U0001d11e" * 2048, ErrorCode.NONE),
        ("\U0001d11e" * 2048 + "m", ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_offset_metadata_size_is_measured_as_in_java(client: Client, metadata: str, code: ErrorCode) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=metadata
    )
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    response = client.call(8, OffsetCommitRequest(group_id="g", member_id="", topics=topics))
    assert response.topics[0].partitions[0].error_code == code


def test_offset_commit_returns_unknown_partitions_in_request_order(client: Client) -> None:
    assert commit(client, 2, {"t": [0, 9, 1], "nowhere": [0], "empty": []}) == {
        "t": [(0, 0), (9, 3), (1, 0)],
        "nowhere": [(0, 3)],
        "empty": [],
    }
    assert commit(client, 2, {"t": []}) == {"t": []}
    # Only existing partitions get the group's error.
    refused = commit(client, 2, {"t": [0, 9]}, group_id="unknown", generation_id_or_member_epoch=1)
    assert refused == {"t": [(0, ErrorCode.ILLEGAL_GENERATION), (9, 3)]}


def test_offset_delete_returns_unknown_partitions(client: Client) -> None:
    commit(client, 2, {"t": [0]})
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=one) for one in indexes]
        )
        for name, indexes in (("t", [0, 9]), ("nowhere", [1]))
    ]
    response = client.call(0, OffsetDeleteRequest(group_id="g", topics=topics))
    assert [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in response.topics
    ] == [("t", [(0, 0), (9, 3)]), ("nowhere", [(1, 3)])]


def test_offset_fetch_returns_unknown_topic_ids(client: Client) -> None:
    known, unknown = client.node.image.topics["t"].topic_id, Uuid(bytes(15) + b"\7")
    topics = [OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in (unknown, known)]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
    response = client.call(10, OffsetFetchRequest(groups=groups)).groups[0]
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in response.topics] == [
        (unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        (known, 0),
    ]
