"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and their timers.

A rebalance has two phases. The join phase waits until every member has sent JoinGroup, or until the rebalance
timeout. Then each member receives the new generation, and the leader the member list. The sync phase waits
for the leader's assignment, which is stored before members receive theirs. Sessions may time out in either
phase. KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (required member
ids).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kwire.coordinator.groups.classic.group import ClassicGroup
from kwire.coordinator.groups.classic.group import ClassicGroupState as State
from kwire.coordinator.groups.classic.member import ClassicGroupMember
from kwire.coordinator.groups.classic_protocol import JoinDone, JoinRequest, SyncDone, SyncRequest
from kwire.coordinator.groups.errors import response_error
from kwire.coordinator.groups.group_type import GroupRegistry, GroupsOfType
from kwire.coordinator.groups.offsets import OffsetCommit
from kwire.coordinator.state_machine import (
    EMPTY_RESULT,
    CoordinatorResult,
    HeartbeatFastPath,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.describe_groups import DescribedGroup
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.plural import plural
from kwire.wire.records.groups import GroupMetadataKey, GroupMetadataValue

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""The time for which a member without a generation may wait in the join phase; Kafka's constant."""


class ClassicGroups(GroupsOfType[ClassicGroup, DescribedGroup]):
    """The classic groups of one partition of `__consumer_offsets`."""

    def __init__(self, registry: GroupRegistry) -> None:
        super().__init__(registry)
        self.classic_protocol = self

    # --- requests

    def join(self, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        """Handle JoinGroup. `done` is called once: at the end of the join phase, or earlier.

        An early response has an error, a new member id (MEMBER_ID_REQUIRED), or the current generation for a
        member that rejoins without a rebalance.
        """
        group = self.groups.get(join.group_id)
        is_new_group = group is None
        if group is None:
            owner = self._registry.owner(join.group_id)
            if owner is not None and owner.classic_protocol is None:
                done(_join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
                return EMPTY_RESULT
            if join.member_id:
                done(_join_error(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id))
                return EMPTY_RESULT
            group = self.create(join.group_id)
        if not self._accepts_member(group, join.member_id):
            group.remove(join.member_id)
            done(_join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
            result = EMPTY_RESULT
        elif not group.supports(join.protocol_type, join.protocols):
            done(_join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join.member_id))
            result = EMPTY_RESULT
        elif not join.member_id:
            result = self._join_new_member(group, join, done)
        else:
            result = self._join_existing_member(group, join, done)
        if is_new_group and not result.records:
            # Without this record, a restart would lose a group whose members have not completed a join.
            return CoordinatorResult([group.empty_record()], lambda error: self._created(group, error))
        return result

    def _created(self, group: ClassicGroup, error: ApiError | None) -> None:
        """Remove a new group if its record was refused."""
        # After a timeout, the record may still be committed.
        if error is None or error.code is ErrorCode.REQUEST_TIMED_OUT:
            return
        self.remove_group(group)
        for member in list(group.members.values()):
            group.complete_join(member, _join_error(response_error(error)))

    def sync(self, sync: SyncRequest, done: SyncDone) -> CoordinatorResult:
        """Handle SyncGroup: store the assignments that a leader sends, and return the member's assignment.

        Responses wait until the leader's assignments are committed.
        """
        group = self.groups.get(sync.group_id)
        if group is None or group.state is State.EMPTY:
            done(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return EMPTY_RESULT
        try:
            member = group.check_member(sync.member_id, sync.instance_id)
            if sync.generation != group.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            if (sync.protocol_type is not None and sync.protocol_type != group.protocol_type) or (
                sync.protocol is not None and sync.protocol != group.protocol
            ):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group.state is State.PREPARING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            done(SyncGroupResponse(error_code=error.code))
            return EMPTY_RESULT
        group.pending_syncs.discard(member.id)
        if not group.pending_syncs:
            group.stop_sync_timer()
        if group.state is State.STABLE:
            done(group.sync_response(member))
            return EMPTY_RESULT
        member.sync_done = done
        if member.id == group.leader:
            return self._store_assignment(group, sync)
        return EMPTY_RESULT

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Handle Heartbeat: renew the session and return the error code."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        try:
            member = group.check_member(member_id, instance_id)
        except ApiError as error:
            return error.code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.renew_session(group, member)
        if group.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def heartbeat_fast_path(self, group_id: str, generation: int, member_id: str) -> HeartbeatFastPath | None:
        """Return the fast path for a repeated heartbeat of a member, or None if there is no such member."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        stable = State.STABLE

        def again() -> bool:
            # A removed or unloaded group has no sessions, and a replaced static member has another id.
            return (
                group.state is stable
                and group.generation == generation
                and group.members.get(member_id) is member
                and member.session is not None
                and member.session.postpone(member.session_timeout_ms)
            )

        return again

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity]
    ) -> tuple[CoordinatorResult, LeaveGroupResponse]:
        """Handle LeaveGroup. Admin clients remove static members by instance id, without a member id."""
        group = self.groups.get(group_id)
        if group is None:
            return EMPTY_RESULT, LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, members=[])
        responses: list[MemberResponse] = []
        left: list[str] = []
        for identity in leaving:
            error_code = ErrorCode.NONE
            try:
                left.append(self._remove_leaving(group, identity))
            except ApiError as error:
                error_code = error.code
            responses.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=error_code,
                )
            )
        result = EMPTY_RESULT
        if left:
            if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
                result = self._rebalance(group, f"{', '.join(left)} left")
            elif group.state is State.PREPARING_REBALANCE:
                result = self._maybe_complete_join(group)
        return result, LeaveGroupResponse(members=responses)

    # --- groups

    def check_commit(self, group: ClassicGroup, commit: OffsetCommit, *, is_transactional: bool) -> None:
        """Check the sender of a commit, and renew its session. Raises the errors of `committing_member`."""
        member = group.committing_member(commit, is_transactional=is_transactional)
        if member is not None:
            self.renew_session(group, member)

    def describe(self, group_id: str, *, only_committed: bool) -> DescribedGroup | None:
        """Describe a group, always with changes that are not committed, as in Apache Kafka."""
        group = self.groups.get(group_id)
        return None if group is None else group.describe()

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None, _offset: int) -> None:
        self._registry.release(key.group)
        if value is not None:
            self.groups[key.group] = ClassicGroup.from_record(key.group, value, self._context.now_ms())

    def create(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(group_id, self._context.now_ms())
        self.groups[group_id] = group
        return group

    def adopt(self, group: ClassicGroup, rebalance: str | None) -> CoordinatorResult:
        """Add a group converted from a consumer group.

        `rebalance` is the reason to start a rebalance, or None for no rebalance.
        """
        self.groups[group.id] = group
        for member in group.members.values():
            self.renew_session(group, member)
        return EMPTY_RESULT if rebalance is None else self._rebalance(group, rebalance)

    def on_loaded(self) -> None:
        """Start a full session for every loaded member. Groups above group.max.size rebalance."""
        for group in list(self.groups.values()):
            for member in list(group.members.values()):
                self.renew_session(group, member)
            if len(group.members) > self._config.group_max_size:
                # The size limit was lowered. The members that rejoin last are refused.
                self._rebalance(group, "the group exceeds group.max.size")

    def on_unloaded(self, code: ErrorCode) -> None:
        """Remove all groups, and complete all waiting requests with `code`."""
        for group in list(self.groups.values()):
            self.remove_group(group)
            for member in list(group.members.values()):
                group.complete_join(member, _join_error(code, member.id))
                group.complete_sync(member, SyncGroupResponse(error_code=code))

    def discard(self, group_id: str) -> None:
        self.remove_group(self.groups[group_id])

    def remove_group(self, group: ClassicGroup) -> None:
        """Remove a group from memory, as Dead, and stop all its timers."""
        if self.groups.get(group.id) is group:
            del self.groups[group.id]
        group.state = State.DEAD
        group.stop_join_timer()
        group.stop_sync_timer()
        for member_id in list(group.pending_joins):
            group.remove_pending_join(member_id)
        for member in group.members.values():
            if member.session is not None:
                member.session.cancel()

    def renew_session(
        self, group: ClassicGroup, member: ClassicGroupMember, timeout_ms: int | None = None
    ) -> None:
        """Restart the session of a member that has sent a request.

        `timeout_ms` defaults to the member's session timeout.
        """
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        session = member.session
        if session is not None:
            if session.postpone(timeout_ms):
                return
            session.cancel()
        member.session = self._context.schedule(timeout_ms, lambda: self._session_timed_out(group, member))

    # --- joining

    def _accepts_member(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING_REBALANCE:
            # Count only members that rejoined: if the limit was lowered, the last members are refused.
            if member is not None and member.join_done is not None:
                return True
            return group.joined_count < self._config.group_max_size
        return member is not None or len(group.members) < self._config.group_max_size

    def _join_new_member(self, group: ClassicGroup, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        prefix = join.client_id if join.instance_id is None else join.instance_id
        member_id = f"{prefix}-{self._context.new_uuid()}"
        if join.instance_id is not None:
            if join.instance_id in group.static_member_ids:
                return self._replace_static(group, join.instance_id, member_id, join, done)
            return self._add_member(group, member_id, join, done)
        if not join.requires_member_id:
            return self._add_member(group, member_id, join, done)
        group.pending_joins[member_id] = self._context.schedule(
            join.session_timeout_ms, lambda: self._pending_join_timed_out(group, member_id)
        )
        done(_join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return EMPTY_RESULT

    def _join_existing_member(
        self, group: ClassicGroup, join: JoinRequest, done: JoinDone
    ) -> CoordinatorResult:
        member_id = join.member_id
        if member_id in group.pending_joins and join.instance_id is None:
            return self._add_member(group, member_id, join, done)
        try:
            member = group.check_member(member_id, join.instance_id)
        except ApiError as error:
            done(_join_error(error.code, member_id))
            return EMPTY_RESULT
        unchanged = member.protocols == tuple(join.protocols)
        if (group.state is State.COMPLETING_REBALANCE and unchanged) or (
            group.state is State.STABLE and unchanged and member_id != group.leader
        ):
            # The member may have missed its response. The leader of a Stable group is an exception: it joins
            # to request a rebalance, since it has seen a change that affects the assignment.
            done(group.join_response(member_id))
            return EMPTY_RESULT
        self._update(group, member, join, done)
        return self._rebalance(group, f"{member_id} rejoined ({join.reason or 'no reason given'})")

    def _add_member(
        self, group: ClassicGroup, member_id: str, join: JoinRequest, done: JoinDone
    ) -> CoordinatorResult:
        member = ClassicGroupMember(
            member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=join.session_timeout_ms,
            protocol_type=join.protocol_type,
            protocols=join.protocols,
        )
        member.is_new = True
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.new_member_added = True
        group.add(member)
        member.join_done = done
        self.renew_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance(group, f"{member_id} joined ({join.reason or 'no reason given'})")

    @staticmethod
    def _update(group: ClassicGroup, member: ClassicGroupMember, join: JoinRequest, done: JoinDone) -> None:
        group.change_protocols(member, join.protocols)
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        member.join_done = done

    def _replace_static(
        self, group: ClassicGroup, instance_id: str, member_id: str, join: JoinRequest, done: JoinDone
    ) -> CoordinatorResult:
        old_leader = group.leader
        old_id = group.static_member_ids[instance_id]
        member = group.replace_static(instance_id, member_id)
        previous = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._update(group, member, join, done)
        self.renew_session(group, member)
        if group.state is State.PREPARING_REBALANCE:
            return self._maybe_complete_join(group)
        if group.state is not State.STABLE or group.select_protocol() != group.protocol:
            # The leader may be assigning partitions to the old member id now, so the new id would get none.
            return self._rebalance(group, f"static member {instance_id} rejoined as {member_id}")

        def stored(error: ApiError | None) -> None:
            if group.members.get(member_id) is not member:
                return
            if error is None:
                if join.can_skip_assignment:
                    skip = group.leader == member_id
                    group.complete_join(member, group.join_response(member_id, skip_assignment=skip))
                else:
                    # Before v9, the response must name another leader, or this member computes an assignment.
                    response = group.join_response(member_id)
                    response.leader = old_leader or ""
                    response.members = []
                    group.complete_join(member, response)
                return
            member.join_done = None
            protocols, member.rebalance_timeout_ms, member.session_timeout_ms = previous
            group.change_protocols(member, protocols)
            self.renew_session(group, group.replace_static(instance_id, old_id))
            done(
                JoinGroupResponse(
                    error_code=response_error(error),
                    generation_id=group.generation,
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol,
                    leader=old_leader or "",
                    member_id="",
                    members=[],
                )
            )

        return CoordinatorResult([group.record()], stored)

    # --- rebalancing

    def _rebalance(self, group: ClassicGroup, reason: str) -> CoordinatorResult:
        """Start a rebalance, or end the join phase of the current rebalance if all members have joined."""
        if not group.can_rebalance:
            return self._maybe_complete_join(group)
        if group.state is State.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self._complete_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        group.stop_sync_timer()
        is_first = group.state is State.EMPTY
        group.transition_to(State.PREPARING_REBALANCE, self._context.now_ms())
        self._logger.info(
            "Group %s: preparing to rebalance, old generation %d (reason: %s)",
            group.id,
            group.generation,
            reason,
        )
        if is_first:
            # KIP-134: the consumers of an application start one by one. Wait, so that they rebalance once.
            delay_ms = self._config.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._start_join_timer(
                group, delay_ms, lambda: self._initial_delay_passed(group, delay_ms, remaining_ms)
            )
            return EMPTY_RESULT
        if group.all_joined:
            return self._complete_join(group)
        self._start_join_timer(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
        return EMPTY_RESULT

    def _initial_delay_passed(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int
    ) -> CoordinatorResult:
        if not group.new_member_added or remaining_ms == 0:
            return self._complete_join(group)
        group.new_member_added = False
        next_delay_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
        next_remaining_ms = max(remaining_ms - delay_ms, 0)
        self._start_join_timer(
            group, next_delay_ms, lambda: self._initial_delay_passed(group, next_delay_ms, next_remaining_ms)
        )
        return EMPTY_RESULT

    def _maybe_complete_join(self, group: ClassicGroup) -> CoordinatorResult:
        if group.state is not State.PREPARING_REBALANCE or group.previous_state is State.EMPTY:
            return EMPTY_RESULT
        return self._complete_join(group) if group.all_joined else EMPTY_RESULT

    def _complete_join(self, group: ClassicGroup) -> CoordinatorResult:
        """Complete the join phase. Dynamic members that have not joined are removed; static members stay.

        If only static members remain and none has joined, the phase starts again.
        """
        group.stop_join_timer()
        for member in list(group.members.values()):
            if member.join_done is None and not member.is_static:
                group.remove(member.id)
        if group.members and not group.elect_joined_leader():
            self._start_join_timer(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            return EMPTY_RESULT
        group.next_generation(self._context.now_ms())
        group.new_member_added = False
        if not group.members:
            self._logger.info("Group %s with generation %d is now empty", group.id, group.generation)
            return CoordinatorResult([group.record({})], lambda error: self._warn_not_stored(group, error))
        self._logger.info(
            "Group %s: stabilized generation %d with %s",
            group.id,
            group.generation,
            plural(len(group.members), "member"),
        )
        for member in list(group.members.values()):
            group.complete_join(member, group.join_response(member.id))
            self.renew_session(group, member)
            member.is_new = False
            group.pending_syncs.add(member.id)
        generation = group.generation
        group.stop_sync_timer()
        group.sync_timer = self._context.schedule(
            group.rebalance_timeout_ms, lambda: self._sync_timed_out(group, generation)
        )
        return EMPTY_RESULT

    def _store_assignment(self, group: ClassicGroup, sync: SyncRequest) -> CoordinatorResult:
        given = dict(sync.assignments)
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def stored(error: ApiError | None) -> None:
            # If a member joined meanwhile, this generation is over and all its requests were completed.
            if group.state is not State.COMPLETING_REBALANCE or group.generation != sync.generation:
                return
            if error is None:
                for member in group.members.values():
                    member.assignment = assignments.get(member.id, b"")
                self._complete_syncs(group, ErrorCode.NONE)
                group.transition_to(State.STABLE, self._context.now_ms())
                self._registry.rebalances.classic_completed += 1
                return
            for member in group.members.values():
                member.assignment = b""
            self._complete_syncs(group, response_error(error))
            self._rebalance(group, f"its assignment could not be stored: {error.code.name}")

        return CoordinatorResult([group.record(assignments)], stored)

    def _complete_syncs(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in list(group.members.values()):
            response = (
                group.sync_response(member)
                if code == ErrorCode.NONE
                else SyncGroupResponse(error_code=code, assignment=b"")
            )
            if group.complete_sync(member, response):
                # The session timeout was ignored while the request waited.
                self.renew_session(group, member)

    # --- leaving and timers

    def _remove_leaving(self, group: ClassicGroup, identity: MemberIdentity) -> str:
        if identity.member_id in group.pending_joins:
            group.remove(identity.member_id)
            return identity.member_id
        member = group.leaving_member(identity.member_id, identity.group_instance_id)
        self._remove_member(group, member)
        return member.id

    @staticmethod
    def _remove_member(group: ClassicGroup, member: ClassicGroupMember) -> None:
        # UNKNOWN_MEMBER_ID makes a live client join again as a new member.
        group.complete_join(member, _join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        group.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.id)

    def _warn_not_stored(self, group: ClassicGroup, error: ApiError | None) -> None:
        # A restart would load the last stored generation, whose members would then time out.
        if error is not None:
            self._logger.warning(
                "Group %s: cannot store that the group is empty: %s. A new coordinator would load the "
                "previous members, which then time out",
                *(group.id, error.code.name),
            )

    def _session_timed_out(self, group: ClassicGroup, member: ClassicGroupMember) -> CoordinatorResult:
        if group.members.get(member.id) is not member or member.ignores_session_timeout:
            return EMPTY_RESULT
        self._logger.info("Group %s: removing member %s: session timed out", group.id, member.id)
        self._remove_member(group, member)
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            return self._rebalance(group, f"session of {member.id} timed out")
        if group.state is State.PREPARING_REBALANCE and group.all_joined:
            return self._complete_join(group)
        return EMPTY_RESULT

    def _pending_join_timed_out(self, group: ClassicGroup, member_id: str) -> CoordinatorResult:
        if member_id not in group.pending_joins:
            return EMPTY_RESULT
        group.remove(member_id)
        if group.state is State.PREPARING_REBALANCE and group.all_joined:
            return self._complete_join(group)
        return EMPTY_RESULT

    def _sync_timed_out(self, group: ClassicGroup, generation: int) -> CoordinatorResult:
        if generation != group.generation or not group.pending_syncs:
            return EMPTY_RESULT
        if group.state not in (State.COMPLETING_REBALANCE, State.STABLE):
            return EMPTY_RESULT
        missing = sorted(group.pending_syncs)
        for member_id in missing:
            group.remove(member_id)
        return self._rebalance(group, f"no SyncGroup from {', '.join(missing)}")

    def _start_join_timer(
        self, group: ClassicGroup, delay_ms: int, command: Callable[[], CoordinatorResult]
    ) -> None:
        group.stop_join_timer()
        group.join_timer = self._context.schedule(delay_ms, command)


def _join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id, members=[])
