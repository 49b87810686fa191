"""Connection limits, as in Apache Kafka's ConnectionQuotas.

- `max.connections` of the broker limits all its connections. `max.connections` of a listener limits the
  connections of that listener. While a limit is reached, the listener accepts no connections, and clients
  wait in its backlog. If the broker has several listeners, the inter-broker listener is exempt from the
  broker's limit: instead, the broker closes the least recently used connection of another listener.
- `max.connections.per.ip` and its overrides limit the connections per IP address. A connection beyond that
  limit is accepted and closed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

UNLIMITED = 2**31 - 1


class ConnectionQuotas:
    """The number of connections per listener and per IP address, and their limits."""

    def __init__(
        self,
        *,
        max_connections: int = UNLIMITED,
        max_connections_per_ip: int = UNLIMITED,
        max_connections_per_ip_overrides: Mapping[str, int] | None = None,
        max_connections_by_listener: Mapping[str, int] | None = None,
        inter_broker_listener: str | None = None,
    ) -> None:
        self.max_connections = max_connections
        self.max_connections_per_ip = max_connections_per_ip
        self.max_connections_per_ip_overrides = dict(max_connections_per_ip_overrides or {})
        self.max_connections_by_listener = dict(max_connections_by_listener or {})
        self.inter_broker_listener = inter_broker_listener
        self.listeners = 1
        """The number of open listeners. The inter-broker listener is not exempt if it is the only one."""
        self.total = 0
        self._by_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()

    def has_capacity(self, listener: str) -> bool:
        """Return whether the limits of the listener and the broker allow another connection."""
        if self._by_listener[listener] >= self.max_connections_by_listener.get(listener, UNLIMITED):
            return False
        return self.is_protected(listener) or self.total < self.max_connections

    def is_protected(self, listener: str) -> bool:
        """Return whether the listener is exempt from the limit of the broker."""
        return listener == self.inter_broker_listener and self.listeners > 1

    def is_exceeded(self) -> bool:
        """Return whether the broker has more connections than its limit allows.

        The reason is an exempt listener, or a limit that was lowered.
        """
        return self.total > self.max_connections

    def ip_limit(self, ip: str) -> int:
        return self.max_connections_per_ip_overrides.get(ip, self.max_connections_per_ip)

    def admit(self, listener: str, ip: str) -> bool:
        """Count a new connection and return True. Return False if the IP address has reached its limit."""
        if self._by_ip[ip] >= self.ip_limit(ip):
            if not self._by_ip[ip]:
                del self._by_ip[ip]
            return False
        self._by_ip[ip] += 1
        self._by_listener[listener] += 1
        self.total += 1
        return True

    def release(self, listener: str, ip: str) -> None:
        """Stop counting a connection that was admitted and is now closed."""
        assert self._by_ip[ip] > 0
        assert self._by_listener[listener] > 0
        self.total -= 1
        self._by_listener[listener] -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
