"""ConsumerGroupHeartbeat v0–1: members of consumer groups whose partitions the coordinator shares out.

KIP-848; regular expressions and member ids made by the members from v1 on (KIP-1082). Only where the feature
group.version is on, and group.coordinator.rebalance.protocols names the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.coordinator.groups.consumer.requests import Caller
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.repeated import Again
    from kwire.broker.node.node import Node

CONSUMER_PROTOCOL = "consumer"


def handle(
    node: Node, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Parked:
    """Answer once what the heartbeat changed is stored."""
    if not consumer_groups_enabled(node):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    caller = Caller(context.client_id, f"/{context.channel.peer_host}")
    node.groups.consumer_heartbeat(request, caller, context.api_version, context.complete)
    if context.completed:
        again = node.groups.same_consumer_heartbeat(request, caller)
        if again is not None:
            context.again = _while_configured_so(node, again)
    return PARKED


def _while_configured_so(node: Node, again: Again) -> Again:
    image = node.image
    configs, features = image.configs, image.features

    def so_far(now_ms: int) -> bool:
        image = node.image
        return image.configs is configs and image.features is features and again(now_ms)

    return so_far


def consumer_groups_enabled(node: Node) -> bool:
    """Whether the cluster has consumer groups of KIP-848."""
    if node.image.features.get("group.version", 0) < 1:
        return False
    protocols = node.config.group_coordinator_rebalance_protocols
    return CONSUMER_PROTOCOL in protocols or CONSUMER_PROTOCOL in map(str.lower, protocols)
