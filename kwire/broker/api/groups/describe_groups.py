"""DescribeGroups v0–6: state, protocol and members of classic groups. KIP-430 (v3), KIP-345 (v4).

A group that does not exist is described as Dead; from v6 on it is an error as well (KIP-1043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_VERSION_WITH_NOT_FOUND = 6

READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11
"""Codes of the operations that a group knows (KIP-430)."""

ALL_OPERATIONS = sum(1 << code for code in (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS))


def handle(node: Node, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Answer for each group."""
    groups = [_described(node, context, group_id) for group_id in node.groups.in_order(request.groups)]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _described(node: Node, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        return node.groups.describe(group_id)
    except ApiError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            return DescribedGroup(group_id=group_id, error_code=error.code, members=[])
        unknown = DescribedGroup(group_id=group_id, group_state="Dead", members=[])
        if context.api_version >= FIRST_VERSION_WITH_NOT_FOUND:
            unknown.error_code = error.code
            unknown.error_message = error.message
        return unknown
