"""The configuration keys that the group coordinator needs, dots as underscores, and who needs which."""

from __future__ import annotations

from typing import Protocol


class ClassicConfig(Protocol):
    """What classic groups go by."""

    @property
    def group_max_size(self) -> int: ...
    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...


class ConsumerConfig(Protocol):
    """What consumer groups go by, all alike."""

    @property
    def group_consumer_assignors(self) -> list[str]: ...
    @property
    def group_consumer_max_size(self) -> int: ...
    @property
    def group_consumer_regex_refresh_interval_ms(self) -> int: ...


class ConsumerDefaults(Protocol):
    """What a consumer group goes by where it has no setting of its own."""

    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_session_timeout_ms(self) -> int: ...


class MigrationConfig(Protocol):
    """What becoming a group of the other kind goes by."""

    @property
    def group_consumer_migration_policy(self) -> str: ...
    @property
    def group_consumer_max_size(self) -> int: ...
    @property
    def group_max_size(self) -> int: ...


class GroupConfig(ClassicConfig, ConsumerConfig, MigrationConfig, Protocol):
    """What the groups of one partition of the offsets topic go by."""

    @property
    def offsets_retention_minutes(self) -> int: ...


class ServiceConfig(GroupConfig, ConsumerDefaults, Protocol):
    """All of it."""

    @property
    def group_min_session_timeout_ms(self) -> int: ...
    @property
    def group_max_session_timeout_ms(self) -> int: ...
    @property
    def offsets_commit_timeout_ms(self) -> int: ...
    @property
    def offsets_retention_check_interval_ms(self) -> int: ...
    @property
    def offsets_topic_num_partitions(self) -> int: ...
