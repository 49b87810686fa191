"""ApiVersions v0–4. KIP-35, KIP-511 (client software), KIP-584 (features), KAFKA-17011.

A request of an unknown version gets a v0 response with UNSUPPORTED_VERSION, which has only the supported
versions of ApiVersions, so that the client can retry. The response header always has version 0, because the
client does not know the broker's versions yet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import RequestContext
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS, ListenerRole, apis_for
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kwire.wire.registry import encode_response

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import NodeRole

SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
FIRST_VERSION_WITH_SOFTWARE = 3
FIRST_VERSION_WITH_ZERO_MINIMUM = 4


def api_versions(node: NodeRole, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return the APIs of this listener and the feature levels. From v3 on, record the client's software.

    Returns INVALID_REQUEST if the name or version of the client software is malformed (KIP-511).
    """
    version = context.api_version
    if version >= FIRST_VERSION_WITH_SOFTWARE:
        name, software_version = request.client_software_name, request.client_software_version
        if not SOFTWARE_NAME.fullmatch(name) or not SOFTWARE_NAME.fullmatch(software_version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.channel.client_software_name = name
        context.channel.client_software_version = software_version
    features = node.features()
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in _offered(node, context.role).items()
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in features.supported.items()
            if low > 0 or version >= FIRST_VERSION_WITH_ZERO_MINIMUM
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized.items()
        ],
    )


def _offered(node: NodeRole, role: ListenerRole) -> dict[int, tuple[int, int]]:
    """Return the lowest and highest version of each API, by API key.

    For a forwarded API, return only versions that the active controller supports, too.
    """
    offered = {
        key: (served.min_version, served.max_version)
        for key, served in apis_for(role).items()
        if not served.needs_client_metrics or _has_client_metrics(node)
    }
    controller_versions = node.forwarding.versions() if node.forwarding is not None else {}
    if controller_versions and role is ListenerRole.BROKER:
        for key in [key for key in offered if SUPPORTED_APIS[key].handled_by.value.is_forwarded]:
            low, high = offered.pop(key)
            least, most = controller_versions.get(key, (0, -1))
            if max(low, least) <= min(high, most):
                offered[key] = max(low, least), min(high, most)
    return offered


def _has_client_metrics(node: NodeRole) -> bool:
    """Return whether a subscription selects client metrics, and this node exports them.

    If a broker advertises the telemetry APIs, each librdkafka client logs its new client instance id. Without
    a subscription, the requests have no other effect.
    """
    return node.has_telemetry_receiver and node.has_client_metrics_subscriptions


def complete_unsupported(context: RequestContext) -> None:
    """Respond with UNSUPPORTED_VERSION to an ApiVersions request of an unknown version."""
    served = SUPPORTED_APIS[ApiKey.API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            ApiVersion(
                api_key=ApiKey.API_VERSIONS, min_version=served.min_version, max_version=served.max_version
            )
        ],
    )
    context.record_error(ErrorCode.UNSUPPORTED_VERSION)
    context.complete_encoded(encode_response(ApiKey.API_VERSIONS, 0, context.header.correlation_id, response))
