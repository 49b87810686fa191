"""SyncGroup v0–5: hand in the leader's assignment, and get one's own. KIP-345 (v3), KIP-559 (v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.coordinator.groups.classic.classic import Sync
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_VERSION_WITH_PROTOCOL = 5


def handle(node: Node, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Parked:
    """Answer when the assignment is stored. From v5 on the protocol must be named (KIP-559)."""
    if context.api_version >= FIRST_VERSION_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    node.groups.sync(
        Sync(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments=[(given.member_id, bytes(given.assignment)) for given in request.assignments],
        ),
        context.complete,
    )
    return PARKED
