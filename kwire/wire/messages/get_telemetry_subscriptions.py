"""GetTelemetrySubscriptions v0. KIP-714."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Int8, Int16, Int32, Message, Str, field, message


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest(Message):
    """A client's request for its metrics subscription. A new client also gets its instance id."""

    client_instance_id: Uuid = field()


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse(Message):
    """The metrics to push, and the push interval. An empty list means no metrics, and `*` means all."""

    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
    client_instance_id: Uuid = field()
    subscription_id: Int32 = field()
    accepted_compression_types: list[Int8] = field()
    push_interval_ms: Int32 = field()
    telemetry_max_bytes: Int32 = field()
    delta_temporality: Bool = field()
    requested_metrics: list[Str] = field()
