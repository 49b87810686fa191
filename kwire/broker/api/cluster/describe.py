"""DescribeCluster v0–2: the brokers or the controllers of the cluster. KIP-700, KIP-919."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.authorized_operations import authorized_cluster_operations
from kwire.broker.api.request.context import RequestContext
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.api.topics.metadata import NO_CONTROLLER, controller_id
from kwire.broker.metadata.records import CONTROLLER_REGISTRATION_LEVEL
from kwire.broker.security.authorizer import Operation
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole, ControllerRole, NodeRole

ENDPOINTS = {1: "BROKER", 2: "CONTROLLER"}
BROKERS, CONTROLLERS = ENDPOINTS
FIRST_WITH_ENDPOINTS = 1
FIRST_WITH_FENCED = 2
TOO_EARLY = "Direct-to-controller communication is not supported with the current MetadataVersion."


def describe_cluster(
    node: NodeRole, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Return the brokers, or the controllers if the request came to a controller listener.

    Raises ApiError UNSUPPORTED_VERSION for controllers if the metadata version is too old, and an error if
    the request is for the endpoints of another type.
    """
    own = CONTROLLERS if context.role is ListenerRole.CONTROLLER else BROKERS
    if own == CONTROLLERS:
        node.gate.require(context, Operation.ALTER)
    if own == CONTROLLERS and node.image.metadata_version < CONTROLLER_REGISTRATION_LEVEL:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, TOO_EARLY)
    requested = request.endpoint_type
    if requested != own:
        if requested in ENDPOINTS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            text = (
                f"The request was sent to an endpoint of type {ENDPOINTS[own]}, "
                f"but we wanted an endpoint of type {ENDPOINTS[requested]}"
            )
        else:
            code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {requested}"
        if context.api_version < FIRST_WITH_ENDPOINTS:
            code = ErrorCode.INVALID_REQUEST
        raise ApiError(code, text)
    if own == CONTROLLERS:
        nodes, controller = _controllers(node, context.listener), node.quorum.leader_id
    else:
        with_fenced = context.api_version >= FIRST_WITH_FENCED and request.include_fenced_brokers
        nodes, controller = _brokers(node, context.listener, with_fenced), controller_id(node, node.image)
    response = DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=controller if any(one.broker_id == controller for one in nodes) else NO_CONTROLLER,
        endpoint_type=own,
        brokers=nodes,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_cluster_operations(node.gate, context)
    return response


def _brokers(node: BrokerRole, listener: str, with_fenced: bool) -> list[DescribeClusterBroker]:
    known = node.image.brokers
    shown = [broker.broker_id for broker in known.values() if with_fenced or not broker.fenced]
    return [
        DescribeClusterBroker(
            broker_id=endpoint.node_id,
            host=endpoint.host,
            port=endpoint.port,
            rack=endpoint.rack,
            is_fenced=known[endpoint.node_id].fenced,
        )
        for endpoint in node.endpoints(shown, listener)
    ]


def _controllers(node: ControllerRole, listener: str) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(
            broker_id=known.controller_id,
            host=known.endpoints[listener].host,
            port=known.endpoints[listener].port,
        )
        for known in node.image.controllers.values()
        if listener in known.endpoints
    ]
