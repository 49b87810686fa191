"""ConsumerGroupHeartbeat: members join, renew their session, revoke partitions and leave. KIP-848.

The same request serves all these purposes. It may change the member's subscription, which bumps the group
epoch. For a new group epoch, the coordinator computes a new target assignment, possibly after a delay. Then
the member takes its next step towards its target (`reconciliation`). Each member has two timers: its session
timeout, and its rebalance timeout while it has partitions to revoke.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from kwire.coordinator.groups.assignors import ASSIGNORS
from kwire.coordinator.groups.assignors.spec import Partitions
from kwire.coordinator.groups.classic.group import ClassicGroup, ClassicGroupState
from kwire.coordinator.groups.consumer.describe import describe_group
from kwire.coordinator.groups.consumer.group import ConsumerGroup
from kwire.coordinator.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroupMember,
    MemberState,
    removal_records,
    target_record,
)
from kwire.coordinator.groups.consumer.migration_port import Migration
from kwire.coordinator.groups.consumer.reconciliation import Owned, ReconciliationInput, next_step
from kwire.coordinator.groups.consumer.requests import (
    ClientIdentity,
    assignor_names,
    changes_nothing,
    is_full_request,
    owned_partitions,
    updated_member,
)
from kwire.coordinator.groups.consumer.subscriptions import Subscriptions
from kwire.coordinator.groups.consumer.target_assignment import build_target_assignment
from kwire.coordinator.groups.consumer.timers import MemberTimers
from kwire.coordinator.groups.consumer.uncommitted_changes import UncommittedChanges
from kwire.coordinator.groups.errors import group_not_found
from kwire.coordinator.groups.group_type import Group, GroupRegistry, GroupsOfType
from kwire.coordinator.state_machine import (
    EMPTY_RESULT,
    CoordinatorRecord,
    CoordinatorResult,
    HeartbeatFastPath,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_describe import DescribedGroup
from kwire.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ResponseTopicPartitions,
)
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from kwire.wire.primitives import Uuid, uuid_to_text
from kwire.wire.records.consumer_groups import ConsumerGroupMetadataKey


class ConsumerGroups(GroupsOfType[ConsumerGroup, DescribedGroup]):
    """The consumer groups of one partition of `__consumer_offsets`."""

    def __init__(self, registry: GroupRegistry, migration: Callable[[ConsumerGroups], Migration]) -> None:
        super().__init__(registry)
        self._topics = registry.topics
        self._settings = registry.settings
        self.subscriptions = Subscriptions(registry, self.groups)
        self.classic_protocol = self.migration = migration(self)
        self._uncommitted = UncommittedChanges()
        self._session_timers = MemberTimers(registry.context)
        self._revocation_timers = MemberTimers(registry.context)

    @property
    def default_assignor(self) -> str:
        """The assignor of a group whose members do not name an assignor."""
        return assignor_names(self._config.group_consumer_assignors)[0]

    # --- the request

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
    ) -> tuple[CoordinatorResult, ConsumerGroupHeartbeatResponse]:
        """Return the records of a valid request, and the response to send after they are committed.

        Raises ApiError: GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
        UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, INVALID_REGULAR_EXPRESSION, UNKNOWN_SERVER_ERROR.
        """
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self._leave(request)
        joins = request.member_epoch == JOINING_EPOCH
        if not joins and self._is_keep_alive(request, client):
            self.start_session(request.group_id, request.member_id)
            return EMPTY_RESULT, self._response(request.group_id, request.member_id, request.member_epoch)
        records: list[CoordinatorRecord] = []
        group = self._group_of(request.group_id, records, joins=joins)
        self.check_size_limit(group, request.member_id)
        owned = owned_partitions(request)
        member_id = request.member_id or self.new_member_id()
        if request.instance_id is None:
            member = group.members.get(member_id) if joins else group.member(member_id)
            if member is None:
                self._logger.info("Group %s: member %s joined", group.id, member_id)
                member = ConsumerGroupMember(member_id)
            _check_epoch(member, request.member_epoch, owned)
        elif joins:
            member = self.joining_static_member(group, member_id, request.instance_id, records)
        else:
            member = group.known_static_member(member_id, request.instance_id)
            _check_epoch(member, request.member_epoch, owned)
        updated = updated_member(member, request, client)
        changed = self.subscriptions.update(group, member, updated, records, client.may_describe)
        epoch = group.epoch
        homogeneous: bool | None = None
        if changed.raises_epoch or group.needs_refresh(self._context.monotonic_ms()):
            epoch, homogeneous = self.subscriptions.refresh(
                group, member, updated, records, raise_epoch=changed.raises_epoch
            )
        target_epoch, target = self.update_target(group, epoch, member, updated, homogeneous, records)
        if changed.subscription or not updated.is_reconciled_to(target_epoch):
            updated = self.reconcile(
                group, updated, target_epoch, target, changed.subscription, owned, records
            )
        self.start_session(group.id, member_id)
        response = self._response(group.id, member_id, updated.epoch)
        if joins or is_full_request(request) or member.assigned != updated.assigned:
            response.assignment = Assignment(
                topic_partitions=[
                    ResponseTopicPartitions(topic_id=Uuid(topic_id), partitions=sorted(partitions))
                    for topic_id, partitions in updated.assigned.items()
                ]
            )
        return CoordinatorResult(records), response

    def _response(self, group_id: str, member_id: str, epoch: int) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms(group_id),
        )

    def _is_keep_alive(self, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity) -> bool:
        """Whether the request only renews the session of a member that has reached its target.

        Most requests are such keep-alives, for which the other steps of `heartbeat` would change nothing.
        This method also resolves the group's regular expressions again if that is due.
        """
        group = self.groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if (
            group is None
            or member is None
            or member.epoch != request.member_epoch
            or not member.is_reconciled_to(group.assignment_epoch)
            or group.assignment_epoch < group.epoch
            or not changes_nothing(member, request, client)
            or (
                member.instance_id is not None
                and group.static_member_ids.get(member.instance_id) != member.id
            )
            or group.needs_refresh(self._context.monotonic_ms())
        ):
            return False
        if group.regex_counts:
            self.subscriptions.resolve_again_if_due(group, client.may_describe)
        return True

    def heartbeat_fast_path(
        self, request: ConsumerGroupHeartbeatRequest, client: ClientIdentity
    ) -> HeartbeatFastPath | None:
        """Return the fast path for repetitions of this keep-alive, or None if there is none.

        The caller must drop the fast path when the group's dynamic configuration changes.
        """
        if request.member_epoch <= JOINING_EPOCH or not self._is_keep_alive(request, client):
            return None
        group = self.groups[request.group_id]
        member = group.members[request.member_id]
        session = self._session_timers.get(group.id, member.id)
        if session is None or group.regex_counts:
            return None
        epoch, assignment_epoch = group.epoch, group.assignment_epoch
        timeout_ms = self._settings.session_timeout_ms(group.id)

        def again() -> bool:
            # A changed member is another object, and a removed member has no session.
            return (
                group.members.get(member.id) is member
                and group.epoch == epoch
                and group.assignment_epoch == assignment_epoch
                and not group.regex_counts
                and not group.needs_refresh(self._context.monotonic_ms())
                and session.postpone(timeout_ms)
            )

        return again

    def _group_of(self, group_id: str, records: list[CoordinatorRecord], *, joins: bool) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if group is not None:
            return group
        other = self._registry.find(group_id)
        if not joins or not (other is None or isinstance(other, ClassicGroup)):
            raise _not_found(group_id, other, f"Consumer group {group_id} not found.")
        if other is None:
            return ConsumerGroup(group_id, self._logger)
        if other.state is ClassicGroupState.EMPTY:
            records += other.tombstones()
            return ConsumerGroup(group_id, self._logger)
        return self.migration.upgrade(other, records)

    def check_size_limit(self, group: ConsumerGroup, member_id: str) -> None:
        """Check that the member does not exceed the group's maximum size.

        Raises ApiError GROUP_MAX_SIZE_REACHED.
        """
        limit = self._config.group_consumer_max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def new_member_id(self) -> str:
        """Return a random UUID in Kafka's base64 form."""
        while True:
            text = uuid_to_text(Uuid(bytes.fromhex(self._context.new_uuid().replace("-", ""))))
            if not text.startswith("-"):
                # Command-line tools would take an id with a leading dash for an option.
                return text

    def joining_static_member(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        records: list[CoordinatorRecord],
        *,
        is_classic: bool = False,
    ) -> ConsumerGroupMember:
        """Return the static member that joins, and add the records that replace the previous member.

        Raises ApiError UNRELEASED_INSTANCE_ID if the previous member with this instance id has not left, and
        both members use the consumer protocol. `is_classic`: the joining member uses the classic protocol.
        """
        existing = group.static_member(instance_id)
        if existing is None:
            self._logger.info(
                "Group %s: static member %s with instance id %s joined", group.id, member_id, instance_id
            )
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not is_classic and not existing.is_classic and existing.epoch != STATIC_LEAVING_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because "
                f"the instance id is owned by {existing.id} member.",
            )
        new = existing._replace(id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
        records += removal_records(group.id, existing.id)
        records.append(new.metadata_record(group.id))
        records.append(target_record(group.id, member_id, group.targets.get(existing.id, {})))
        records.append(new.assignment_record(group.id))
        self._logger.info(
            "Group %s: static member %s with instance id %s rejoined and replaces member %s",
            *(group.id, member_id, instance_id, existing.id),
        )
        return new

    def update_target(
        self,
        group: ConsumerGroup,
        epoch: int,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        homogeneous: bool | None,
        records: list[CoordinatorRecord],
    ) -> tuple[int, Partitions]:
        """Return the epoch of the target assignment, and the target of `updated`, which replaces `member`.

        A new target assignment is computed if the group epoch `epoch` is higher than the assignment epoch and
        the assignment interval has passed. Raises ApiError UNKNOWN_SERVER_ERROR if the assignor fails, or if
        most members name an assignor that is no longer configured.
        """
        if group.assignment_epoch < epoch:
            now_ms = self._context.now_ms()
            interval_ms = self._settings.assignment_interval_ms(group.id)
            last_ms = group.assignment_timestamp
            # If the previous coordinator's clock was ahead, Kafka would wait for this clock to catch up.
            if not last_ms or not last_ms <= now_ms < last_ms + interval_ms:
                name = group.preferred_assignor_after(member, updated) or self.default_assignor
                if name not in assignor_names(self._config.group_consumer_assignors):
                    # The configuration was changed after the members named this assignor. As in Kafka, they
                    # get errors until they name another assignor.
                    self._logger.error(
                        "Group %s: cannot compute a target assignment: most members request assignor %s, "
                        "which is not in group.consumer.assignors. Add the assignor, or change "
                        "group.remote.assignor of the members",
                        group.id,
                        name,
                    )
                    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
                new_records, target = build_target_assignment(
                    group,
                    updated,
                    epoch=epoch,
                    homogeneous=group.homogeneous if homogeneous is None else homogeneous,
                    assign=ASSIGNORS[name],
                    topics=self._topics,
                    now_ms=now_ms,
                )
                records += new_records
                self._logger.info(
                    "Group %s: computed target assignment for group epoch %d with assignor %s",
                    group.id,
                    epoch,
                    name,
                )
                return epoch, target
        return group.assignment_epoch, group.target(updated.id, updated.instance_id)

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target_epoch: int,
        target: Partitions,
        subscription_changed: bool,
        owned: Owned | None,
        records: list[CoordinatorRecord],
    ) -> ConsumerGroupMember:
        """Return the member after its next step towards its target, and add the record to `records`.

        `owned` are the partitions that the member reports as owned. Raises the errors of `next_step`.
        """
        found = map(self._topics.by_name, group.subscribed_topics(member))
        updated = next_step(
            ReconciliationInput(
                member,
                target_epoch,
                target,
                frozenset(topic.topic_id for topic in found if topic is not None),
                subscription_changed,
                owned,
                group.owner_epoch,
            )
        )
        if updated == member:
            return member
        records.append(updated.assignment_record(group.id))
        if updated.is_classic:
            return updated
        if updated.state is MemberState.UNREVOKED_PARTITIONS:
            self._start_revocation(group.id, updated)
        else:
            self._revocation_timers.stop(group.id, updated.id)
        return updated

    # --- leaving

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[CoordinatorResult, ConsumerGroupHeartbeatResponse]:
        group = self.groups.get(request.group_id)
        if group is None:
            other = self._registry.find(request.group_id)
            raise _not_found(request.group_id, other, f"Group {request.group_id} not found.")
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.instance_id is None:
            return self.remove(group, [group.member(request.member_id)]), response
        member = group.known_static_member(request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            self._logger.info(
                "Group %s: static member %s with instance id %s temporarily left (member epoch -2)",
                *(group.id, request.member_id, request.instance_id),
            )
            return CoordinatorResult([member.after_static_leave().assignment_record(group.id)]), response
        return self.remove(group, [member]), response

    def leave_group(
        self, group: ConsumerGroup, leaving: Iterable[MemberIdentity]
    ) -> tuple[CoordinatorResult, LeaveGroupResponse]:
        """Handle LeaveGroup for members of either protocol.

        Requests of admin clients contain only instance ids.
        """
        members: dict[str, ConsumerGroupMember] = {}
        responses: list[MemberResponse] = []
        for identity in leaving:
            instance_id = identity.group_instance_id
            response = MemberResponse(member_id=identity.member_id, group_instance_id=instance_id)
            responses.append(response)
            try:
                member = group.leaving_member(identity.member_id, instance_id)
            except ApiError as error:
                response.error_code = error.code
            else:
                members[member.id] = member
        result = self.remove(group, list(members.values())) if members else EMPTY_RESULT
        return result, LeaveGroupResponse(members=responses)

    def remove(self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]) -> CoordinatorResult:
        """Remove members, which frees their partitions and bumps the group epoch.

        If only classic members remain, the group becomes a classic group, if possible.
        """
        downgrade = self.migration.downgrade(group, members)
        if downgrade is not None:
            return downgrade
        records: list[CoordinatorRecord] = []
        for member in members:
            self._logger.info("Group %s: removing member %s", group.id, member.id)
            records += removal_records(group.id, member.id)
        records += self.subscriptions.removal_records(group, members)
        for member in members:
            self.stop_timers(group.id, member.id)
        return CoordinatorResult(records)

    # --- timers

    def start_session(self, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
        """Restart the session of a member. `timeout_ms` defaults to the group's session timeout."""
        if timeout_ms is None:
            timeout_ms = self._settings.session_timeout_ms(group_id)
        if not self._session_timers.postpone(group_id, member_id, timeout_ms):
            self._session_timers.start(
                group_id,
                member_id,
                timeout_ms,
                lambda: self.fence(group_id, member_id, "session timed out"),
            )

    def _start_revocation(self, group_id: str, member: ConsumerGroupMember) -> None:
        def over() -> CoordinatorResult:
            group = self.groups.get(group_id)
            known = None if group is None else group.members.get(member.id)
            if known is None or known.epoch != member.epoch:
                return EMPTY_RESULT
            return self.fence(
                group_id,
                member.id,
                f"partitions not revoked at member epoch {member.epoch} within its rebalance timeout",
            )

        self._revocation_timers.start(group_id, member.id, member.rebalance_timeout_ms, over)

    def fence(self, group_id: str, member_id: str, reason: str) -> CoordinatorResult:
        """Remove a member that has missed a deadline."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return EMPTY_RESULT
        self._logger.info("Group %s: fencing member %s: %s", group_id, member_id, reason)
        return self.remove(group, [member])

    def stop_timers(self, group_id: str, member_id: str) -> None:
        self._session_timers.stop(group_id, member_id)
        self._revocation_timers.stop(group_id, member_id)
        self.migration.stop_timers(group_id, member_id)

    # --- the group coordinator

    def describe(self, group_id: str, *, only_committed: bool) -> DescribedGroup | None:
        group = self.groups.get(group_id)
        if only_committed and self._uncommitted.is_pending(group_id):
            group = self._uncommitted.committed_group(group_id, self._logger)
            if group is None:
                raise group_not_found(group_id)
        return None if group is None else describe_group(group, self._topics, self.default_assignor)

    def replay(self, key: Any, value: Any, _offset: int) -> None:
        group_id: str = key.group_id
        group = self.groups.get(group_id)
        if value is None:
            # After compaction, tombstones may be all that remains of a group.
            if group is None:
                return
            if isinstance(key, ConsumerGroupMetadataKey):
                del self.groups[group_id]
                return
        elif group is None:
            self._registry.release(group_id)
            group = self.groups[group_id] = ConsumerGroup(group_id, self._logger)
        group.replay(key, value)

    def record_pending(self, key: Any) -> None:
        self._uncommitted.record_pending(key.group_id, key, self.groups.get(key.group_id))

    def record_committed(self, key: Any) -> None:
        self._uncommitted.record_committed(key.group_id)

    def on_loaded(self) -> None:
        """Start a full session, and the revocation timer if necessary, of every loaded member."""
        for group in self.groups.values():
            for member in group.members.values():
                self.start_session(group.id, member.id)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    self._start_revocation(group.id, member)

    def on_unloaded(self, _code: ErrorCode) -> None:
        self._session_timers.stop_all()
        self._revocation_timers.stop_all()
        self.migration.on_unloaded()

    def topics_changed(self, names: Iterable[str], *, created: bool) -> None:
        self.subscriptions.topics_changed(names, created=created)


def _not_found(group_id: str, other: Group | None, text: str) -> ApiError:
    if other is not None:
        text = f"Group {group_id} is not a consumer group."
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _check_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned | None) -> None:
    """Check the member epoch in a request.

    The previous epoch is accepted if the member owns no partition outside of its current assignment. Such a
    member may have missed the response with the new epoch. Raises ApiError FENCED_MEMBER_EPOCH if the member
    must abandon its partitions and rejoin.
    """
    if epoch in (JOINING_EPOCH, member.epoch):
        return
    if epoch > member.epoch:
        relation = "greater"
    elif epoch == member.previous_epoch and _is_within(owned, member):
        return
    else:
        relation = "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_within(owned: Owned | None, member: ConsumerGroupMember) -> bool:
    if owned is None:
        return False
    return all(
        topic_id in member.assigned
        and all(partition in member.assigned[topic_id] for partition in partitions)
        for topic_id, partitions in owned.items()
    )
