"""What consumer groups go by where they have no settings of their own."""

from __future__ import annotations

from kwire.coordinator.groups.config import ConsumerDefaults


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
