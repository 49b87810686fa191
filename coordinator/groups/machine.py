"""The group coordinator's machine for one partition of the offsets topic: classic groups and offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from coordinator.groups.classic import ClassicConfig, ClassicGroups
from coordinator.groups.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, State
from coordinator.groups.offsets import CommittedOffset, Offsets, PartitionCommit
from coordinator.machine import StoredRecord, Surroundings
from kwire.errors import ApiError, ErrorCode
from kwire.messages.describe_groups import DescribedGroup
from kwire.messages.list_groups import ListedGroup
from kwire.schema import Message
from kwire.stored.groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

logger = logging.getLogger("kwire.groups")

CLASSIC_TYPE = "classic"
FIRST_COMMIT_VERSION_WITH_GROUP_NOT_FOUND = 9


class GroupConfig(ClassicConfig, Protocol):
    """The configuration keys that the machine needs."""

    @property
    def offsets_retention_minutes(self) -> int: ...


class GroupMachine:
    """All groups whose ids hash to one partition of the offsets topic."""

    def __init__(self, config: GroupConfig, around: Surroundings) -> None:
        self._config = config
        self._around = around
        self.classic = ClassicGroups(config, around)
        self.offsets = Offsets()

    # --- offsets

    def commit_offsets(
        self,
        group_id: str,
        *,
        generation: int,
        member_id: str,
        instance_id: str | None,
        commits: Sequence[PartitionCommit],
        retention_ms: int | None,
        api_version: int,
        is_transactional: bool = False,
    ) -> list[StoredRecord]:
        """Records for a commit. A commit also keeps its member's session alive.

        A transactional one (KIP-447) may come from a producer that says nothing of a member, and between the
        generations.

        Raises ApiError for the whole commit: GROUP_ID_NOT_FOUND (v9), ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS.
        """
        group = self.classic.groups.get(group_id)
        if group is None:
            if generation >= 0:
                if api_version >= FIRST_COMMIT_VERSION_WITH_GROUP_NOT_FOUND:
                    raise group_not_found(group_id)
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            # A consumer that assigns partitions to itself, or an administrator: its offsets make a group.
        elif generation >= 0 or group.state is not State.EMPTY:
            if generation < 0 and not member_id and instance_id is None:
                if is_transactional:
                    return self.offsets.commit(
                        group_id, commits, now_ms=self._around.now_ms(), retention_ms=retention_ms
                    )
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            member = group.check_member(member_id, instance_id)
            if generation != group.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            if group.state is State.COMPLETING_REBALANCE and not is_transactional:
                # The member knows this generation from its JoinGroup, but has no partitions of it yet.
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            self.classic.renew_session(group, member)
        return self.offsets.commit(group_id, commits, now_ms=self._around.now_ms(), retention_ms=retention_ms)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]]
    ) -> tuple[list[StoredRecord], dict[tuple[str, int], ErrorCode]]:
        """Tombstones for these offsets, and what to say of each. KIP-496.

        Raises ApiError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        group = self.classic.groups.get(group_id)
        if group is None:
            raise group_not_found(group_id)
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            # What other kinds of members are reading cannot be known.
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        records: list[StoredRecord] = []
        outcome: dict[tuple[str, int], ErrorCode] = {}
        for topic, partition in partitions:
            if group.is_subscribed(topic):
                outcome[topic, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            outcome[topic, partition] = ErrorCode.NONE
            records += self.offsets.forget(group_id, topic, partition)
        return records, outcome

    def expire(self) -> list[StoredRecord]:
        """Tombstones for expired offsets, and for groups that have neither members nor offsets any more."""
        now_ms = self._around.now_ms()
        retention_ms = self._config.offsets_retention_minutes * 60_000
        records: list[StoredRecord] = []
        for group in list(self.classic.groups.values()):
            expired, none_left = self.offsets.forget_expired(
                group.id,
                now_ms=now_ms,
                retention_ms=retention_ms,
                since=_retention_start(group),
                in_use=group.is_subscribed,
            )
            records += expired
            if expired:
                logger.info("group %s: %d offsets have expired", group.id, len(expired))
            if none_left and group.state is State.EMPTY:
                records.append(_group_tombstone(group.id))
        return records

    def topics_deleted(self, names: Collection[str]) -> list[StoredRecord]:
        """Tombstones for all offsets of topics that are gone."""
        return self.offsets.forget_topics(names)

    # --- groups

    def describe(self, group_id: str) -> DescribedGroup | None:
        """One group; None where there is no such group."""
        group = self.classic.groups.get(group_id)
        return None if group is None else group.described()

    def listed(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """The groups in these states and of these types (both in lower case; empty: all)."""
        if types and CLASSIC_TYPE not in types:
            return []
        return [
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC_TYPE,
            )
            for group in self.classic.groups.values()
            if not states or group.state.value.lower() in states
        ]

    def delete(self, group_id: str) -> list[StoredRecord]:
        """Tombstones for an empty group and its offsets. ApiError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.classic.groups.get(group_id)
        if group is None:
            raise group_not_found(group_id)
        if group.state is not State.EMPTY:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        return [*self.offsets.forget_group(group_id), _group_tombstone(group_id)]

    # --- replay

    def replay(self, key: Message, value: Message | None) -> None:
        """Take in one record; None is a tombstone. Kinds of records that are not known here are skipped."""
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            if value is not None and key.group not in self.classic.groups:
                self.classic.create(key.group)
            self.offsets.replay(key, value)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            known = self.classic.groups.get(key.group)
            if known is not None:
                self.classic.forget(known)
            if value is not None:
                self.classic.groups[key.group] = ClassicGroup.from_record(
                    key.group, value, self._around.now_ms()
                )

    def held(self, key: Message) -> None:
        """A transaction has an offset for a group, which exists from here on."""
        if isinstance(key, OffsetCommitKey) and key.group not in self.classic.groups:
            self.classic.create(key.group)

    def loaded(self) -> None:
        """Everything is replayed: sessions start."""
        self.classic.loaded()

    def unload(self, code: ErrorCode) -> None:
        """The machine ends: whoever waits is told `code`."""
        self.classic.unload(code)


def group_not_found(group_id: str) -> ApiError:
    """What is said of a group that does not exist."""
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def _group_tombstone(group_id: str) -> StoredRecord:
    return StoredRecord(GroupMetadataKey(group=group_id), None)


def _retention_start(group: ClassicGroup) -> Callable[[CommittedOffset], int] | None:
    """From when on the retention of an offset counts, by what the group is; None: no offset expires now."""

    def since_commit(committed: CommittedOffset) -> int:
        return committed.commit_timestamp

    if group.protocol_type is None:
        return since_commit
    if group.state is State.EMPTY:
        empty_since_ms = group.state_since_ms
        if empty_since_ms is None:
            return since_commit
        return lambda _committed: empty_since_ms
    if (
        group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and group.state is State.STABLE
        and group.subscribed_topics is not None
    ):
        # The members have moved on to other topics.
        return since_commit
    return None
