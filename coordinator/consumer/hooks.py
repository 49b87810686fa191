"""Where consumer groups and the classic protocol meet while a group has members. KIP-848, "Migration"."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from coordinator.consumer.group import ConsumerGroup
from coordinator.consumer.member import Member
from coordinator.groups.classic import Join, Sync
from coordinator.groups.group import ClassicGroup
from coordinator.groups.member import JoinDone, SyncDone
from coordinator.machine import Result, StoredRecord
from kwire.errors import ApiError, ErrorCode
from kwire.messages.join_group import JoinGroupResponse
from kwire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from kwire.messages.sync_group import SyncGroupResponse


class Migration(Protocol):
    """Changes groups from one protocol to the other, and serves members of both in a consumer group."""

    def upgraded(self, classic: ClassicGroup, records: list[StoredRecord]) -> ConsumerGroup:
        """The consumer group that a classic group with members becomes, its members with it.

        Adds to `records` what stores that. ApiError GROUP_ID_NOT_FOUND where it may not.
        """

    def downgraded(self, group: ConsumerGroup, leaving: Collection[Member]) -> Result | None:
        """Let members go, and make a classic group of those who stay; None where that is not to be."""

    def join(self, group: ConsumerGroup, join: Join, done: JoinDone) -> Result:
        """JoinGroup for a consumer group that has members."""

    def sync(self, group: ConsumerGroup, sync: Sync, done: SyncDone) -> Result:
        """SyncGroup for a consumer group."""

    def heartbeat(
        self, group: ConsumerGroup, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """Heartbeat for a consumer group."""

    def leave(
        self, group: ConsumerGroup, leaving: Collection[MemberIdentity]
    ) -> tuple[Result, LeaveGroupResponse]:
        """LeaveGroup for a consumer group."""


class NoMigration:
    """A group keeps its protocol as long as it has members."""

    def upgraded(self, classic: ClassicGroup, records: list[StoredRecord]) -> ConsumerGroup:
        """Refuse."""
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {classic.id} to consumer group because online upgrade is "
            f"disabled.",
        )

    def downgraded(self, group: ConsumerGroup, leaving: Collection[Member]) -> Result | None:
        """Refuse."""
        return None

    def join(self, group: ConsumerGroup, join: Join, done: JoinDone) -> Result:
        """Refuse."""
        done(JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, members=[]))
        return Result()

    def sync(self, group: ConsumerGroup, sync: Sync, done: SyncDone) -> Result:
        """Nobody here speaks the classic protocol."""
        done(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        return Result()

    def heartbeat(
        self, group: ConsumerGroup, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode:
        """Nobody here speaks the classic protocol."""
        return ErrorCode.UNKNOWN_MEMBER_ID

    def leave(
        self, group: ConsumerGroup, leaving: Collection[MemberIdentity]
    ) -> tuple[Result, LeaveGroupResponse]:
        """Nobody here speaks the classic protocol."""
        members = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for identity in leaving
        ]
        return Result(), LeaveGroupResponse(members=members)
