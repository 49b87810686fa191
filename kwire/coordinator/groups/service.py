"""The group coordinator's interface for the broker's request handlers.

Results that wait for a rebalance or for the log are passed to `done`, which is called exactly once, possibly
inside the call. Errors of a whole request are ApiErrors or error codes, as each method documents. Any method
may return NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kwire.broker.config import BrokerConfig
from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC
from kwire.coordinator.groups.consumer.requests import ClientIdentity, assignor_names, check_request
from kwire.coordinator.groups.errors import response_error
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit, OffsetRecord
from kwire.coordinator.groups.rebalance_counts import RebalanceCounts
from kwire.coordinator.groups.record_serde import offset_key
from kwire.coordinator.partitioner import partition_of
from kwire.coordinator.ports import GroupSettings, StatePorts, TopicsView
from kwire.coordinator.runtime import CoordinatorRuntime, CoordinatorShard, CoordinatorType
from kwire.coordinator.state_machine import Committed, CoordinatorResult, HeartbeatFastPath
from kwire.host.host import Host
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java_strings import BLANKS
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from kwire.wire.messages.list_groups import ListedGroup
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.primitives import TopicPartition, Uuid
from kwire.wire.records.groups import OffsetCommitKey, OffsetCommitValue

if TYPE_CHECKING:
    from kwire.coordinator.groups.classic_protocol import JoinDone, JoinRequest, SyncDone, SyncRequest
    from kwire.coordinator.groups.group_type import D, GroupType, T
    from kwire.coordinator.groups.state_machine import GroupStateMachine

R = TypeVar("R")


class GroupCoordinatorService(CoordinatorRuntime["GroupStateMachine"]):
    """The group coordinator of this broker."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        ports: StatePorts,
        topics: TopicsView,
        settings: GroupSettings,
    ) -> None:
        """Create a coordinator.

        `settings` are the dynamic configurations of groups.
        """
        self._config = config

        def machine(shard: CoordinatorShard[GroupStateMachine]) -> GroupStateMachine:
            # Imported late, since the import takes 10% of the first broker start in a test.
            from kwire.coordinator.groups import registry
            from kwire.coordinator.groups.group_type import GroupRegistry
            from kwire.coordinator.groups.state_machine import GroupStateMachine

            types = registry.GROUP_TYPES
            return GroupStateMachine(GroupRegistry(types, config, shard, topics, settings, self.rebalances))

        coordinator_type = CoordinatorType(
            GROUP_METADATA_TOPIC,
            machine,
            config.offsets_commit_timeout_ms,
            batches_commands=True,
            transactional_key=offset_key,
        )
        super().__init__(coordinator_type, host, ports)
        self.rebalances = RebalanceCounts()
        self.offset_commits = self.offset_deletions = self.offset_expirations = 0
        """Offsets that were committed, deleted by OffsetDelete, and expired, since the broker started."""
        self.run_every(config.offsets_retention_check_interval_ms, self._expire)

    # --- events of the broker

    def topics_changed(self, names: Collection[str], *, created: bool) -> None:
        """Make groups check topics that were created, deleted or changed.

        `created` means that at least one of these topics is new.
        """
        for shard in self.active_shards():
            shard.machine.topics_changed(names, created=created)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Delete the offsets of deleted topics, including those of open transactions."""
        for shard in self.active_shards():
            records = shard.machine.offsets.delete_topic_offsets(topics, _held_offsets(shard))
            if records:
                shard.execute(CoordinatorResult(records))

    def _expire(self) -> None:
        for shard in self.active_shards():
            unstable: dict[str, set[TopicPartition]] = {}
            for key, _ in _held_offsets(shard):
                unstable.setdefault(key.group, set()).add((key.topic, key.partition))
            records = shard.machine.expire(unstable)
            self.offset_expirations += sum(isinstance(record.key, OffsetCommitKey) for record in records)
            if records:
                shard.execute(CoordinatorResult(records))

    # --- membership

    def join(self, join: JoinRequest, done: JoinDone) -> None:
        """Handle JoinGroup. Errors are in the response."""
        member_id = join.member_id
        try:
            self._check(join.group_id)
            low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
            if not low <= join.session_timeout_ms <= high:
                raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
            member_id = ""  # Kafka returns no member id with an error of the coordinator.
            shard = self.shard_for(join.group_id)
        except ApiError as error:
            done(JoinGroupResponse(error_code=error.code, member_id=member_id, members=[]))
            return
        shard.execute(shard.machine.classic_protocol(join.group_id).join(join, done))

    def sync(self, sync: SyncRequest, done: SyncDone) -> None:
        """Handle SyncGroup. Errors are in the response."""
        try:
            shard = self._shard(sync.group_id)
        except ApiError as error:
            done(SyncGroupResponse(error_code=error.code))
            return
        shard.execute(shard.machine.classic_protocol(sync.group_id).sync(sync, done))

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Handle Heartbeat, and return its error code."""
        try:
            shard = self._shard(group_id)
        except ApiError as error:
            # While the group is loading, an error would make its members rejoin without a reason.
            return ErrorCode.NONE if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error.code
        protocol = shard.machine.classic_protocol(group_id)
        return protocol.heartbeat(group_id, generation, member_id, instance_id)

    def heartbeat_fast_path(self, group_id: str, generation: int, member_id: str) -> HeartbeatFastPath | None:
        """Return the fast path for a repetition of this heartbeat, whose response had no error.

        Returns None if the member is not in a loaded classic group.
        """
        try:
            shard = self._shard(group_id)
        except ApiError:
            return None
        return shard.machine.classic.heartbeat_fast_path(group_id, generation, member_id)

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], done: Callable[[LeaveGroupResponse], None]
    ) -> None:
        """Handle LeaveGroup as in v3: any number of members, each with an error code. KIP-345."""
        try:
            shard = self._shard(group_id)
        except ApiError as error:
            done(LeaveGroupResponse(error_code=error.code, members=[]))
            return
        result, response = shard.machine.classic_protocol(group_id).leave(group_id, members)
        if response.error_code:
            # The group does not exist, so each member gets the error.
            response = LeaveGroupResponse(
                members=[
                    MemberResponse(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        error_code=response.error_code,
                    )
                    for member in members
                ]
            )

        def left(error: ApiError | None) -> None:
            if error is None:
                done(response)
            else:
                done(LeaveGroupResponse(error_code=response_error(error), members=[]))

        shard.execute(CoordinatorResult(result.records, _both(result.committed, left)))

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientIdentity,
        api_version: int,
        done: Callable[[ConsumerGroupHeartbeatResponse], None],
    ) -> None:
        """Handle ConsumerGroupHeartbeat. Errors are in the response. KIP-848."""
        try:
            if self._stopped:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            named = request.server_assignor is not None
            known = assignor_names(self._config.group_consumer_assignors) if named else ()
            check_request(request, api_version, known)
            shard = self.shard_for(request.group_id)
            result, response = shard.machine.consumer.heartbeat(request, client)
        except ApiError as error:
            done(ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message))
            return

        def stored(error: ApiError | None) -> None:
            result.committed(error)
            if error is None:
                done(response)
            else:
                done(ConsumerGroupHeartbeatResponse(error_code=response_error(error)))

        shard.execute(CoordinatorResult(result.records, stored, result.producer))

    def consumer_heartbeat_fast_path(
        self, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
    ) -> HeartbeatFastPath | None:
        """Return the fast path for a repetition of this heartbeat.

        Returns None if the request or its response has more content than a keep-alive. The caller must drop
        the fast path when the group's dynamic configuration changes.
        """
        try:
            shard = self.shard_for(request.group_id)
        except ApiError:
            return None
        again = shard.machine.consumer.heartbeat_fast_path(request, client)
        # Responses are sent in order, so this one must not overtake a response that waits for its records.
        return None if again is None else lambda: shard.all_committed and again()

    def run(
        self,
        group_type: GroupType[T, Any],
        group_id: str,
        command: Callable[[T], tuple[CoordinatorResult, R]],
        done: Callable[[R | ApiError], None],
    ) -> None:
        """Run a request to a group of this type.

        `command` gets the groups of the type, and returns the records and the response. `done` gets the
        response after the records are committed, or the error that `command` raised or the log returned.
        """
        try:
            if self._stopped:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            shard = self.shard_for(group_id)
            result, response = command(shard.machine.registry.of(group_type))
        except ApiError as error:
            done(error)
            return

        def stored(error: ApiError | None) -> None:
            result.committed(error)
            done(response if error is None else ApiError(response_error(error)))

        shard.execute(result._replace(committed=stored))

    # --- offsets

    def commit_offsets(
        self,
        commit: OffsetCommit,
        done: Callable[[ErrorCode], None],
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Handle OffsetCommit or TxnOffsetCommit. `done` gets the error code of the whole commit.

        `producer` is the producer id and epoch of a TxnOffsetCommit, whose offsets take effect when the
        transaction commits.
        """
        is_transactional = producer is not None
        try:
            shard = self._shard(commit.group_id, empty_id_allowed=not is_transactional)
            records = shard.machine.commit_offsets(commit, is_transactional=is_transactional)
        except ApiError as error:
            done(error.code)
            return
        if not is_transactional:
            self.offset_commits += len(records)
        shard.execute(CoordinatorResult(records, lambda error: done(_code(error)), producer))

    def offsets_partition(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` for a group, even if the topic does not exist yet."""
        index = self.partition_for(group_id)
        return partition_of(group_id, self._config.offsets_topic_num_partitions) if index is None else index

    def unstable_offsets(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions for which the group has offsets in open transactions.

        Raises ApiError if this broker is not the group's coordinator, or is still loading the group.
        """
        return {
            (key.topic, key.partition)
            for key, _ in _held_offsets(self._shard(group_id, empty_id_allowed=True))
            if key.group == group_id
        }

    def fetch_offsets(
        self,
        group_id: str,
        read: Callable[[Mapping[str, Mapping[int, CommittedOffset]]], R],
        done: Callable[[ErrorCode, R | None], None],
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Handle OffsetFetch. `read` converts the offsets by topic and partition, and must not keep them.

        `done` gets NONE and the result of `read`, or an error and None. By default, the response has only
        offsets whose records are committed, and waits until the loaded records are committed. With
        `require_stable`, which consumers set, the response has all offsets and waits until their records are
        committed. A group that does not exist has no offsets. Members of a consumer group send their member
        id and epoch.
        """
        try:
            shard = self._shard(group_id, empty_id_allowed=True)
            at_once = shard.is_load_committed and not require_stable
            offsets = shard.machine.fetch_offsets(group_id, member_id, member_epoch, only_committed=at_once)
        except ApiError as error:
            done(error.code, None)
            return
        answer = read(offsets)
        if at_once:
            done(ErrorCode.NONE, answer)
            return

        def committed(error: ApiError | None) -> None:
            if error is None:
                done(ErrorCode.NONE, answer)
            elif error.code is ErrorCode.REQUEST_TIMED_OUT:
                # Among the retriable errors, old clients hide only this error from applications.
                done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
            else:
                done(response_error(error), None)

        shard.execute(CoordinatorResult((), committed))

    def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        done: Callable[[ErrorCode, Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Handle OffsetDelete. `done` gets the request's error code, and an error code for each partition."""
        try:
            shard = self._shard(group_id)
            unstable = self.unstable_offsets(group_id)
            records, outcome = shard.machine.delete_offsets(group_id, partitions, unstable)
            self.offset_deletions += len(records)
        except ApiError as error:
            done(error.code, {})
            return
        shard.execute(
            CoordinatorResult(records, lambda error: done(_code(error), outcome if error is None else {}))
        )

    # --- administration

    def describe(self, group_type: GroupType[Any, D], group_id: str) -> D:
        """Describe a group. Raises ApiError: GROUP_ID_NOT_FOUND, or an error of the coordinator."""
        return self._shard(group_id, empty_id_allowed=True).machine.describe(group_type, group_id)

    def describe_committed(
        self, group_type: GroupType[Any, D], group_id: str, done: Callable[[D], None]
    ) -> None:
        """Describe the committed state of a group, after all loaded records are committed.

        Errors are in the response.
        """
        described = group_type.described
        try:
            shard = self._shard(group_id)
            at_once = shard.is_load_committed
            group = shard.machine.describe(group_type, group_id, only_committed=at_once)
        except ApiError as error:
            done(described(group_id=group_id, error_code=error.code, error_message=error.message))
            return
        if at_once:
            done(group)
            return

        def committed(error: ApiError | None) -> None:
            if error is None:
                done(group)
            else:
                done(described(group_id=group_id, error_code=response_error(error)))

        shard.execute(CoordinatorResult((), committed))

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Return the groups in these states and of these types, ignoring case. An empty collection means all.

        As in Apache Kafka, blanks around a state are ignored, but blanks around a type are not. Raises
        ApiError COORDINATOR_LOAD_IN_PROGRESS if a partition is still loading.
        """
        if self.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.strip(BLANKS).lower() for state in states}
        types = {name.lower() for name in types}
        return [group for shard in self.active_shards() for group in shard.machine.list_groups(states, types)]

    def offsets_count(self) -> int:
        """Return the number of committed offsets of all groups."""
        return sum(len(shard.machine.offsets) for shard in self.active_shards())

    def delete_groups(self, group_ids: Sequence[str], done: Callable[[dict[str, ErrorCode]], None]) -> None:
        """Handle DeleteGroups. `done` gets the error code of each group. KIP-229."""
        requested = dict.fromkeys(group_ids)
        outcome: dict[str, ErrorCode] = {}
        if not requested:
            done(outcome)

        def decided(group_id: str, code: ErrorCode) -> None:
            outcome[group_id] = code
            if len(outcome) == len(requested):
                done({group_id: outcome[group_id] for group_id in requested})

        for group_id in requested:
            self._delete(group_id, decided)

    def _delete(self, group_id: str, decided: Callable[[str, ErrorCode], None]) -> None:
        try:
            shard = self._shard(group_id, empty_id_allowed=True)
            records = shard.machine.delete_group(group_id, self.unstable_offsets(group_id))
        except ApiError as error:
            decided(group_id, error.code)
            return
        shard.execute(CoordinatorResult(records, lambda error: decided(group_id, _code(error))))

    def _shard(self, group_id: str, *, empty_id_allowed: bool = False) -> CoordinatorShard[GroupStateMachine]:
        """Return the loaded shard of a group. Raises ApiError as `_check` and `CoordinatorRuntime.shard_for`.

        With `empty_id_allowed`, the group id may be empty: old clients that only commit offsets use it.
        """
        self._check(group_id, empty_id_allowed=empty_id_allowed)
        return self.shard_for(group_id)

    def _check(self, group_id: str, *, empty_id_allowed: bool = False) -> None:
        """Raise ApiError COORDINATOR_NOT_AVAILABLE after a shutdown, INVALID_GROUP_ID if the id is empty."""
        if self._stopped:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not group_id and not empty_id_allowed:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)


def _held_offsets(shard: CoordinatorShard[GroupStateMachine]) -> Iterator[OffsetRecord]:
    """Yield the offsets of open transactions, of all groups."""
    for key, value, _ in shard.transactional.held():
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            yield key, value


def _code(error: ApiError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else response_error(error)


def _both(first: Committed, second: Committed) -> Committed:
    def both(error: ApiError | None) -> None:
        first(error)
        second(error)

    return both
