"""DeleteGroups v0–2: delete groups without members, and their offsets. KIP-229."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(node: Node, context: RequestContext, request: DeleteGroupsRequest) -> Parked:
    """Answer for each group once all of them are gone or refused."""

    def done(outcome: dict[str, ErrorCode]) -> None:
        context.complete(
            DeleteGroupsResponse(
                results=[
                    DeletableGroupResult(group_id=group_id, error_code=code)
                    for group_id, code in outcome.items()
                ]
            )
        )

    node.groups.delete(request.groups_names, done)
    return PARKED
