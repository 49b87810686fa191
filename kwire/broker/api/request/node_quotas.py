"""Client quotas of a node: produced and fetched bytes, and the time of requests. KIP-13, KIP-124, KIP-219.

A request whose client exceeds a quota is handled, and then the connection is muted for the throttle time. A
Fetch beyond its quota gets an empty response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kwire.broker.api.request.client_quotas import ClientQuotas, CountedRequest
from kwire.broker.api.request.request_metrics import FETCH_FOLLOWER
from kwire.broker.security.quotas.limits import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaLimits,
)
from kwire.broker.security.quotas.rates import MS_PER_SECOND, SampledRate, TokenBucket
from kwire.broker.security.quotas.usage import QuotaUsage
from kwire.wire.api_keys import ApiKey
from kwire.wire.schema import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kwire.broker.api.request.requester import Requester
    from kwire.broker.config import BrokerConfig
    from kwire.broker.metadata.delta import MetadataDelta
    from kwire.broker.metadata.image import MetadataImage, QuotaEntity
    from kwire.host.host import Host

EXEMPT: Final = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_PARTITION,
}
"""The APIs to which no quota applies."""
KEYS: Final = PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE
MAX_FETCH_BYTES: Final = 2**31 - 1
PERCENT: Final = 100.0


class NodeClientQuotas(ClientQuotas):
    """The client quotas in the metadata, which a node enforces."""

    def __init__(self, config: BrokerConfig, host: Host) -> None:
        self._config = config
        self._now_ms = host.monotonic_ms
        self.clock: Callable[[], float] = lambda: 0.0
        """The clock of the request metrics, in seconds. With the default, requests take no time."""
        self._known: Mapping[QuotaEntity, Mapping[str, float]] | None = None
        self._handled_s = 0.0
        """The time at which the last request was completed, of the clock of the request metrics."""
        self._produce, self._fetch, self._request = (
            QuotaUsage(QuotaLimits({}, key), self._rate) for key in KEYS
        )
        self._mutations = QuotaUsage(QuotaLimits({}, CONTROLLER_MUTATION_RATE), self._bucket)

    def _bucket(self) -> TokenBucket:
        window_ms = self._config.controller_quota_window_size_seconds * MS_PER_SECOND
        return TokenBucket(self._config.controller_quota_window_num, window_ms)

    def _rate(self) -> SampledRate:
        return SampledRate(self._config.quota_window_num, self._window_ms)

    @property
    def _window_ms(self) -> int:
        return self._config.quota_window_size_seconds * MS_PER_SECOND

    def update(self, image: MetadataImage, _delta: MetadataDelta) -> None:
        """Apply the quotas of a new image. While a key has no quotas, its rates are not recorded."""
        if image.quotas is self._known:
            return
        self._known = image.quotas
        for usage, key in zip((self._produce, self._fetch, self._request), KEYS, strict=True):
            usage.limits = QuotaLimits(image.quotas, key)
        self._mutations.limits = QuotaLimits(image.quotas, CONTROLLER_MUTATION_RATE)
        all_usage = self._produce, self._fetch, self._request, self._mutations
        self.is_enforced = any(usage.limits for usage in all_usage)

    def throttle_time_ms(self, context: CountedRequest, response: Message | None) -> int:
        """Record a request that is about to be completed. Return for how long to mute its connection, in ms.

        The time is that of the active controller, if it has forwarded a longer one in the response.
        """
        api_key = context.header.api_key
        if context.throttle_ms is not None:
            return context.throttle_ms
        spent = self._spent_percent_seconds(context)
        if api_key in EXEMPT or (context.counted_as and context.counted_as[0] == FETCH_FOLLOWER):
            return 0
        now_ms = self._now_ms()
        produced_ms = 0
        if api_key == ApiKey.PRODUCE:
            produced_ms = self._record(self._produce, context, context.size_bytes, now_ms)
            if response is None:  # acks=0
                return produced_ms
        requested_ms = self._record_request(context, spent, now_ms)
        return max(produced_ms, requested_ms, getattr(response, "throttle_time_ms", 0))

    def fetch_limit_bytes(self, context: CountedRequest) -> int:
        """Return how many bytes a Fetch of an idle client can read without exceeding its quota."""
        if not self._fetch.limits:
            return MAX_FETCH_BYTES
        _, limit = self._fetch.find(context.principal.name, context.client_id, self._now_ms())
        return min(
            MAX_FETCH_BYTES,
            int(limit * (self._config.quota_window_num - 1) * self._window_ms / MS_PER_SECOND),
        )

    def throttle_fetch(self, context: CountedRequest, response_bytes: int) -> int:
        """Record a Fetch of a client before its response is built. Return for how long to mute, in ms.

        If it is not 0, the response must be empty, and its bytes are not recorded.
        """
        now_ms = self._now_ms()
        requested_ms = self._record_request(context, self._spent_percent_seconds(context), now_ms)
        fetched_ms = self._record(self._fetch, context, response_bytes, now_ms)
        context.throttle_ms = throttle_ms = max(requested_ms, fetched_ms)
        if throttle_ms and self._fetch.limits:
            rate, _ = self._fetch.find(context.principal.name, context.client_id, now_ms)
            rate.record(-response_bytes, now_ms)
        return throttle_ms

    def mutation_quota(self, context: Requester, strict_since: int) -> BucketQuota | None:
        """Return the quota of a client for the partitions that a request creates or deletes. KIP-599."""
        if not self._mutations.limits:
            return None
        client_id = context.header.client_id or ""
        bucket, limit = self._mutations.find(context.principal.name, client_id, self._now_ms())
        return BucketQuota(bucket, limit, self._now_ms, is_strict=context.api_version >= strict_since)

    def _record_request(self, context: CountedRequest, spent: float, now_ms: int) -> int:
        return min(self._record(self._request, context, spent, now_ms), self._window_ms)

    @staticmethod
    def _record(usage: QuotaUsage[SampledRate], context: CountedRequest, value: float, now_ms: int) -> int:
        if not usage.limits:
            return 0
        rate, limit = usage.find(context.principal.name, context.client_id, now_ms)
        rate.record(value, now_ms)
        return rate.throttle_time_ms(limit, now_ms)

    def _spent_percent_seconds(self, context: CountedRequest) -> float:
        """Return the time that the event loop has spent with a request, in hundredths of a second.

        A request that was delayed counts until its handler returned.
        """
        now_s = self.clock()
        if context.handled_s >= 0:
            spent_s = context.handled_s
        else:
            spent_s = now_s - max(context.received_s, self._handled_s)
        self._handled_s = now_s
        return max(0.0, spent_s) * PERCENT


class BucketQuota:
    """The quota of one request for partitions (Kafka's ControllerMutationQuota).

    A strict quota refuses changes while the bucket has fewer than 0 tokens. Another quota allows them, and
    the client is throttled then.
    """

    def __init__(
        self, bucket: TokenBucket, limit: float, now_ms: Callable[[], int], *, is_strict: bool
    ) -> None:
        self._bucket = bucket
        self._limit = limit
        self._now_ms = now_ms
        self._is_strict = is_strict
        self._until_ms: int | None = None

    def take(self, partitions: int) -> bool:
        """Take a token per partition. Return False, and take none, if a strict quota is exceeded."""
        now_ms = self._now_ms()
        is_refused = self._is_strict and self._bucket.tokens(self._limit, now_ms) < 0
        if not is_refused:
            self._bucket.take(partitions, self._limit, now_ms)
        if is_refused or not self._is_strict:
            self._until_ms = now_ms + self._bucket.throttle_time_ms(self._limit, now_ms)
        return not is_refused

    def throttle_time_ms(self) -> int:
        """Return the throttle time that is left, in ms."""
        return 0 if self._until_ms is None else max(0, self._until_ms - self._now_ms())
