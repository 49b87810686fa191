"""UpdateFeatures v0–2: set the levels of features. KIP-584, KIP-778 (v1), KIP-1022 (v2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import Fault, FeatureUpdate, UpdateFeatures
from kwire.wire.errors import ApiError
from kwire.wire.java import hash_map_order, string_hash
from kwire.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

LAST_WITH_RESULTS = 1


def handle(node: Node, context: RequestContext, request: UpdateFeaturesRequest) -> Parked:
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

    # A feature named twice goes to the level named last. Of several faults the first in Kafka's map is told.
    named = {
        update.feature: FeatureUpdate(update.max_version_level, update.upgrade_type)
        for update in request.feature_updates
    }
    updates = {name: named[name] for name in hash_map_order(named, string_hash)}
    command = UpdateFeatures(updates, request.validate_only, node.quorum.kraft_version)
    node.controller.submit(command, done)
    return PARKED
