"""DescribeCluster v0–2: the brokers and who answers for the controller. KIP-700, KIP-919."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.broker.api.operations import CLUSTER_OPERATIONS
from kwire.broker.api.topics.metadata import NO_CONTROLLER, controller_id
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

ENDPOINT_NAMES = {1: "BROKER", 2: "CONTROLLER"}
BROKER_ENDPOINT = 1


def handle(node: Node, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Brokers only: controllers are asked on their own listener."""
    version = context.header.api_version
    wanted = request.endpoint_type
    if wanted not in ENDPOINT_NAMES:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE if version else ErrorCode.INVALID_REQUEST,
            error_message=f"Unsupported endpoint type {wanted}",
        )
    if wanted != BROKER_ENDPOINT:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if version else ErrorCode.INVALID_REQUEST,
            error_message=(
                f"The request was sent to an endpoint of type {ENDPOINT_NAMES[BROKER_ENDPOINT]}, "
                f"but we wanted an endpoint of type {ENDPOINT_NAMES[wanted]}"
            ),
        )
    image = node.image
    listener = context.channel.listener
    shown = [
        broker.broker_id
        for broker in image.brokers.values()
        if not broker.fenced or (version >= 2 and request.include_fenced_brokers)
    ]
    brokers = [
        DescribeClusterBroker(
            broker_id=endpoint.node_id,
            host=endpoint.host,
            port=endpoint.port,
            rack=endpoint.rack,
            is_fenced=image.brokers[endpoint.node_id].fenced,
        )
        for endpoint in node.endpoints(shown, listener)
    ]
    controller = controller_id(node, image)
    if all(broker.broker_id != controller for broker in brokers):
        controller = NO_CONTROLLER
    response = DescribeClusterResponse(
        cluster_id=node.cluster_id, controller_id=controller, endpoint_type=BROKER_ENDPOINT, brokers=brokers
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
