"""FindCoordinator v0–6: group and transaction coordinators. KIP-98 (key types), KIP-699 (many keys), KIP-932.

The first request for a group or a transactional id creates `__consumer_offsets` or `__transaction_state`.
Until that topic exists, the response is COORDINATOR_NOT_AVAILABLE, on which clients retry. Share coordinators
(KIP-932) are not supported: INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import RequestContext
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kwire.wire.messages.find_coordinator import (
    GROUP,
    SHARE,
    TRANSACTION,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

COORDINATOR_TYPES = GROUP, TRANSACTION, SHARE
FIRST_VERSION_WITH_KEYS = 4

NO_NODE = -1

MESSAGES = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: DEFAULT_MESSAGES[ErrorCode.INVALID_REQUEST],
}
"""Apache Kafka's error messages, by error code."""


class _Found(NamedTuple):
    node_id: int
    host: str
    port: int


NO_COORDINATOR = _Found(NO_NODE, "", -1)


def find_coordinator(
    node: BrokerRole, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Return the coordinator of one key, or from v4 on of several keys. Each may be an error."""
    if context.api_version < FIRST_VERSION_WITH_KEYS:
        code, found = _find(node, context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=code,
            error_message=MESSAGES[code],
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    # From v4 on, only an error of the whole request has a message.
    message = "" if request.key_type in COORDINATOR_TYPES else MESSAGES[ErrorCode.INVALID_REQUEST]
    coordinators = []
    for key in request.coordinator_keys:
        code, found = _find(node, context, request.key_type, key)
        coordinators.append(
            Coordinator(
                key=key,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
                error_code=code,
                error_message=message,
            )
        )
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(node: BrokerRole, context: RequestContext, key_type: int, key: str) -> tuple[ErrorCode, _Found]:
    if key_type not in (GROUP, TRANSACTION):
        return ErrorCode.INVALID_REQUEST, NO_COORDINATOR
    try:
        leader = (
            node.groups.find_coordinator(key)
            if key_type == GROUP
            else node.transactions.find_coordinator(key)
        )
    except ApiError as error:
        return error.code, NO_COORDINATOR
    for endpoint in node.endpoints({leader}, context.channel.listener):
        return ErrorCode.NONE, _Found(leader, endpoint.host, endpoint.port)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_COORDINATOR
