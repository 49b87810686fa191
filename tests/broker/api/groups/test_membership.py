"""Members of groups, from JoinGroup to LeaveGroup, in old versions."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_groups import DeleteGroupsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest
from kwire.wire.messages.join_group import JoinGroupRequest
from kwire.wire.messages.leave_group import LeaveGroupRequest
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.api.groups.client import PROTOCOLS, Client, join, join_request


@pytest.mark.parametrize("version", range(4))
def test_join_group_before_v4_needs_no_member_id_first(client: Client, version: int) -> None:
    joined = join(client, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("me-")
    assert [bytes(member.metadata) for member in joined.members] == [PROTOCOLS[0].metadata]


def test_join_group_v0_rebalances_within_the_session_timeout(client: Client) -> None:
    join(client, 0)
    second = Client(client)
    second.send(0, join_request())
    client.host.advance(9_999)
    assert second.receive(0, JoinGroupRequest) is None
    client.host.advance(1)
    assert second.receive(0, JoinGroupRequest).generation_id == 2


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_a_refused_join_has_no_protocol_name(client: Client, version: int, name: str | None) -> None:
    assert client.call(version, join_request()).protocol_name == name
    assert client.call(version, join_request("stranger")).protocol_name == name


def test_a_member_joins_and_leaves_with_v0_requests(client: Client) -> None:
    joined = join(client, 0)
    member = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    assignments_of_leader = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    assert (
        bytes(client.call(0, SyncGroupRequest(**member, assignments=assignments_of_leader)).assignment)
        == b"all"
    )
    assert client.call(0, HeartbeatRequest(**member)).error_code == 0
    leave = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
    assert [client.call(0, leave).error_code for _ in range(2)] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert client.call(0, DescribeGroupsRequest(groups=["g"])).groups[0].group_state == "Empty"
    assert client.call(0, DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
    assert client.call(0, DescribeGroupsRequest(groups=["g"])).groups[0].group_state == "Dead"
