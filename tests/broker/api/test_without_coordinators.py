"""Errors that do not depend on a coordinator, on a node whose coordinators have no topics yet."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.join_group import JoinGroupRequest
from tests.node_harness import NodeHarness

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


@pytest.mark.parametrize(
    ("group", "timeout_ms", "code", "member"),
    [
        ("", 0, ErrorCode.INVALID_GROUP_ID, "me"),
        ("g", 5_999, ErrorCode.INVALID_SESSION_TIMEOUT, "me"),
        ("g", 1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT, "me"),
        ("g", 6_000, NOT_COORDINATOR, ""),
    ],
)
def test_join_group_is_validated_before_not_coordinator(
    harness: NodeHarness, group: str, timeout_ms: int, code: ErrorCode, member: str
) -> None:
    request = JoinGroupRequest(group_id=group, member_id="me", session_timeout_ms=timeout_ms)
    response = harness.call(4, request)
    assert (response.error_code, response.member_id) == (code, member)


@pytest.mark.parametrize(
    ("name", "timeout_ms", "code"),
    [
        ("", 0, ErrorCode.INVALID_REQUEST),
        ("t", 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_000, NOT_COORDINATOR),
    ],
)
def test_init_producer_id_is_validated_before_not_coordinator(
    harness: NodeHarness, name: str, timeout_ms: int, code: ErrorCode
) -> None:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    assert harness.call(4, request).error_code == code


def test_groups_are_described_with_an_error_each(harness: NodeHarness) -> None:
    def ids(response: Any) -> list[tuple[str, int]]:
        return [(group.group_id, group.error_code) for group in response.groups]

    group_ids = ["g", "h", "g", ""]
    found = ids(harness.call(5, DescribeGroupsRequest(groups=group_ids)))
    assert found == [
        ("g", NOT_COORDINATOR),
        ("h", NOT_COORDINATOR),
        ("g", NOT_COORDINATOR),
        ("", NOT_COORDINATOR),
    ]
    found = ids(harness.call(0, ConsumerGroupDescribeRequest(group_ids=group_ids)))
    assert found == [
        ("g", NOT_COORDINATOR),
        ("h", NOT_COORDINATOR),
        ("g", NOT_COORDINATOR),
        ("", ErrorCode.INVALID_GROUP_ID),
    ]
