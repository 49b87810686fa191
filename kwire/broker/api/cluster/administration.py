"""UpdateFeatures v0–2, UnregisterBroker v0.

The levels of features (KIP-584, KIP-778 in v1, KIP-1022 in v2); and a broker that does not come back is
forgotten (KIP-500). Apache Kafka forgets a broker that runs, too, which then serves nothing until it is
started again. That helps nobody: here the broker that is asked refuses to be forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.broker.controller.commands import Fault, FeatureUpdate, UnregisterBroker, UpdateFeatures
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
    """All levels are set or none; version 0 allows no downgrade, whatever it asks, as in Apache Kafka."""

    def done(reply: Fault | ApiError | None) -> None:
        response = UpdateFeaturesResponse(error_message=None, results=[])
        if isinstance(reply, ApiError):
            response.error_code, response.error_message = reply.code, reply.message
        elif reply is not None:
            response.error_code = reply.code
            response.error_message = (
                "The update failed for all features since the following feature had an error: "
                f"{reply.message}"
            )
        elif context.api_version <= LAST_WITH_RESULTS:
            response.results = [
                UpdatableFeatureResult(feature=update.feature, error_message="NONE")
                for update in request.feature_updates
            ]
        context.complete(response)

    # A feature named twice goes to the level named last.
    updates = {
        update.feature: FeatureUpdate(update.max_version_level, update.upgrade_type)
        for update in request.feature_updates
    }
    command = UpdateFeatures(updates, request.validate_only, node.quorum.kraft_version)
    node.own_controller.submit(command, done)
    return DELAYED


def check_not_this_broker(
    node: BrokerRole, context: RequestContext, request: UnregisterBrokerRequest, forward: Forward
) -> Delayed:
    """The broker that is asked is not forgotten."""
    _check_not_this_broker(node, request)
    return forward(context, request)


def unregister_broker(
    node: ControllerRole, context: ControllerRequestContext, request: UnregisterBrokerRequest
) -> Delayed:
    """Whether the broker is forgotten; not if it is this very node, which is a broker, too."""
    if request.broker_id in node.image.brokers:
        _check_not_this_broker(node, request)

    def done(reply: ApiError | None) -> None:
        response = UnregisterBrokerResponse()
        if reply is not None:
            response.error_code, response.error_message = reply.code, reply.message
        context.complete(response)

    node.own_controller.submit(UnregisterBroker(request.broker_id), done)
    return DELAYED


def _check_not_this_broker(node: ClusterView, request: UnregisterBrokerRequest) -> None:
    if request.broker_id == node.node_id:
        text = f"Broker {node.node_id} runs, and is the one that was asked to forget it."
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
