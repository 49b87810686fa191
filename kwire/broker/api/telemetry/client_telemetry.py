"""The client telemetry of a broker: subscriptions from the metadata, and pushed metrics. KIP-714."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kwire.broker.api.telemetry.client_instances import ClientInstances, ClientMetadata
from kwire.broker.api.telemetry.pushed_metrics import PushedMetrics
from kwire.broker.config.definition import ConfigError
from kwire.broker.metadata.client_metrics import IllegalPattern, parse_subscription
from kwire.broker.metadata.image import RESOURCE_CLIENT_METRICS
from kwire.wire.compression import Codec, CompressionError, decompress
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kwire.wire.messages.push_telemetry import PushTelemetryRequest
from kwire.wire.otlp import read_points
from kwire.wire.primitives import Buffer, uuid_to_text

if TYPE_CHECKING:
    from kwire.broker.config import BrokerConfig
    from kwire.broker.metadata.delta import MetadataDelta
    from kwire.broker.metadata.image import MetadataImage
    from kwire.host.host import Host

ACCEPTED_CODECS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""The accepted compression codecs, in Kafka's order of preference."""
MAX_FIELDS: Final = 50_000
"""The limit for fields per push. Decoding so many takes about 0.05 s. Real clients push at most half."""


class ClientTelemetry:
    """The client instances of a broker and their pushed metrics."""

    def __init__(
        self, config: BrokerConfig, host: Host, image: MetadataImage, *, has_receiver: Callable[[], bool]
    ) -> None:
        """`has_receiver` returns whether pushed metrics are exported."""
        self.pushed_metrics = PushedMetrics()
        self.instances = ClientInstances(host.random("client instances"))
        self._config = config
        self._host = host
        self._has_receiver = has_receiver
        self._logger = host.logger("kwire.telemetry")
        for resource_type, name in image.configs:
            if resource_type == RESOURCE_CLIENT_METRICS:
                self._subscribe(name, image.config(resource_type, name))

    @property
    def max_bytes(self) -> int:
        """The largest push in bytes, compressed or not."""
        return self._config.telemetry_max_bytes

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply the client metrics subscriptions that have changed."""
        for resource_type, name in sorted(delta.changed_configs):
            if resource_type == RESOURCE_CLIENT_METRICS:
                self._subscribe(name, image.config(resource_type, name))

    def _subscribe(self, name: str, settings: Mapping[str, str]) -> None:
        try:
            self.instances.subscribe(name, parse_subscription(settings) if settings else None)
        except (ConfigError, IllegalPattern) as error:
            self._logger.error("Ignoring client metrics subscription %s: %s", name, error)

    def get(
        self, asked: GetTelemetrySubscriptionsRequest, client: ClientMetadata
    ) -> GetTelemetrySubscriptionsResponse:
        """Return the subscription of a client instance. See `ClientInstances.get` for errors."""
        instance = self.instances.get(asked.client_instance_id, client, self._host.monotonic_ms())
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=list(ACCEPTED_CODECS),
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self.max_bytes,
            delta_temporality=True,
            requested_metrics=instance.metrics,
        )

    def push(self, pushed: PushTelemetryRequest, client: ClientMetadata) -> None:
        """Process the metrics that a client instance pushes.

        Raises ApiError INVALID_RECORD if they cannot be decoded. See `ClientInstances.push` for other errors.
        """
        now_ms = self._host.monotonic_ms()
        instance = self.instances.push(
            pushed.client_instance_id,
            client,
            now_ms,
            of_subscription=pushed.subscription_id,
            terminating=pushed.terminating,
            compression=pushed.compression_type,
            is_too_large=len(pushed.metrics) > self.max_bytes,
        )
        if pushed.metrics:
            try:
                self._take(pushed, client, now_ms + instance.expiry_ms)
            except (CompressionError, WireError) as error:
                instance.last_error = ErrorCode.INVALID_RECORD
                self._logger.info(
                    "Rejecting metrics pushed by client instance %s: %s", uuid_to_text(instance.id), error
                )
                raise ApiError(ErrorCode.INVALID_RECORD) from error
        if pushed.terminating:
            self.pushed_metrics.end_client(instance.id, now_ms)

    def _take(self, pushed: PushTelemetryRequest, client: ClientMetadata, until_ms: int) -> None:
        data: Buffer = pushed.metrics
        if pushed.compression_type != Codec.NONE:
            data = decompress(Codec(pushed.compression_type), data, max_bytes=self.max_bytes)
        if self._has_receiver():
            points = read_points(data, max_fields=MAX_FIELDS)
            self.pushed_metrics.take(pushed.client_instance_id, client, points, until_ms=until_ms)

    def disconnected(self, connection: int) -> None:
        """Remove the client instance of a closed connection. Its metrics are kept for a minute."""
        gone = self.instances.disconnected(connection)
        if gone is not None:
            self.pushed_metrics.end_client(gone, self._host.monotonic_ms())

    def expire(self) -> None:
        """Remove expired client instances and their metrics."""
        now_ms = self._host.monotonic_ms()
        self.instances.expire(now_ms)
        self.pushed_metrics.expire(now_ms)
