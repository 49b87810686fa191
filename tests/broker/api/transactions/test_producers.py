"""AddPartitionsToTxn with unknown partitions and internal topics."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tests.node_harness import NodeHarness

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

SKIPPED, INVALID = ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST

NamedPartitions = list[tuple[str, list[int]]]


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


@pytest.mark.parametrize("verify_only", [False, True])
@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ([("a", [0, 2]), ("b", [0])], [("a", {0: SKIPPED, 2: UNKNOWN}), ("b", {0: UNKNOWN})]),
        ([("a", []), ("b", [0])], [("b", {0: UNKNOWN})]),
        ([("a", [1]), ("b", [0, 0]), ("a", [0])], [("a", {1: SKIPPED, 0: SKIPPED}), ("b", {0: UNKNOWN})]),
        ([("a", [0, 1])], [("a", {0: INVALID, 1: INVALID})]),
    ],
)
def test_partitions_are_checked_before_the_transaction(
    harness: NodeHarness,
    verify_only: bool,
    requested: NamedPartitions,
    expected: list[tuple[str, dict[int, ErrorCode]]],
) -> None:
    topics = [AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in requested]
    transaction = AddPartitionsToTxnTransaction(verify_only=verify_only, topics=topics)
    for version in (4, 5):
        (found,) = harness.call(
            version, AddPartitionsToTxnRequest(transactions=[transaction])
        ).results_by_transaction
        assert [
            (
                topic.name,
                {one.partition_index: one.partition_error_code for one in topic.results_by_partition},
            )
            for topic in found.topic_results
        ] == expected


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_clients_cannot_add_internal_topics(harness: NodeHarness, version: int) -> None:
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=[0])
        for name in ("a", "b", "__consumer_offsets", "__transaction_state", "__share_group_state")
    ]
    found = harness.call(version, AddPartitionsToTxnRequest(v3_and_below_topics=topics))
    assert [
        (topic.name, [one.partition_error_code for one in topic.results_by_partition])
        for topic in found.results_by_topic_v3_and_below
    ] == [
        ("a", [SKIPPED]),
        ("b", [UNKNOWN]),
        *((topic.name, [ErrorCode.TOPIC_AUTHORIZATION_FAILED]) for topic in topics[2:]),
    ]


def test_partitions_are_checked_in_slices_with_the_same_results(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=list(indexes))
        for name, indexes in (
            ("a", range(2)),
            ("b", range(10_000)),
            ("__consumer_offsets", range(3)),
            *((f"topic-{number}", range(1)) for number in range(1_000)),
            ("a", range(3)),
        )
    ]
    request = AddPartitionsToTxnRequest(v3_and_below_topics=topics)
    client = harness.connect()
    client.submit(3, request)
    assert not client.channel.slots[-1].completed
    harness.turn()
    found = client.receive(3, AddPartitionsToTxnRequest)
    monkeypatch.setattr("kwire.broker.api.request.slices.LARGE_REQUEST_BYTES", 1 << 30)
    monkeypatch.setattr("kwire.broker.api.dispatch.dispatcher.LARGE_REQUEST_BYTES", 1 << 30)
    assert harness.call(3, request) == found
    codes = {
        (topic.name, one.partition_index): one.partition_error_code
        for topic in found.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }
    assert len(codes) == 3 + 10_000 + 3 + 1_000
    assert [codes["a", index] for index in range(3)] == [SKIPPED, SKIPPED, UNKNOWN]
    assert codes["__consumer_offsets", 2] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert {codes["b", 9_999], codes["topic-999", 0]} == {UNKNOWN}
