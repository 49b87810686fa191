"""Connection limits, as in Apache Kafka's ConnectionQuotas.

- `max.connections` limits the whole broker, and `max.connections` of a listener that listener. While a limit
  is reached, the listener accepts no connections, and clients wait in its backlog. The inter-broker listener
  is exempt from the broker's limit if there is another listener: the least recently used connection of
  another listener is closed instead.
- `max.connections.per.ip` and its overrides: a connection beyond the limit is accepted and closed at once.
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
        """The number of listeners: the exemption applies only if there are several."""
        self.total = 0
        self._by_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()

    def has_capacity(self, listener: str) -> bool:
        """Whether the listener may accept another connection now."""
        if self._by_listener[listener] >= self.max_connections_by_listener.get(listener, UNLIMITED):
            return False
        return self.is_protected(listener) or self.total < self.max_connections

    def is_protected(self, listener: str) -> bool:
        """Whether the listener is exempt from the broker's limit."""
        return listener == self.inter_broker_listener and self.listeners > 1

    def is_exceeded(self) -> bool:
        """Whether a protected listener has accepted connections beyond the broker's limit."""
        return self.total > self.max_connections

    def ip_limit(self, ip: str) -> int:
        return self.max_connections_per_ip_overrides.get(ip, self.max_connections_per_ip)

    def admit(self, listener: str, ip: str) -> bool:
        """Count a connection; return False and count nothing if its IP address has too many."""
        if self._by_ip[ip] >= self.ip_limit(ip):
            if not self._by_ip[ip]:
                del self._by_ip[ip]
            return False
        self._by_ip[ip] += 1
        self._by_listener[listener] += 1
        self.total += 1
        return True

    def release(self, listener: str, ip: str) -> None:
        """Uncount a connection that was admitted and is closed."""
        assert self._by_ip[ip] > 0
        assert self._by_listener[listener] > 0
        self.total -= 1
        self._by_listener[listener] -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
