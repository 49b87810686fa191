"""Limits of the rate of new connections, as in Apache Kafka's ConnectionQuotas. KIP-612.

- `max.connection.creation.rate` of the broker, and of a listener: a listener that exceeds a limit accepts no
  connections for the throttle time. If the broker has several listeners, the inter-broker listener is exempt
  from the broker's limit.
- The quota `connection_creation_rate` of an IP address: the broker accepts the connection, reads nothing, and
  closes it after the throttle time. Such connections do not count for the other limits.

A throttle time is at most one window of the rate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kwire.broker.net.connection_quotas import UNLIMITED
from kwire.broker.security.quotas.limits import CONNECTION_CREATION_RATE, IP
from kwire.broker.security.quotas.rates import SampledRate
from kwire.wire.named_tuple import NamedTuple

if TYPE_CHECKING:
    from kwire.broker.metadata.image import QuotaEntity

MAX_ADDRESSES: Final = 10_000
"""The number of IP addresses whose rates are kept: the last ones."""


class RateLimits(NamedTuple):
    """The limits per second, and the windows of the rates."""

    of_broker: int = UNLIMITED
    by_listener: Mapping[str, int] = {}
    windows: int = 11
    window_ms: int = 1_000


class ConnectionRates:
    """The rates of new connections of one role of the node."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._by_ip: dict[str | None, float] = {}
        """The limits of IP addresses. None is the default."""
        self._broker = self._new()
        self._listeners: dict[str, SampledRate] = {}
        self._addresses: OrderedDict[str, SampledRate] = OrderedDict()

    def set_quotas(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Apply the quotas of IP addresses."""
        self._by_ip = {
            entity[0][1]: values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            if len(entity) == 1 and entity[0][0] == IP and CONNECTION_CREATION_RATE in values
        }

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return bool(self._by_ip or self.limits.by_listener or self.limits.of_broker != UNLIMITED)

    def listener_throttle_ms(self, listener: str, now_ms: int, *, is_protected: bool) -> int:
        """Record a connection. Return for how long the listener must accept none, in ms.

        `is_protected` is True for a listener that is exempt from the broker's limit.
        """
        of_listener = self.limits.by_listener.get(listener, UNLIMITED)
        throttle_ms = self._record(self._listener(listener), of_listener, now_ms)
        if not is_protected:
            throttle_ms = max(throttle_ms, self._record(self._broker, self.limits.of_broker, now_ms))
        return throttle_ms

    def ip_throttle_ms(self, listener: str, ip: str, now_ms: int, *, is_protected: bool) -> int:
        """Record the connection for its IP address. Return when to close it unserved, in ms, or 0."""
        limit = self._by_ip.get(ip, self._by_ip.get(None))
        if limit is None:
            return 0
        rate = self._addresses.get(ip)
        if rate is None:
            if len(self._addresses) >= MAX_ADDRESSES:
                self._addresses.popitem(last=False)
            rate = self._addresses[ip] = self._new()
        else:
            self._addresses.move_to_end(ip)
        throttle_ms = self._record(rate, limit, now_ms)
        if throttle_ms:
            refused = [rate, self._listener(listener), *([] if is_protected else [self._broker])]
            for one in refused:
                one.record(-1, now_ms)
        return throttle_ms

    def _record(self, rate: SampledRate, limit: float, now_ms: int) -> int:
        rate.record(1, now_ms)
        return min(rate.throttle_time_ms(limit, now_ms), self.limits.window_ms)

    def _listener(self, name: str) -> SampledRate:
        rate = self._listeners.get(name)
        if rate is None:
            rate = self._listeners[name] = self._new()
        return rate

    def _new(self) -> SampledRate:
        return SampledRate(self.limits.windows, self.limits.window_ms)
