"""TxnOffsetCommit: errors before the request reaches the coordinators."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.node_harness import NodeHarness

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    return harness


def commit(
    harness: NodeHarness, *indexes: int, version: int = 5, group: str = "g", metadata: str = ""
) -> Any:
    partitions = [
        TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=1, committed_metadata=metadata
        )
        for index in indexes
    ]
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group,
        producer_id=1,
        topics=[TxnOffsetCommitRequestTopic(name="a", partitions=partitions)],
    )
    return [one.error_code for one in harness.call(version, request).topics[0].partitions]


@pytest.mark.parametrize("version", [0, 3, 5])
def test_unknown_partitions_are_an_error_without_a_coordinator(harness: NodeHarness, version: int) -> None:
    assert commit(harness, 7, 8, version=version) == [UNKNOWN] * 2


@pytest.mark.parametrize("version", [0, 3, 5])
def test_without_a_coordinator_known_partitions_are_not_available(harness: NodeHarness, version: int) -> None:
    assert commit(harness, 0, 7, version=version) == [ErrorCode.COORDINATOR_NOT_AVAILABLE, UNKNOWN]


def test_an_empty_group_id_is_refused(harness: NodeHarness) -> None:
    assert commit(harness, 0, group="") == [ErrorCode.INVALID_GROUP_ID]


def test_an_unknown_transaction_takes_no_offsets(harness: NodeHarness) -> None:
    for kind, key in ((0, "g"), (1, "t")):
        harness.call(4, FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
        harness.host.advance(1_000)
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert commit(harness, 0, 7) == [code, UNKNOWN]
    # An invalid partition is refused with the error of the complete request.
    assert commit(harness, 0, 1, metadata="x" * 5_000) == [code, code]
