"""FindCoordinator v0–6: group and transaction coordinators. KIP-98 (key types), KIP-699 (many keys), KIP-932.

The first request for a group or a transactional id creates `__consumer_offsets` or `__transaction_state`.
Until that topic exists, the response is COORDINATOR_NOT_AVAILABLE, on which clients retry. Share coordinators
(KIP-932) are not supported: INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import Delayed, RequestContext
from kwire.broker.api.request.slices import SLICE_PARTITIONS, handle_in_slices
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kwire.wire.messages.find_coordinator import (
    GROUP,
    SHARE,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole, Endpoint

COORDINATOR_TYPES = GROUP, TRANSACTION, SHARE
FIRST_VERSION_WITH_KEYS = 4

NO_NODE = -1


def find_coordinator(
    node: BrokerRole, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Delayed:
    """Return the coordinator of one key, or from v4 on of several keys, each with a result or an error.

    Before v4, raises ApiError if the key has no coordinator.
    """
    return handle_in_slices(context, _steps(node, context, request))


def _steps(
    node: BrokerRole, context: RequestContext, request: FindCoordinatorRequest
) -> Generator[None, None, FindCoordinatorResponse]:
    if context.api_version < FIRST_VERSION_WITH_KEYS:
        found = _find(node, context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_message="NONE", node_id=found.node_id, host=found.host, port=found.port
        )
    # From v4 on, only an error of the whole request has a message.
    is_known = request.key_type in COORDINATOR_TYPES
    message = "" if is_known else DEFAULT_MESSAGES[ErrorCode.INVALID_REQUEST]
    coordinators = []
    for number, key in enumerate(request.coordinator_keys, 1):
        if not number % SLICE_PARTITIONS:
            yield
        result = Coordinator(key=key, node_id=NO_NODE, port=-1, error_message=message)
        try:
            found = _find(node, context, request.key_type, key)
            result.node_id, result.host, result.port = found.node_id, found.host, found.port
        except ApiError as error:
            result.error_code = error.code
        coordinators.append(result)
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(node: BrokerRole, context: RequestContext, key_type: int, key: str) -> Endpoint:
    """Return the coordinator of a key. Raises ApiError if it is denied, unknown or not available."""
    if key_type not in (GROUP, TRANSACTION):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    is_group = key_type == GROUP
    resource_type = ResourceType.GROUP if is_group else ResourceType.TRANSACTIONAL_ID
    node.gate.require(context, Operation.DESCRIBE, resource_type, key)
    with suppress(ApiError):
        leader = (node.groups if is_group else node.transactions).find_coordinator(key)
        for endpoint in node.endpoints({leader}, context.listener):
            return endpoint
    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
