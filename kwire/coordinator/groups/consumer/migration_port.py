"""Where consumer groups and the classic protocol meet while a group has members. KIP-848, "Migration"."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kwire.coordinator.groups.classic.group import ClassicGroup
from kwire.coordinator.groups.classic.member import JoinDone, SyncDone
from kwire.coordinator.groups.classic.rebalance import JoinRequest, SyncRequest
from kwire.coordinator.groups.consumer.group import ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.state_machine import CoordinatorRecord, CoordinatorResult
from kwire.wire.errors import ErrorCode


class Migration(Protocol):
    """Changes groups from one protocol to the other, and serves members of both in a consumer group."""

    def upgrade(self, classic: ClassicGroup, records: list[CoordinatorRecord]) -> ConsumerGroup:
        """The consumer group that a classic group with members becomes, its members with it.

        Adds to `records` what stores that. ApiError GROUP_ID_NOT_FOUND where it may not.
        """

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerGroupMember]
    ) -> CoordinatorResult | None:
        """Let members go, and make a classic group of those who stay; None where that is not to be."""

    def join(self, group: ConsumerGroup, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        """JoinGroup for a consumer group that has members."""

    def sync(self, group: ConsumerGroup, sync: SyncRequest, done: SyncDone) -> CoordinatorResult:
        """SyncGroup for a consumer group."""

    def heartbeat(
        self, group: ConsumerGroup, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """Heartbeat for a consumer group."""

    def stop_timers(self, group_id: str, member_id: str) -> None:
        """Do not watch a member any more."""

    def on_unloaded(self) -> None:
        """The partition goes elsewhere."""
