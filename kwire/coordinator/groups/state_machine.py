"""The group coordinator's state machine for one partition of `__consumer_offsets`.

It has the groups of all types and their offsets. This module implements what the types share: offsets and
their expiry, listing, describing and deletion. `group_type` is the contract of a type, and `registry` has the
types. A request of the classic protocol goes to the type of its group, since groups of other types may have
members with this protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kwire.coordinator.groups.classic_protocol import ClassicProtocol
from kwire.coordinator.groups.errors import group_not_found
from kwire.coordinator.groups.group_type import D, Group, GroupRegistry, GroupsOfType, GroupType
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit, Offsets, tombstone
from kwire.coordinator.groups.record_serde import record_types, stored_records
from kwire.coordinator.groups.registry import CLASSIC, CONSUMER
from kwire.coordinator.state_machine import CoordinatorRecord, DecodedRecord
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.list_groups import ListedGroup
from kwire.wire.plural import plural
from kwire.wire.primitives import TopicPartition
from kwire.wire.records.groups import OffsetCommitKey
from kwire.wire.schema import Message

FIRST_COMMIT_VERSION_WITH_GROUP_NOT_FOUND = 9
EMPTY_STATE = "Empty"


class GroupStateMachine:
    """All groups whose ids hash to one partition of `__consumer_offsets`."""

    def __init__(self, registry: GroupRegistry) -> None:
        self.registry = registry
        self._config = registry.config
        self._context = registry.context
        self._logger = registry.context.logger("kwire.groups")
        self.classic = registry.of(CLASSIC)
        self.consumer = registry.of(CONSUMER)
        self.offsets = Offsets()
        self._record_types = record_types(registry.group_types)
        self._replayers: dict[type[Message], Any] = {OffsetCommitKey: self.offsets}
        """The part of the state that a record changes, by the class of the record's key."""
        for group_type in registry.group_types:
            self._replayers |= dict.fromkeys(group_type.record_types, registry.of(group_type))

    def classic_protocol(self, group_id: str) -> ClassicProtocol:
        """Return the handlers of the classic protocol for the group with this id, or for a new group."""
        for groups in self.registry.by_name.values():
            if group_id in groups.groups and groups.classic_protocol is not None:
                return groups.classic_protocol
        # Classic groups refuse requests to a group that they do not have.
        return self.classic

    # --- offsets

    def commit_offsets(
        self, commit: OffsetCommit, *, is_transactional: bool = False
    ) -> list[CoordinatorRecord]:
        """Return the records of a commit. In a classic group, a commit also renews the member's session.

        A transactional commit (KIP-447) may come from a producer without member information, and may arrive
        during a rebalance.

        Raises ApiError for the whole commit. Missing groups: GROUP_ID_NOT_FOUND (since v9),
        ILLEGAL_GENERATION. Other groups: see `check_commit` of their types. All groups: INVALID_REQUEST, as
        in `Offsets.commit`.
        """
        group_id = commit.group_id
        owner = self.registry.owner(group_id)
        if owner is not None:
            owner.check_commit(owner.groups[group_id], commit, is_transactional=is_transactional)
        elif commit.generation >= 0:
            if not is_transactional and commit.api_version >= FIRST_COMMIT_VERSION_WITH_GROUP_NOT_FOUND:
                raise group_not_found(group_id)
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return self.offsets.commit(commit, self._context.now_ms())

    def fetch_offsets(
        self, group_id: str, member_id: str | None, member_epoch: int, *, only_committed: bool
    ) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Return the committed offsets of a group by topic and partition.

        The result is empty if the group does not exist. With `only_committed`, records that are not committed
        yet have no effect on the result. Raises the errors of `Group.check_fetch`.
        """
        group = self.registry.find(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        if only_committed and self.offsets.is_pending(group_id):
            return self.offsets.committed_topics(group_id)
        return {} if group is None else self.offsets.topics(group_id)

    def delete_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        unstable: Collection[TopicPartition] = (),
    ) -> tuple[list[CoordinatorRecord], dict[TopicPartition, ErrorCode]]:
        """Return tombstones for these offsets, and the error code of each partition. KIP-496.

        `unstable` are the group's partitions with offsets in open transactions. Raises ApiError:
        GROUP_ID_NOT_FOUND, and the errors of `Group.check_offset_deletion`.
        """
        group = self._group(group_id)
        group.check_offset_deletion()
        records: list[CoordinatorRecord] = []
        outcome: dict[TopicPartition, ErrorCode] = {}
        for topic, partition in partitions:
            if group.is_subscribed(topic):
                outcome[topic, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                continue
            outcome[topic, partition] = ErrorCode.NONE
            if (topic, partition) in unstable or self.offsets.get(group_id, topic, partition):
                records.append(tombstone(group_id, topic, partition))
        return records, outcome

    def expire(self, unstable: Mapping[str, Collection[TopicPartition]]) -> list[CoordinatorRecord]:
        """Return tombstones for expired offsets, and for groups without members and offsets.

        `unstable` are, by group, the partitions with offsets in open transactions.
        """
        now_ms = self._context.now_ms()
        retention_ms = self._config.offsets_retention_minutes * 60_000
        records: list[CoordinatorRecord] = []
        for group in self.registry:
            expired, none_left = self.offsets.delete_expired_offsets(
                group.id,
                now_ms=now_ms,
                retention_ms=retention_ms,
                since=group.retention_start(),
                in_use=group.is_subscribed,
                unstable=unstable.get(group.id, ()),
            )
            records += expired
            if expired:
                self._logger.info("Group %s: deleting %s", group.id, plural(len(expired), "expired offset"))
            if none_left and _is_empty(group):
                records += group.tombstones()
        return records

    # --- groups

    def _group(self, group_id: str) -> Group:
        group = self.registry.find(group_id)
        if group is None:
            raise group_not_found(group_id)
        return group

    def describe(self, group_type: GroupType[Any, D], group_id: str, *, only_committed: bool = False) -> D:
        """Describe a group. Raises ApiError GROUP_ID_NOT_FOUND if there is no such group of this type.

        With `only_committed`, changes whose records are not committed yet are omitted.
        """
        groups: GroupsOfType[Any, D] = self.registry.of(group_type)
        described = groups.describe(group_id, only_committed=only_committed)
        if described is None:
            self._group(group_id)
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {group_type.name} group."
            )
        return described

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Return the groups in these states and of these types, in lower case. Empty collections mean all."""
        return [
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type or "",
                group_state=state,
                group_type=group_type.name,
            )
            for group_type in self.registry.group_types
            if not types or group_type.name in types
            for group in self.registry.of(group_type).groups.values()
            if (state := group.state.value) and (not states or state.lower() in states)
        ]

    def delete_group(self, group_id: str, unstable: Iterable[TopicPartition] = ()) -> list[CoordinatorRecord]:
        """Return tombstones for a group and its offsets, including offsets of open transactions (`unstable`).

        Raises ApiError: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if the group has members.
        """
        group = self._group(group_id)
        if not _is_empty(group):
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        return [*self.offsets.delete_group_offsets(group_id, unstable), *group.tombstones()]

    def topics_changed(self, names: Collection[str], *, created: bool) -> None:
        """Make the subscribed groups check these topics, which were created, deleted or changed."""
        for groups in self.registry.by_name.values():
            groups.topics_changed(names, created=created)

    # --- replay

    def decode_batch(self, data: memoryview) -> Iterator[DecodedRecord]:
        """Decode the records of a stored batch. Other types of records are skipped."""
        return stored_records(self._record_types, data)

    def replay(self, key: Message, value: Message | None, offset: int) -> None:
        """Apply a record. A value of None is a tombstone. Unknown record types are skipped."""
        if value is not None and isinstance(key, OffsetCommitKey):
            self._ensure_group(key.group)
        self.replay_transactional(key, value, offset)

    def record_pending(self, key: Message) -> None:
        """Remember the current state of this key for responses until the key's next record is committed."""
        self._replayers[type(key)].record_pending(key)

    def record_committed(self, key: Message) -> None:
        """Forget the oldest remembered state of this key."""
        self._replayers[type(key)].record_committed(key)

    def _ensure_group(self, group_id: str) -> None:
        """Create a classic group that has only offsets, unless the group exists already."""
        if self.registry.owner(group_id) is None:
            self.classic.create(group_id)

    def replay_transactional(self, key: Message, value: Message | None, offset: int) -> None:
        """Apply a record of a committed transaction. `transactional_record_written` created the group."""
        replayer = self._replayers.get(type(key))
        if replayer is not None:
            replayer.replay(key, value, offset)

    def transactional_record_written(self, key: Message) -> None:
        """Create the group of an offset that was written in a transaction."""
        if isinstance(key, OffsetCommitKey):
            self._ensure_group(key.group)

    def on_loaded(self) -> None:
        """Start the sessions of all members."""
        for groups in self.registry.by_name.values():
            groups.on_loaded()

    def on_unloaded(self, code: ErrorCode) -> None:
        """Complete all waiting requests with `code`, and stop all timers."""
        for groups in self.registry.by_name.values():
            groups.on_unloaded(code)


def _is_empty(group: Group) -> bool:
    return bool(group.state.value == EMPTY_STATE)
