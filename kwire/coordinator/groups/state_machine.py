"""The group coordinator's state machine for one partition of `__consumer_offsets`.

It holds the partition's groups and their offsets. A group is either a classic group or a consumer group
(KIP-848). A group without members changes its type when a consumer joins with the other protocol. `Migration`
handles such a join in a group with members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from kwire.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, ClassicGroupState
from kwire.coordinator.groups.classic.member import JoinDone, SyncDone
from kwire.coordinator.groups.classic.rebalance import ClassicConfig, ClassicGroups
from kwire.coordinator.groups.classic.requests import JoinRequest, SyncRequest
from kwire.coordinator.groups.consumer.describe import describe_group
from kwire.coordinator.groups.consumer.group import REPLAY, ConsumerGroup, ConsumerGroupState
from kwire.coordinator.groups.consumer.heartbeat import ConsumerConfig, ConsumerGroups
from kwire.coordinator.groups.consumer.offset_checks import check_commit, check_fetch
from kwire.coordinator.groups.consumer.uncommitted_changes import UncommittedChanges
from kwire.coordinator.groups.migration import MigrationConfig, OnlineMigration
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit, OffsetRecord, Offsets, tombstone
from kwire.coordinator.groups.rebalance_counts import RebalanceCounts
from kwire.coordinator.ports import GroupSettings, TopicsView
from kwire.coordinator.state_machine import CoordinatorContext, CoordinatorRecord, CoordinatorResult
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kwire.wire.messages.describe_groups import DescribedGroup
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity
from kwire.wire.messages.list_groups import ListedGroup
from kwire.wire.plural import plural
from kwire.wire.primitives import TopicPartition, Uuid
from kwire.wire.records.consumer_groups import ConsumerGroupMetadataKey
from kwire.wire.records.groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kwire.wire.schema import Message

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"
FIRST_COMMIT_VERSION_WITH_GROUP_NOT_FOUND = 9

Group: TypeAlias = ClassicGroup | ConsumerGroup


class GroupConfig(ClassicConfig, ConsumerConfig, MigrationConfig, Protocol):
    """The configuration keys that the state machine reads."""

    @property
    def offsets_retention_minutes(self) -> int: ...


class GroupStateMachine:
    """All groups whose ids hash to one partition of `__consumer_offsets`."""

    def __init__(
        self,
        config: GroupConfig,
        context: CoordinatorContext,
        topics: TopicsView,
        settings: GroupSettings,
        rebalances: RebalanceCounts,
    ) -> None:
        self._config = config
        self._context = context
        self._logger = context.logger("kwire.groups")
        self._topics = topics
        self.classic = ClassicGroups(config, context, rebalances)
        self.consumer = ConsumerGroups(
            config,
            context,
            topics,
            settings,
            self.classic,
            lambda consumer: OnlineMigration(config, context, topics, self.classic, consumer),
            rebalances,
        )
        self.offsets = Offsets()
        self._uncommitted = UncommittedChanges()

    # --- the classic protocol

    def join(self, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        """Handle JoinGroup. A consumer group without members becomes a classic group."""
        group = self.consumer.groups.get(join.group_id)
        if group is None:
            return self.classic.join(join, done)
        if group.members:
            return self.consumer.migration.join(group, join, done)
        result = self.classic.join(join, done)
        if group.id not in self.classic.groups:
            return result
        del self.consumer.groups[group.id]

        def committed(error: ApiError | None) -> None:
            result.committed(error)
            if error is not None and group.id not in self.classic.groups:
                # The log refused the classic group, so it still contains the consumer group.
                self.consumer.groups[group.id] = group

        return CoordinatorResult([*group.tombstones(), *result.records], committed)

    def sync(self, sync: SyncRequest, done: SyncDone) -> CoordinatorResult:
        group = self.consumer.groups.get(sync.group_id)
        if group is not None and group.members:
            return self.consumer.migration.sync(group, sync, done)
        return self.classic.sync(sync, done)

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Handle Heartbeat, and return its error code."""
        group = self.consumer.groups.get(group_id)
        if group is not None:
            return self.consumer.migration.heartbeat(group, generation, member_id, instance_id)
        return self.classic.heartbeat(group_id, generation, member_id, instance_id)

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity]
    ) -> tuple[CoordinatorResult, LeaveGroupResponse]:
        """Handle LeaveGroup, and return the records and the response."""
        group = self.consumer.groups.get(group_id)
        if group is not None:
            return self.consumer.leave_group(group, leaving)
        return self.classic.leave(group_id, leaving)

    # --- offsets

    def commit_offsets(
        self, commit: OffsetCommit, *, is_transactional: bool = False
    ) -> list[CoordinatorRecord]:
        """Return the records of a commit. In a classic group, a commit also renews the member's session.

        A transactional commit (KIP-447) may come from a producer without member information, and may arrive
        during a rebalance.

        Raises ApiError for the whole commit. Missing groups: GROUP_ID_NOT_FOUND (since v9),
        ILLEGAL_GENERATION. Classic groups: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        REBALANCE_IN_PROGRESS. Consumer groups: see `check_commit`. All groups: INVALID_REQUEST, as in
        `Offsets.commit`.
        """
        group_id = commit.group_id
        group = self.classic.groups.get(group_id)
        consumer_group = self.consumer.groups.get(group_id)
        if consumer_group is not None:
            check_commit(consumer_group, commit, is_transactional=is_transactional)
        elif group is None:
            if commit.generation >= 0:
                if not is_transactional and commit.api_version >= FIRST_COMMIT_VERSION_WITH_GROUP_NOT_FOUND:
                    raise group_not_found(group_id)
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif commit.generation >= 0 or group.state is not ClassicGroupState.EMPTY:
            if commit.generation >= 0 or commit.member_id or commit.instance_id is not None:
                member = group.check_member(commit.member_id, commit.instance_id)
                if commit.generation != group.generation:
                    raise ApiError(ErrorCode.ILLEGAL_GENERATION)
                if group.state is ClassicGroupState.COMPLETING_REBALANCE and not is_transactional:
                    # The member has joined this generation, but has no assignment yet.
                    raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
                self.classic.renew_session(group, member)
            elif not is_transactional:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.offsets.commit(commit, self._context.now_ms())

    def fetch_offsets(
        self, group_id: str, member_id: str | None, member_epoch: int, *, only_committed: bool
    ) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Return the committed offsets of a group by topic and partition.

        The result is empty if the group does not exist. With `only_committed`, records that are not committed
        yet have no effect on the result. Raises ApiError for a consumer group: see `check_fetch`.
        """
        group = self.consumer.groups.get(group_id)
        if group is not None:
            check_fetch(group, member_id, member_epoch)
        if only_committed and self.offsets.is_pending(group_id):
            return self.offsets.committed_topics(group_id)
        if group is None and group_id not in self.classic.groups:
            return {}
        return self.offsets.topics(group_id)

    def delete_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        unstable: Collection[TopicPartition] = (),
    ) -> tuple[list[CoordinatorRecord], dict[TopicPartition, ErrorCode]]:
        """Return tombstones for these offsets, and the error code of each partition. KIP-496.

        `unstable` are the group's partitions with offsets in open transactions. Raises ApiError:
        GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP for a classic group with members of another protocol type than
        "consumer".
        """
        group = self._group(group_id)
        if (
            isinstance(group, ClassicGroup)
            and group.state is not ClassicGroupState.EMPTY
            and group.protocol_type != CONSUMER_PROTOCOL_TYPE
        ):
            # The topics of other protocol types are unknown.
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
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
        groups: list[Group] = [*self.classic.groups.values(), *self.consumer.groups.values()]
        for group in groups:
            expired, none_left = self.offsets.delete_expired_offsets(
                group.id,
                now_ms=now_ms,
                retention_ms=retention_ms,
                since=_retention_start(group),
                in_use=group.is_subscribed,
                unstable=unstable.get(group.id, ()),
            )
            records += expired
            if expired:
                self._logger.info("Group %s: deleting %s", group.id, plural(len(expired), "expired offset"))
            if none_left and _is_empty(group):
                records += _tombstones(group)
        return records

    def on_topics_deleted(
        self, topics: Mapping[str, Uuid], unstable: Iterable[OffsetRecord]
    ) -> list[CoordinatorRecord]:
        """Return tombstones for all offsets of deleted topics, also in open transactions (`unstable`)."""
        return self.offsets.delete_topic_offsets(topics, unstable)

    # --- groups

    def _group(self, group_id: str) -> Group:
        group = self.classic.groups.get(group_id) or self.consumer.groups.get(group_id)
        if group is None:
            raise group_not_found(group_id)
        return group

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a classic group. Raises ApiError GROUP_ID_NOT_FOUND if there is no such classic group."""
        group = self._group(group_id)
        if isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
        return group.describe()

    def describe_consumer_group(self, group_id: str, *, only_committed: bool) -> DescribedConsumerGroup:
        """Describe a consumer group. Raises ApiError GROUP_ID_NOT_FOUND if there is no such consumer group.

        With `only_committed`, changes whose records are not committed yet are omitted.
        """
        group: Group | None
        if only_committed and self._uncommitted.is_pending(group_id):
            group = self._uncommitted.committed_group(group_id, self._logger)
            if group is None:
                raise group_not_found(group_id)
        else:
            group = self._group(group_id)
        if isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return describe_group(group, self._topics, self.consumer.default_assignor)

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Return the groups in these states and of these types, in lower case. Empty collections mean all."""
        listed: list[ListedGroup] = []
        if not types or CLASSIC_TYPE in types:
            listed += (
                ListedGroup(
                    group_id=classic.id,
                    protocol_type=classic.protocol_type or "",
                    group_state=classic.state.value,
                    group_type=CLASSIC_TYPE,
                )
                for classic in self.classic.groups.values()
            )
        if not types or CONSUMER_TYPE in types:
            listed += (
                ListedGroup(
                    group_id=consumer.id,
                    protocol_type=CONSUMER_PROTOCOL_TYPE,
                    group_state=consumer.state.value,
                    group_type=CONSUMER_TYPE,
                )
                for consumer in self.consumer.groups.values()
            )
        return [group for group in listed if not states or group.group_state.lower() in states]

    def delete_group(self, group_id: str, unstable: Iterable[TopicPartition] = ()) -> list[CoordinatorRecord]:
        """Return tombstones for a group and its offsets, including offsets of open transactions (`unstable`).

        Raises ApiError: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if the group has members.
        """
        group = self._group(group_id)
        if not _is_empty(group):
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        return [*self.offsets.delete_group_offsets(group_id, unstable), *_tombstones(group)]

    # --- replay

    def replay(self, key: Message, value: Message | None) -> None:
        """Apply a record. A value of None is a tombstone. Unknown record types are skipped."""
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            if value is not None:
                self._ensure_group(key.group)
            self.offsets.replay(key, value)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self.consumer.groups.pop(key.group, None)
            known = self.classic.groups.get(key.group)
            if known is not None:
                self.classic.remove_group(known)
            if value is not None:
                self.classic.groups[key.group] = ClassicGroup.from_record(
                    key.group, value, self._context.now_ms()
                )
        elif type(key) in REPLAY:
            self._replay_consumer_group(key, value)

    def record_pending(self, key: Message) -> None:
        """Remember the current state of this key for responses until the key's next record is committed."""
        if isinstance(key, OffsetCommitKey):
            self.offsets.record_pending(key)
        elif type(key) in REPLAY:
            group_id: str = key.group_id  # type: ignore[attr-defined]
            self._uncommitted.record_pending(group_id, key, self.consumer.groups.get(group_id))

    def record_committed(self, key: Message) -> None:
        """Forget the oldest remembered state of this key."""
        if isinstance(key, OffsetCommitKey):
            self.offsets.record_committed(key)
        elif type(key) in REPLAY:
            self._uncommitted.record_committed(key.group_id)  # type: ignore[attr-defined]

    def _replay_consumer_group(self, key: Message, value: Message | None) -> None:
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.consumer.groups.get(group_id)
        if value is None:
            # After compaction, tombstones may be all that remains of a group.
            if group is None:
                return
            if isinstance(key, ConsumerGroupMetadataKey):
                del self.consumer.groups[group_id]
                return
        elif group is None:
            classic = self.classic.groups.get(group_id)
            if classic is not None:
                self.classic.remove_group(classic)
            group = self.consumer.groups[group_id] = ConsumerGroup(group_id, self._logger)
        group.replay(key, value)

    def _ensure_group(self, group_id: str) -> None:
        """Create a classic group that holds offsets, unless the group exists already."""
        if group_id not in self.classic.groups and group_id not in self.consumer.groups:
            self.classic.create(group_id)

    def replay_transactional(self, key: Message, value: Message | None) -> None:
        """Apply an offset of a committed transaction. `transactional_record_written` created the group."""
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self.offsets.replay(key, value)
        else:
            self.replay(key, value)

    def transactional_record_written(self, key: Message) -> None:
        """Create the group of an offset that was written in a transaction."""
        if isinstance(key, OffsetCommitKey):
            self._ensure_group(key.group)

    def on_loaded(self) -> None:
        """Start the sessions of all members."""
        self.classic.on_loaded()
        self.consumer.on_loaded()

    def on_unloaded(self, code: ErrorCode) -> None:
        """Complete all waiting requests with `code`, and stop all timers."""
        self.classic.on_unloaded(code)
        self.consumer.on_unloaded()


def group_not_found(group_id: str) -> ApiError:
    """Return Kafka's error for a group that does not exist."""
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def _is_empty(group: Group) -> bool:
    return group.state in (ClassicGroupState.EMPTY, ConsumerGroupState.EMPTY)


def _tombstones(group: Group) -> list[CoordinatorRecord]:
    return [group.tombstone()] if isinstance(group, ClassicGroup) else group.tombstones()


def _retention_start(group: Group) -> Callable[[CommittedOffset], int] | None:
    """Return a function from an offset to the start of its retention in ms.

    Returns None if no offset may expire now.
    """

    def since_commit(committed: CommittedOffset) -> int:
        return committed.commit_timestamp

    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return since_commit
    if group.state is ClassicGroupState.EMPTY:
        empty_since_ms = group.state_since_ms
        if empty_since_ms is None:
            return since_commit
        return lambda _committed: empty_since_ms
    if (
        group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and group.state is ClassicGroupState.STABLE
        and group.subscribed_topics is not None
    ):
        # Only offsets of topics that no member subscribes to expire.
        return since_commit
    return None
