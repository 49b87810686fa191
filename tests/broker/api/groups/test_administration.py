"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.wire.messages.delete_groups import DeleteGroupsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.list_groups import ListGroupsRequest
from tests.broker.api.groups.client import Client, join


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_by_state_and_type(client: Client, version: int) -> None:
    assert client.call(version, ListGroupsRequest()).groups == []
    join(client, 0)
    assert [group.group_id for group in client.call(version, ListGroupsRequest()).groups] == ["g"]
    if version >= 4:
        assert client.call(version, ListGroupsRequest(states_filter=["Empty"])).groups == []
    if version >= 5:
        (group,) = client.call(version, ListGroupsRequest(types_filter=["classic"])).groups
        assert group.group_type == "classic"
        assert client.call(version, ListGroupsRequest(types_filter=["consumer"])).groups == []


@pytest.mark.parametrize("version", range(7))
def test_an_unknown_group_is_described_as_dead(client: Client, version: int) -> None:
    join(client, 0)
    known, unknown = client.call(version, DescribeGroupsRequest(groups=["g", "none"])).groups
    assert (known.error_code, known.group_state, len(known.members)) == (0, "CompletingRebalance", 1)
    assert (unknown.group_state, unknown.members) == ("Dead", [])
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


@pytest.mark.parametrize("requested", [False, True])
def test_authorized_operations_are_returned_on_request(client: Client, *, requested: bool) -> None:
    join(client, 0)
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=requested)
    (group,) = client.call(3, request).groups
    assert group.authorized_operations == (0b110101001000 if requested else -(2**31))


def test_groups_with_members_are_not_deleted(client: Client) -> None:
    join(client, 0)
    results = client.call(2, DeleteGroupsRequest(groups_names=["g", "none"])).results
    assert {result.group_id: result.error_code for result in results} == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_classic_groups_are_not_described_as_consumer_groups(client: Client) -> None:
    join(client, 0)
    groups = client.call(1, ConsumerGroupDescribeRequest(group_ids=["g", "none"])).groups
    assert [(group.group_id, group.error_code) for group in groups] == [
        ("g", ErrorCode.GROUP_ID_NOT_FOUND),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert client.call(1, ConsumerGroupDescribeRequest(group_ids=[])).groups == []
