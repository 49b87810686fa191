"""Offsets of groups: committed, fetched, deleted."""

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


def test_offset_fetch_v1_tells_what_is_wrong_at_the_partitions(stranger: Client) -> None:
    assert fetch_one(stranger, 1, 0)[1].error_code == ErrorCode.NOT_COORDINATOR
    answer, partition = fetch_one(stranger, 2, 0)
    assert (answer.error_code, partition) == (ErrorCode.NOT_COORDINATOR, None)


def test_offset_commit_v2_and_offset_fetch_v1(client: Client) -> None:
    assert commit(client, 2, {"t": [0]}) == {"t": [(0, 0)]}
    committed, nothing = (fetch_one(client, 1, index)[1] for index in (0, 1))
    assert (committed.committed_offset, committed.metadata, committed.error_code) == (7, "m", 0)
    assert (nothing.committed_offset, nothing.metadata, nothing.error_code) == (-1, "", 0)


@pytest.mark.parametrize(("retention_ms", "kept"), [(1_000, -1), (-1, 7), (1 << 62, 7)])
def test_offset_commit_v2_keeps_offsets_as_long_as_it_was_asked_to(
    client: Client, retention_ms: int, kept: int
) -> None:
    commit(client, 2, {"t": [0]}, retention_time_ms=retention_ms)
    client.host.advance(client.node.config.offsets_retention_check_interval_ms)
    assert fetch_one(client, 1, 0)[1].committed_offset == kept


def test_offset_commit_v2_refuses_to_keep_offsets_beyond_the_end_of_time(client: Client) -> None:
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
def test_the_metadata_of_an_offset_is_measured_as_java_does(
    client: Client, metadata: str, code: ErrorCode
) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=7, committed_metadata=metadata
    )
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = client.call(8, OffsetCommitRequest(group_id="g", member_id="", topics=topics))
    assert answer.topics[0].partitions[0].error_code == code


def test_what_does_not_exist_is_told_in_its_place_in_the_answer_to_a_commit(client: Client) -> None:
    assert commit(client, 2, {"t": [0, 9, 1], "nowhere": [0], "empty": []}) == {
        "t": [(0, 0), (9, 3), (1, 0)],
        "nowhere": [(0, 3)],
        "empty": [],
    }
    assert commit(client, 2, {"t": []}) == {"t": []}
    # The group's own error is told of those partitions only that exist.
    refused = commit(client, 2, {"t": [0, 9]}, group_id="unknown", generation_id_or_member_epoch=1)
    assert refused == {"t": [(0, ErrorCode.ILLEGAL_GENERATION), (9, 3)]}


def test_what_does_not_exist_is_told_in_the_answer_to_a_deletion(client: Client) -> None:
    commit(client, 2, {"t": [0]})
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=one) for one in indexes]
        )
        for name, indexes in (("t", [0, 9]), ("nowhere", [1]))
    ]
    answer = client.call(0, OffsetDeleteRequest(group_id="g", topics=topics))
    assert [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in answer.topics
    ] == [("t", [(0, 0), (9, 3)]), ("nowhere", [(1, 3)])]


def test_topics_that_no_id_names_are_told_in_the_answer_to_a_fetch(client: Client) -> None:
    known, unknown = client.node.image.topics["t"].topic_id, Uuid(bytes(15) + b"\7")
    topics = [OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in (unknown, known)]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
    answer = client.call(10, OffsetFetchRequest(groups=groups)).groups[0]
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in answer.topics] == [
        (unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        (known, 0),
    ]
