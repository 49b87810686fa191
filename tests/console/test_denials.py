"""Sentences about denied requests: the name of the resource in each form of the request."""

from __future__ import annotations

import pytest

from kwire.console.denials import denial
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kwire.wire.schema import Message


@pytest.mark.parametrize(
    "request_",
    [
        OffsetFetchRequest(group_id="billing"),
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="billing")]),
        FindCoordinatorRequest(key="billing"),
        FindCoordinatorRequest(coordinator_keys=["billing"]),
    ],
)
def test_a_denied_group_is_named(request_: Message) -> None:
    error = ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert denial(error, request_, "User:alice", "") == "User:alice needs DESCRIBE on group billing"


def test_several_groups_have_no_name() -> None:
    request = FindCoordinatorRequest(coordinator_keys=["billing", "orders"])
    error = ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert denial(error, request, "User:alice", "") == "User:alice needs DESCRIBE on a group"
