"""TxnOffsetCommit: what is refused before the coordinators hear of it, and in which words."""

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
    made = NodeHarness()
    made.create("a", partitions=2)
    return made


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
def test_what_is_not_there_is_told_without_a_coordinator(harness: NodeHarness, version: int) -> None:
    assert commit(harness, 7, 8, version=version) == [UNKNOWN] * 2


@pytest.mark.parametrize("version", [0, 3, 5])
def test_without_offsets_to_keep_there_is_nobody_to_ask(harness: NodeHarness, version: int) -> None:
    assert commit(harness, 0, 7, version=version) == [ErrorCode.COORDINATOR_NOT_AVAILABLE, UNKNOWN]


def test_a_group_has_a_name(harness: NodeHarness) -> None:
    assert commit(harness, 0, group="") == [ErrorCode.INVALID_GROUP_ID]


def test_a_transaction_that_nobody_has_begun_takes_no_offsets(harness: NodeHarness) -> None:
    for kind, key in ((0, "g"), (1, "t")):
        harness.call(4, FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
        harness.host.advance(1_000)
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert commit(harness, 0, 7) == [code, UNKNOWN]
    # What is refused for itself is refused with the rest, for the reason of the rest.
    assert commit(harness, 0, 1, metadata="x" * 5_000) == [code, code]
