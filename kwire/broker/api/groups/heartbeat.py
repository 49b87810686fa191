"""Heartbeat v0–4: stay a member of a generation. KIP-345 (instance id, v3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(node: Node, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Renew the session, and tell whether the generation is still good."""
    code = node.groups.heartbeat(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id
    )
    if code == ErrorCode.NONE:
        context.again = node.groups.same_heartbeat(request.group_id, request.generation_id, request.member_id)
    return HeartbeatResponse(error_code=code)
