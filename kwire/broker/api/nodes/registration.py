"""BrokerRegistration v0–4, BrokerHeartbeat v0–2, AllocateProducerIds v0, ControllerRegistration v0.

KIP-631, KIP-730 (producer id blocks), KIP-919 (controllers). Each request becomes a command for the
controller, which checks it. Only the cluster id of a broker and the metadata version for a controller are
checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.broker.controller.commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    ProducerIdBlock,
    RegisterBroker,
    RegisterController,
)
from kwire.broker.metadata.features import FEATURES
from kwire.broker.metadata.image import EndpointImage
from kwire.broker.metadata.records import CONTROLLER_REGISTRATION_LEVEL
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from kwire.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kwire.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from kwire.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole


def _warn_about_unsupported_features(node: ControllerRole, broker_id: int) -> None:
    """Warn about finalized features that the registering broker may use but this node does not support."""
    features, own = node.image.features, node.node_id in node.image.brokers
    unserved = [name for name, level in features.items() if level and not FEATURES[name].is_served]
    if unserved and own and broker_id != node.node_id:
        options = " ".join(f"--feature {name}=0" for name in unserved)
        node.host.logger("kwire.node").warning(
            "The cluster has enabled %s, which this node does not support, and the new broker %d may use it: "
            "to disable it, run kafka-features downgrade %s",
            *(", ".join(unserved), broker_id, options),
        )


def broker_registration(
    node: ControllerRole, context: ControllerRequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse | Delayed:
    """Register a broker and respond with its new broker epoch.

    Raises ApiError INCONSISTENT_CLUSTER_ID if the broker belongs to another cluster.
    """
    if request.cluster_id != node.cluster_id:
        text = f"Expected cluster ID {node.cluster_id}, but got cluster ID {request.cluster_id}"
        raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, text)

    def done(reply: int | ApiError) -> None:
        if isinstance(reply, ApiError):
            if reply.code is ErrorCode.UNSUPPORTED_VERSION:
                node.host.logger("kwire.node").warning(
                    "Rejecting the registration of broker %d: %s", request.broker_id, reply.message
                )
            context.refuse(reply)
        else:
            _warn_about_unsupported_features(node, request.broker_id)
            context.complete(BrokerRegistrationResponse(broker_epoch=reply))

    command = RegisterBroker(
        request.broker_id,
        request.incarnation_id,
        _endpoints(request),
        _features(request),
        request.rack,
        request.log_dirs,
        # Requests before v3 have the default, -1, which means that the broker may have lost records.
        request.previous_broker_epoch,
        request.is_migrating_zk_broker,
        node.quorum.kraft_version,
    )
    node.own_controller.submit(command, done)
    return DELAYED


def broker_heartbeat(
    node: ControllerRole, context: ControllerRequestContext, request: BrokerHeartbeatRequest
) -> Delayed:
    """Extend a broker's session and return the broker's state."""

    def respond(reply: BrokerHeartbeatReply) -> BrokerHeartbeatResponse:
        return BrokerHeartbeatResponse(
            is_caught_up=reply.is_caught_up,
            is_fenced=reply.is_fenced,
            should_shut_down=reply.should_shut_down,
        )

    command = BrokerHeartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        request.want_fence,
        request.want_shut_down,
        request.offline_log_dirs,
        request.cordoned_log_dirs,
    )
    return submit(node, context, command, respond)


def allocate_producer_ids(
    node: ControllerRole, context: ControllerRequestContext, request: AllocateProducerIdsRequest
) -> Delayed:
    def respond(block: ProducerIdBlock) -> AllocateProducerIdsResponse:
        return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.size)

    return submit(node, context, AllocateProducerIds(request.broker_id, request.broker_epoch), respond)


def controller_registration(
    node: ControllerRole, context: ControllerRequestContext, request: ControllerRegistrationRequest
) -> Delayed:
    """Register a controller. Raises ApiError UNSUPPORTED_VERSION if the metadata version is too old."""
    if node.image.metadata_version < CONTROLLER_REGISTRATION_LEVEL:
        text = "The current MetadataVersion is too old to support controller registrations."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    command = RegisterController(
        request.controller_id, request.incarnation_id, _endpoints(request), _features(request)
    )
    return submit(node, context, command, lambda _: ControllerRegistrationResponse())


def _endpoints(request: BrokerRegistrationRequest | ControllerRegistrationRequest) -> list[EndpointImage]:
    return [
        EndpointImage(listener.name, listener.host, listener.port, listener.security_protocol)
        for listener in request.listeners
    ]


def _features(
    request: BrokerRegistrationRequest | ControllerRegistrationRequest,
) -> dict[str, tuple[int, int]]:
    return {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
