"""GetTelemetrySubscriptions v0 and PushTelemetry v0. KIP-714.

Checks of a push, in this order: client instance id, terminated client, push interval, subscription id,
compression type, size, content (INVALID_RECORD). Brokers always handle both APIs, but advertise them only
while there is a subscription and pushed metrics are exported over an HTTP port (docs/decisions/0023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kwire.broker.api.telemetry.client_instances import ClientMetadata
from kwire.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kwire.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

if TYPE_CHECKING:
    from kwire.broker.api.request.context import RequestContext
    from kwire.broker.api.telemetry.client_telemetry import ClientTelemetry


class TelemetryBroker(Protocol):
    @property
    def telemetry(self) -> ClientTelemetry: ...


def get_telemetry_subscriptions(
    node: TelemetryBroker, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that the client must push, and the push interval."""
    return node.telemetry.get(request, _client(context))


def push_telemetry(
    node: TelemetryBroker, context: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse:
    node.telemetry.push(request, _client(context))
    return PushTelemetryResponse()


def _client(context: RequestContext) -> ClientMetadata:
    channel = context.channel
    return ClientMetadata(
        context.client_id,
        channel.client_software_name,
        channel.client_software_version,
        context.peer_host,
        channel.peer_port,
        channel.id,
    )
