"""UpdateFeatures v0–2, UnregisterBroker v0.

UpdateFeatures: KIP-584, KIP-778 (v1), KIP-1022 (v2). UnregisterBroker (KIP-500) removes a broker from the
metadata. Apache Kafka also unregisters a running broker, which then serves nothing until it is restarted. In
kwire, a broker rejects a request to unregister itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.controller.commands import Fault, FeatureUpdate, UnregisterBroker, UpdateFeatures
from kwire.broker.security.authorizer import Operation
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from kwire.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.context import RequestContext
    from kwire.broker.api.request.forwarding import Forward
    from kwire.broker.api.request.ports import (
        BrokerRole,
        ClusterView,
        ControllerRequestContext,
        ControllerRole,
    )

LAST_WITH_RESULTS = 1


def update_features(
    node: ControllerRole, context: ControllerRequestContext, request: UpdateFeaturesRequest
) -> Delayed:
    """Update all requested features or none. As in Apache Kafka, v0 of the request allows no downgrade."""

    def respond(fault: Fault | None) -> UpdateFeaturesResponse:
        response = UpdateFeaturesResponse(error_message=None, results=[])
        if fault is not None:
            response.error_code = fault.code
            response.error_message = (
                "The update failed for all features since the following feature had an error: "
                f"{fault.message}"
            )
        elif context.api_version <= LAST_WITH_RESULTS:
            response.results = [
                UpdatableFeatureResult(feature=update.feature, error_message="NONE")
                for update in request.feature_updates
            ]
        return response

    # If a feature occurs several times, its last update wins.
    updates = {
        update.feature: FeatureUpdate(update.max_version_level, update.upgrade_type)
        for update in request.feature_updates
    }
    command = UpdateFeatures(updates, request.validate_only, node.quorum.kraft_version)
    return submit(node, context, command, respond)


def check_not_this_broker(
    node: BrokerRole, context: RequestContext, request: UnregisterBrokerRequest, forward: Forward
) -> Delayed:
    """Forward the request. Raises ApiError INVALID_REQUEST if it would unregister this broker."""
    if request.broker_id == node.node_id:
        node.gate.require(context, Operation.ALTER)  # otherwise only the controller authorizes the request
    _check_not_this_broker(node, request)
    return forward(context, request)


def unregister_broker(
    node: ControllerRole, context: ControllerRequestContext, request: UnregisterBrokerRequest
) -> Delayed:
    """Unregister a broker.

    Raises ApiError INVALID_REQUEST if this node is that broker.
    """
    if request.broker_id in node.image.brokers:
        _check_not_this_broker(node, request)
    command = UnregisterBroker(request.broker_id)
    return submit(node, context, command, lambda _: UnregisterBrokerResponse())


def _check_not_this_broker(node: ClusterView, request: UnregisterBrokerRequest) -> None:
    if request.broker_id == node.node_id:
        text = f"Broker {node.node_id} is running and received this request, so it cannot be unregistered."
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
