"""ListGroups v0–5: the groups that this broker coordinates. KIP-518 (states, v4), KIP-848 (types, v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.wire.errors import ApiError
from kwire.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(node: Node, _context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Answer with the groups that pass both filters; an empty filter lets all pass."""
    try:
        groups = node.groups.listed(request.states_filter, request.types_filter)
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code, groups=[])
    return ListGroupsResponse(groups=groups)
