"""The group coordinator as the broker's handlers use it: one method for each thing that clients ask.

Answers that wait for a rebalance or for the log come through `done`, which is called exactly once, maybe
inside the call. Errors of the whole request are ApiErrors or error codes, as each method says; any may be
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kwire.broker.metadata.topic_names import GROUP_METADATA_TOPIC
from kwire.coordinator.groups.consumer.requests import ClientIdentity, check_request
from kwire.coordinator.groups.consumer.settings import BrokerSettings, ConsumerDefaults, assignor_names
from kwire.coordinator.groups.errors import response_error
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit, OffsetRecord
from kwire.coordinator.groups.record_serde import offset_key, stored_records
from kwire.coordinator.ports import GroupSettings, StatePorts, TopicsView
from kwire.coordinator.runtime import CoordinatorRuntime, CoordinatorShard, CoordinatorType, partition_of
from kwire.coordinator.state_machine import Committed, CoordinatorResult, HeartbeatFastPath
from kwire.host.host import Host, Timer
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.java_strings import BLANKS
from kwire.wire.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kwire.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kwire.wire.messages.describe_groups import DescribedGroup
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from kwire.wire.messages.list_groups import ListedGroup
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.primitives import TopicPartition, Uuid
from kwire.wire.records.groups import OffsetCommitKey, OffsetCommitValue

if TYPE_CHECKING:
    from kwire.coordinator.groups.classic.member import JoinDone, SyncDone
    from kwire.coordinator.groups.classic.rebalance import JoinRequest, SyncRequest
    from kwire.coordinator.groups.state_machine import GroupConfig, GroupStateMachine

    class ServiceConfig(GroupConfig, ConsumerDefaults, Protocol):
        """The configuration keys that the group coordinator needs, dots as underscores."""

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


R = TypeVar("R")


class GroupCoordinatorService:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        config: ServiceConfig,
        host: Host,
        ports: StatePorts,
        topics: TopicsView,
        settings: GroupSettings | None = None,
    ) -> None:
        """`settings` are those of single groups; by default the broker's hold for all."""
        self._config = config
        self._host = host
        self._ports = ports
        group_settings = BrokerSettings(config) if settings is None else settings

        def machine(shard: CoordinatorShard[GroupStateMachine]) -> GroupStateMachine:
            from kwire.coordinator.groups.state_machine import (
                GroupStateMachine,
            )  # a tenth of a first start in a test

            return GroupStateMachine(config, shard, topics, group_settings)

        self._runtime: CoordinatorRuntime[GroupStateMachine] = CoordinatorRuntime(
            CoordinatorType(
                GROUP_METADATA_TOPIC,
                machine,
                stored_records,
                config.offsets_commit_timeout_ms,
                batches_commands=True,
                transactional_key=offset_key,
            ),
            host,
            ports,
        )
        self._stopped = False
        self._expiry = self._next_expiry()

    # --- what the broker tells

    def elected(self, index: int, leader_epoch: int) -> None:
        """This broker leads a partition of the offsets topic from now on. ApiError: it cannot be read."""
        self._runtime.elected(index, leader_epoch)

    def resigned(self, index: int, leader_epoch: int) -> None:
        """This broker does not lead a partition of the offsets topic any more, as it did in this epoch."""
        self._runtime.resigned(index, leader_epoch)

    def topics_changed(self, names: Collection[str], *, created: bool) -> None:
        """Topics are new (`created`: some of them), gone, or have changed: consumer groups look again."""
        for shard in self._runtime.active_shards():
            shard.machine.consumer.topics_changed(names, created=created)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics are gone, by name: so are the offsets that groups and open transactions have in them."""
        for shard in self._runtime.active_shards():
            records = shard.machine.on_topics_deleted(topics, _held_offsets(shard))
            if records:
                shard.execute(CoordinatorResult(records))

    def shutdown(self) -> None:
        """Answer everyone who waits, and do nothing more."""
        self._stopped = True
        self._expiry.cancel()
        self._runtime.shutdown()

    def _expire(self) -> None:
        for shard in self._runtime.active_shards():
            unstable: dict[str, set[TopicPartition]] = {}
            for key, _ in _held_offsets(shard):
                unstable.setdefault(key.group, set()).add((key.topic, key.partition))
            records = shard.machine.expire(unstable)
            if records:
                shard.execute(CoordinatorResult(records))
        if not self._stopped:
            self._expiry = self._next_expiry()

    def _next_expiry(self) -> Timer:
        return self._host.schedule_check(self._config.offsets_retention_check_interval_ms, self._expire)

    # --- finding

    def find_coordinator(self, group_id: str) -> int:
        """The id of the broker that coordinates a group.

        ApiError COORDINATOR_NOT_AVAILABLE where nobody does; if that is for want of the offsets topic, its
        creation is under way.
        """
        index = self._runtime.partition_for(group_id)
        if index is None:
            self._ports.create_topic()
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        leader = self._ports.leader(index)
        if leader is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return leader

    # --- membership

    def join(self, join: JoinRequest, done: JoinDone) -> None:
        """JoinGroup. Its errors are in the answer."""
        member_id = join.member_id
        try:
            self._check(join.group_id)
            low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
            if not low <= join.session_timeout_ms <= high:
                raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
            member_id = ""  # Kafka does not say who asked, where nobody knows the group.
            shard = self._runtime.shard_for(join.group_id)
        except ApiError as error:
            done(JoinGroupResponse(error_code=error.code, member_id=member_id, members=[]))
            return
        shard.execute(shard.machine.join(join, done))

    def sync(self, sync: SyncRequest, done: SyncDone) -> None:
        """SyncGroup. Its errors are in the answer."""
        try:
            shard = self._shard(sync.group_id)
        except ApiError as error:
            done(SyncGroupResponse(error_code=error.code))
            return
        shard.execute(shard.machine.sync(sync, done))

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Heartbeat: NONE, or what is wrong."""
        try:
            shard = self._shard(group_id)
        except ApiError as error:
            # Whether the member is still one is not known yet; it would be wrong to scare it away.
            return ErrorCode.NONE if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error.code
        return shard.machine.heartbeat(group_id, generation, member_id, instance_id)

    def heartbeat_fast_path(self, group_id: str, generation: int, member_id: str) -> HeartbeatFastPath | None:
        """What the heartbeat that was just answered with NONE does if it comes again in the same words."""
        try:
            shard = self._shard(group_id)
        except ApiError:
            return None
        return shard.machine.classic.heartbeat_fast_path(group_id, generation, member_id)

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], done: Callable[[LeaveGroupResponse], None]
    ) -> None:
        """LeaveGroup in the form of v3: any number of members, an answer for each. KIP-345."""
        try:
            shard = self._shard(group_id)
        except ApiError as error:
            done(LeaveGroupResponse(error_code=error.code, members=[]))
            return
        result, response = shard.machine.leave(group_id, members)
        if response.error_code:
            # There is no such group, so nobody is a member of it.
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
        """ConsumerGroupHeartbeat. Its errors are in the answer. KIP-848."""
        try:
            if self._stopped:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            named = request.server_assignor is not None
            known = assignor_names(self._config.group_consumer_assignors) if named else ()
            check_request(request, api_version, known)
            shard = self._runtime.shard_for(request.group_id)
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
        """What the heartbeat that was just answered does if it comes again in the same words.

        None where it tells the member, or is told, more than that it is there. It does not hold on when
        configurations of the group have changed.
        """
        try:
            shard = self._runtime.shard_for(request.group_id)
        except ApiError:
            return None
        again = shard.machine.consumer.heartbeat_fast_path(request, client)
        # An answer waits until what earlier ones changed is stored.
        return None if again is None else lambda: shard.all_committed and again()

    # --- offsets

    def commit_offsets(self, commit: OffsetCommit, done: Callable[[ErrorCode], None]) -> None:
        """OffsetCommit. `done` gets NONE or what was wrong with all of it."""
        try:
            shard = self._shard(commit.group_id, empty_id_allowed=True)
            records = shard.machine.commit_offsets(commit)
        except ApiError as error:
            done(error.code)
            return
        shard.execute(CoordinatorResult(records, lambda error: done(_code(error))))

    def commit_transactional_offsets(
        self, commit: OffsetCommit, producer: tuple[int, int], done: Callable[[ErrorCode], None]
    ) -> None:
        """TxnOffsetCommit: the offsets count once the producer's transaction commits."""
        try:
            shard = self._shard(commit.group_id)
            records = shard.machine.commit_offsets(commit, is_transactional=True)
        except ApiError as error:
            done(error.code)
            return
        shard.execute(CoordinatorResult(records, lambda error: done(_code(error)), producer))

    def offsets_partition(self, group_id: str) -> int:
        """The partition of the offsets topic that holds a group, or will once there is such a topic."""
        index = self._runtime.partition_for(group_id)
        return partition_of(group_id, self._config.offsets_topic_num_partitions) if index is None else index

    def flush_batch(self, index: int) -> None:
        """A partition of the offsets topic is about to get a marker: what was decided before goes first."""
        self._runtime.flush_batch(index)

    def on_transaction_completed(self, index: int, producer_id: int, *, commit: bool) -> None:
        """A marker is in the log of a partition of the offsets topic."""
        self._runtime.on_transaction_completed(index, producer_id, commit=commit)

    def unstable_offsets(self, group_id: str) -> set[TopicPartition]:
        """The partitions of a group for which open transactions have offsets. ApiError as for any group."""
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
        """OffsetFetch: `read` makes an answer of the offsets by topic and partition, which it must not keep.

        `done` gets it with NONE, else an error and None. It shows what is committed; only what was loaded has
        to be committed first. With `require_stable`, as consumers ask, it shows all that the group has done,
        as soon as that is committed. A group that does not exist has no offsets. A member of a consumer group
        says who it is.
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
                # Of all that says "not yet", old clients show nothing else to their users.
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
        """OffsetDelete. `done` gets an error of the whole, and one for each partition."""
        try:
            shard = self._shard(group_id)
            unstable = self.unstable_offsets(group_id)
            records, outcome = shard.machine.delete_offsets(group_id, partitions, unstable)
        except ApiError as error:
            done(error.code, {})
            return
        shard.execute(
            CoordinatorResult(records, lambda error: done(_code(error), outcome if error is None else {}))
        )

    # --- administration

    def describe(self, group_id: str) -> DescribedGroup:
        """One classic group. ApiError: GROUP_ID_NOT_FOUND, or why this broker cannot know."""
        return self._shard(group_id, empty_id_allowed=True).machine.describe(group_id)

    def describe_consumer_group(self, group_id: str, done: Callable[[DescribedConsumerGroup], None]) -> None:
        """One consumer group, as far as it is committed; all that was loaded has to be, first.

        Errors are in the answer.
        """
        try:
            shard = self._shard(group_id)
            at_once = shard.is_load_committed
            group = shard.machine.describe_consumer_group(group_id, only_committed=at_once)
        except ApiError as error:
            done(
                DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=error.message)
            )
            return
        if at_once:
            done(group)
            return

        def committed(error: ApiError | None) -> None:
            if error is None:
                done(group)
            else:
                done(DescribedConsumerGroup(group_id=group_id, error_code=response_error(error)))

        shard.execute(CoordinatorResult((), committed))

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """The groups in these states and of these types, in any case; all, where nothing is named.

        Blanks around a state do not count, as in Apache Kafka; those around a type do. ApiError
        COORDINATOR_LOAD_IN_PROGRESS while some may still be unknown.
        """
        if self._runtime.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.strip(BLANKS).lower() for state in states}
        types = {name.lower() for name in types}
        return [
            group
            for shard in self._runtime.active_shards()
            for group in shard.machine.list_groups(states, types)
        ]

    def delete_groups(self, group_ids: Sequence[str], done: Callable[[dict[str, ErrorCode]], None]) -> None:
        """DeleteGroups. `done` gets what became of each group. KIP-229."""
        asked = dict.fromkeys(group_ids)
        outcome: dict[str, ErrorCode] = {}
        if not asked:
            done(outcome)

        def decided(group_id: str, code: ErrorCode) -> None:
            outcome[group_id] = code
            if len(outcome) == len(asked):
                done({group_id: outcome[group_id] for group_id in asked})

        for group_id in asked:
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
        """The shard of a group. Old clients that only keep offsets may have the empty id."""
        self._check(group_id, empty_id_allowed=empty_id_allowed)
        return self._runtime.shard_for(group_id)

    def _check(self, group_id: str, *, empty_id_allowed: bool = False) -> None:
        """What is wrong whoever coordinates the group: ApiError."""
        if self._stopped:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not group_id and not empty_id_allowed:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)


def _held_offsets(shard: CoordinatorShard[GroupStateMachine]) -> Iterator[OffsetRecord]:
    """The offsets that open transactions have, of any group."""
    for key, value in shard.transactional.held():
        if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
            yield key, value


def _code(error: ApiError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else response_error(error)


def _both(first: Committed, second: Committed) -> Committed:
    def both(error: ApiError | None) -> None:
        first(error)
        second(error)

    return both
