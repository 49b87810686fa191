"""JoinGroup v0–9: become a member of a classic group, or come to its next generation.

KIP-62 (rebalance timeout, v1), KIP-394 (member ids first, v4), KIP-345 (instance id, v5), KIP-559 (protocol
type, v7), KIP-800 (reason, v8), KIP-814 (static leader keeps the assignment, v9). The answer waits until the
whole group has joined; it is not called off when the client goes away, which only a timeout can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.coordinator.groups.classic.classic import Join
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_MEMBER_ID_FIRST = 4
FIRST_VERSION_WITH_NULL_PROTOCOL = 7
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9


def handle(node: Node, context: RequestContext, request: JoinGroupRequest) -> Parked:
    """Answer when the join ends, or at once where it is refused."""
    version = context.api_version
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < FIRST_VERSION_WITH_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = request.session_timeout_ms

    def done(response: JoinGroupResponse) -> None:
        if not response.protocol_name:
            # No protocol is null where it can be.
            response.protocol_name = "" if version < FIRST_VERSION_WITH_NULL_PROTOCOL else None
        if version < FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
            response.skip_assignment = False
        context.complete(response)

    node.groups.join(
        Join(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=f"/{context.channel.peer_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            reason=request.reason,
            requires_member_id=version >= FIRST_VERSION_WITH_MEMBER_ID_FIRST,
            can_skip_assignment=version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT,
        ),
        done,
    )
    return PARKED
