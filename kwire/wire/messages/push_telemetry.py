"""PushTelemetry v0. KIP-714."""

from __future__ import annotations

from kwire.wire.primitives import Uuid
from kwire.wire.schema import Bool, Bytes, Int8, Int16, Int32, Message, field, message


@message(key=72, versions="0", flexible="0+")
class PushTelemetryRequest(Message):
    """A client's metrics: a compressed OpenTelemetry MetricsData."""

    client_instance_id: Uuid = field()
    subscription_id: Int32 = field()
    terminating: Bool = field()
    compression_type: Int8 = field()
    metrics: Bytes = field()


@message(key=72, versions="0", flexible="0+")
class PushTelemetryResponse(Message):
    throttle_time_ms: Int32 = field()
    error_code: Int16 = field()
