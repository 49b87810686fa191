"""FindCoordinator v0–6: who coordinates groups. KIP-98 (key types), KIP-699 (many keys), KIP-932.

The first question about a group creates the offsets topic; until that is there, the answer is
COORDINATOR_NOT_AVAILABLE, on which clients ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.handlers.context import RequestContext
from kwire.errors import ApiError, ErrorCode
from kwire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from broker.node import Node

GROUP, TRANSACTION, SHARE = range(3)
FIRST_VERSION_WITH_KEYS = 4

NO_NODE = -1


class _Found(NamedTuple):
    node_id: int
    host: str
    port: int


def handle(node: Node, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Answer with one coordinator (before v4) or with one for each key."""
    if context.api_version < FIRST_VERSION_WITH_KEYS:
        try:
            found = _find(node, context, request.key_type, request.key)
        except ApiError as error:
            return FindCoordinatorResponse(
                error_code=error.code, error_message=error.message, node_id=NO_NODE, host="", port=-1
            )
        return FindCoordinatorResponse(
            error_message="NONE", node_id=found.node_id, host=found.host, port=found.port
        )
    return FindCoordinatorResponse(
        coordinators=[_coordinator(node, context, request.key_type, key) for key in request.coordinator_keys]
    )


def _coordinator(node: Node, context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        found = _find(node, context, key_type, key)
    except ApiError as error:
        return Coordinator(key=key, node_id=NO_NODE, host="", port=-1, error_code=error.code)
    return Coordinator(key=key, node_id=found.node_id, host=found.host, port=found.port)


def _find(node: Node, context: RequestContext, key_type: int, key: str) -> _Found:
    if key_type == TRANSACTION:
        # No broker of this cluster coordinates transactions.
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if key_type != GROUP:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    leader = node.groups.find(key)
    for endpoint in node.endpoints({leader}, context.channel.listener):
        return _Found(leader, endpoint.host, endpoint.port)
    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
