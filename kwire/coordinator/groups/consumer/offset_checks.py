"""Validation of offset commits and fetches by members of a consumer group. KIP-848, KIP-1251.

A member that has moved to a later epoch may have commits in flight. Such a commit is valid for partitions
that the member has owned since the epoch in the commit, since no other member can have consumed them
meanwhile.
"""

from __future__ import annotations

from typing import Final

from kwire.coordinator.groups.consumer.group import ConsumerGroup
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.wire.errors import ApiError, ErrorCode

NO_MEMBER_EPOCH: Final = -1
FIRST_COMMIT_VERSION_WITH_EPOCH: Final = 9


def check_commit(group: ConsumerGroup, commit: OffsetCommit, *, is_transactional: bool) -> None:
    """Check the sender and the member epoch of a commit.

    Raises ApiError for the whole commit: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH (ILLEGAL_GENERATION for
    classic members and transactions); UNSUPPORTED_VERSION if a member with the consumer protocol sent
    OffsetCommit before v9.
    """
    epoch, member_id = commit.generation, commit.member_id
    if epoch < 0 and not group.members:
        return
    if is_transactional and epoch == NO_MEMBER_EPOCH and not member_id and commit.instance_id is None:
        return
    member = group.member(member_id)
    if (
        not is_transactional
        and not member.is_classic
        and commit.api_version < FIRST_COMMIT_VERSION_WITH_EPOCH
    ):
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
        )
    if epoch == member.epoch:
        return
    if epoch > member.epoch or any(_is_stale(member, epoch, one) for one in commit.commits):
        raise ApiError(ErrorCode.ILLEGAL_GENERATION if is_transactional else _stale(member))


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Check the member id and member epoch of an OffsetFetch. Clients outside of the group send neither.

    Raises ApiError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH (ILLEGAL_GENERATION for classic members).
    """
    if member_id is None and epoch < 0:
        return
    member = group.member(member_id or "")
    if epoch != member.epoch:
        raise ApiError(_stale(member))


def _is_stale(member: ConsumerGroupMember, epoch: int, commit: PartitionCommit) -> bool:
    since = member.assignment_epoch(commit.topic_id, commit.partition)
    return since is None or epoch < since


def _stale(member: ConsumerGroupMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
