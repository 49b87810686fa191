"""The interface of online migration for consumer groups. KIP-848, "Migration"."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kwire.coordinator.groups.classic.group import ClassicGroup
from kwire.coordinator.groups.classic_protocol import ClassicProtocol
from kwire.coordinator.groups.consumer.group import ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.state_machine import CoordinatorRecord, CoordinatorResult


class Migration(ClassicProtocol, Protocol):
    """Conversion of groups to the other type, and the classic protocol in a consumer group."""

    def upgrade(self, classic: ClassicGroup, records: list[CoordinatorRecord]) -> ConsumerGroup:
        """Convert a classic group with members to a consumer group, and add the records to `records`.

        Raises ApiError: GROUP_ID_NOT_FOUND if the upgrade is not allowed or not possible;
        UNKNOWN_SERVER_ERROR if the group has no generation yet, or a member does not support the group's
        assignment protocol.
        """

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerGroupMember]
    ) -> CoordinatorResult | None:
        """Remove the members `leaving` and convert the group to a classic group.

        Returns None, and changes nothing, if the downgrade is not allowed, or not possible with the remaining
        members.
        """

    def stop_timers(self, group_id: str, member_id: str) -> None:
        """Stop a member's timers for JoinGroup and SyncGroup."""

    def on_unloaded(self) -> None:
        """Stop all timers."""
