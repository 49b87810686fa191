"""Configurations of consumer groups that default to the broker's configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kwire.broker.config.broker import ASSIGNORS as KNOWN_ASSIGNORS


class ConsumerDefaults(Protocol):
    """The broker's configuration keys that are the defaults for consumer groups."""

    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_session_timeout_ms(self) -> int: ...


def assignor_names(configured: Iterable[str]) -> list[str]:
    """Return the short names of assignors, such as `range`. `configured` may contain Kafka's class names."""
    return [KNOWN_ASSIGNORS[name] for name in configured]


class BrokerSettings:
    """An implementation of `coordinator.ports.GroupSettings` that uses only the broker's configuration."""

    def __init__(self, config: ConsumerDefaults) -> None:
        self._config = config

    def session_timeout_ms(self, _group_id: str) -> int:
        return self._config.group_consumer_session_timeout_ms

    def heartbeat_interval_ms(self, _group_id: str) -> int:
        return self._config.group_consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, _group_id: str) -> int:
        return self._config.group_consumer_assignment_interval_ms
