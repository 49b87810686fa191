"""What consumer groups go by where they have no settings of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kwire.broker.config.broker import ASSIGNORS as KNOWN_ASSIGNORS


class ConsumerDefaults(Protocol):
    """The configuration keys of the broker that are every group's defaults."""

    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_session_timeout_ms(self) -> int: ...


def assignor_names(configured: Iterable[str]) -> list[str]:
    """The short names of assignors, which may be given by the names of Apache Kafka's classes."""
    return [KNOWN_ASSIGNORS[name] for name in configured]


class BrokerSettings:
    """`coordinator.ports.GroupSettings` of the broker's configuration alone."""

    def __init__(self, config: ConsumerDefaults) -> None:
        self._config = config

    def session_timeout_ms(self, _group_id: str) -> int:
        """How long a member may be silent."""
        return self._config.group_consumer_session_timeout_ms

    def heartbeat_interval_ms(self, _group_id: str) -> int:
        """How often a member is to be heard of."""
        return self._config.group_consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, _group_id: str) -> int:
        """How long a target assignment lasts at least."""
        return self._config.group_consumer_assignment_interval_ms
