"""LeaveGroup v0–5: take members out of a group. KIP-345 (many members, v3), KIP-800 (reason, v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_VERSION_WITH_MEMBERS = 3


def handle(node: Node, context: RequestContext, request: LeaveGroupRequest) -> Parked:
    """Answer for each member, or before v3 for the one that leaves."""
    many = context.api_version >= FIRST_VERSION_WITH_MEMBERS
    members = request.members if many else [MemberIdentity(member_id=request.member_id)]

    def done(response: LeaveGroupResponse) -> None:
        if not many:
            codes = [response.error_code, *(member.error_code for member in response.members)]
            response = LeaveGroupResponse(error_code=next((code for code in codes if code), 0), members=[])
        context.complete(response)

    node.groups.leave(request.group_id, members, done)
    return PARKED
