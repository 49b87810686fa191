"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the timers behind them.

A rebalance has two barriers. The join waits until every member has sent JoinGroup (or the rebalance timeout
ends it); then each is told the new generation, and its leader all members. The sync waits for the leader's
assignment, which is stored before anyone gets theirs. Sessions time out in between. KIP-62 (rebalance
timeout), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member ids before joining).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kwire.coordinator.groups.classic.group import ClassicGroup, ClassicGroupState
from kwire.coordinator.groups.classic.member import ClassicGroupMember, JoinDone, Protocols, SyncDone
from kwire.coordinator.groups.errors import response_error
from kwire.coordinator.state_machine import (
    EMPTY_RESULT,
    CoordinatorContext,
    CoordinatorResult,
    HeartbeatFastPath,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.named_tuple import NamedTuple

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that never got a generation may wait in a join; Kafka's constant."""


class ClassicConfig(Protocol):
    """The configuration keys that classic groups need."""

    @property
    def group_max_size(self) -> int: ...
    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...


class JoinRequest(NamedTuple):
    """A JoinGroup request, with what its version implies."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    reason: str | None = None
    requires_member_id: bool = True
    """Whether a dynamic member is given an id first and must join with it (v4, KIP-394)."""
    can_skip_assignment: bool = True
    """Whether a returning static leader can be told to keep the assignment (v9)."""


class SyncRequest(NamedTuple):
    """A SyncGroup request. Protocol type and name are None before v5."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Sequence[tuple[str, bytes]]


class ClassicGroups:
    """The classic groups of one partition of the offsets topic."""

    def __init__(self, config: ClassicConfig, context: CoordinatorContext) -> None:
        self._config = config
        self._context = context
        self._logger = context.logger("kwire.groups")
        self.groups: dict[str, ClassicGroup] = {}

    # --- requests

    def join(self, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        """Become a member, or come to the next generation. `done` is called once, maybe much later."""
        group = self.groups.get(join.group_id)
        is_new_group = group is None
        if group is None:
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
            # Without this, a group whose members never finished joining would be forgotten by a restart.
            return CoordinatorResult([group.empty_record()], lambda error: self._created(group, error))
        return result

    def _created(self, group: ClassicGroup, error: ApiError | None) -> None:
        """A new group is stored, or was refused, and then there is none."""
        # What takes too long may still be stored.
        if error is None or error.code is ErrorCode.REQUEST_TIMED_OUT:
            return
        self.remove_group(group)
        for member in list(group.members.values()):
            group.complete_join(member, _join_error(response_error(error)))

    def sync(self, sync: SyncRequest, done: SyncDone) -> CoordinatorResult:
        """Get the assignment of a generation; from the leader, also set it."""
        group = self.groups.get(sync.group_id)
        if group is None or group.state is ClassicGroupState.EMPTY:
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
            if group.state is ClassicGroupState.PREPARING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            done(SyncGroupResponse(error_code=error.code))
            return EMPTY_RESULT
        group.pending_syncs.discard(member.id)
        if not group.pending_syncs:
            self._stop_sync_timer(group)
        if group.state is ClassicGroupState.STABLE:
            done(_sync_response(group, member))
            return EMPTY_RESULT
        member.sync_done = done
        if member.id == group.leader:
            return self._store_assignment(group, sync)
        return EMPTY_RESULT

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Keep a session alive. NONE, or what the member must do instead."""
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
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def heartbeat_fast_path(self, group_id: str, generation: int, member_id: str) -> HeartbeatFastPath | None:
        """The heartbeat of a member of a stable group, which was answered with NONE, once more."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        stable = ClassicGroupState.STABLE

        def again() -> bool:
            # A group that is gone, or has gone elsewhere, has no sessions; a static member that was replaced
            # has another id.
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
        """Take members out, by member id or (for administrators) by instance id alone. One answer each."""
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
            if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
                result = self._rebalance(group, f"{', '.join(left)} left")
            elif group.state is ClassicGroupState.PREPARING_REBALANCE:
                result = self._maybe_complete_join(group)
        return result, LeaveGroupResponse(members=responses)

    # --- life of groups

    def create(self, group_id: str) -> ClassicGroup:
        """A new, empty group."""
        group = ClassicGroup(group_id, self._context.now_ms())
        self.groups[group_id] = group
        return group

    def adopt(self, group: ClassicGroup, rebalance: str | None) -> CoordinatorResult:
        """Serve a group that was of another kind: sessions start, and, if there is a reason, a rebalance."""
        self.groups[group.id] = group
        for member in group.members.values():
            self.renew_session(group, member)
        return EMPTY_RESULT if rebalance is None else self._rebalance(group, rebalance)

    def on_loaded(self) -> None:
        """The log is replayed: every member gets a whole session to come back."""
        for group in list(self.groups.values()):
            for member in list(group.members.values()):
                self.renew_session(group, member)
            if len(group.members) > self._config.group_max_size:
                # The limit may have been lowered since: whoever rejoins late does not get in.
                self._rebalance(group, "it is over its greatest size")

    def on_unloaded(self, code: ErrorCode) -> None:
        """The partition goes elsewhere: whoever waits is told `code`."""
        for group in list(self.groups.values()):
            self.remove_group(group)
            for member in list(group.members.values()):
                group.complete_join(member, _join_error(code, member.id))
                group.complete_sync(member, SyncGroupResponse(error_code=code))

    def remove_group(self, group: ClassicGroup) -> None:
        """Drop a group from memory, with all its timers."""
        if self.groups.get(group.id) is group:
            del self.groups[group.id]
        group.state = ClassicGroupState.DEAD
        self._stop_join_timer(group)
        self._stop_sync_timer(group)
        for member_id in list(group.pending_joins):
            group.remove_pending_join(member_id)
        for member in group.members.values():
            if member.session is not None:
                member.session.cancel()

    def renew_session(
        self, group: ClassicGroup, member: ClassicGroupMember, timeout_ms: int | None = None
    ) -> None:
        """The member was heard of: its session starts again."""
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
        if group.state is ClassicGroupState.EMPTY:
            return True
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            # Those who wait are counted, not the members: when the limit was lowered, the last lose.
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
        if (group.state is ClassicGroupState.COMPLETING_REBALANCE and unchanged) or (
            group.state is ClassicGroupState.STABLE and unchanged and member_id != group.leader
        ):
            # It may not have received its answer. A Stable group's leader asks for a rebalance by joining:
            # it has seen something that changes the assignment.
            done(group.join_response(member_id))
            return EMPTY_RESULT
        self._update(group, member, join, done)
        return self._rebalance(group, f"{member_id} joined again ({join.reason or 'no reason given'})")

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
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is ClassicGroupState.EMPTY
        ):
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
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            return self._maybe_complete_join(group)
        if group.state is not ClassicGroupState.STABLE or group.select_protocol() != group.protocol:
            # The leader may be assigning to the old id right now, so the new one would get nothing.
            return self._rebalance(group, f"static member {instance_id} came back as {member_id}")

        def stored(error: ApiError | None) -> None:
            if group.members.get(member_id) is not member:
                return
            if error is None:
                if join.can_skip_assignment:
                    skip = group.leader == member_id
                    group.complete_join(member, group.join_response(member_id, skip_assignment=skip))
                else:
                    # Before v9 a leader could only be kept from assigning by naming another one.
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
        """Begin a rebalance, or, where one is under way, end its join if that waits for nobody."""
        if not group.can_rebalance:
            return self._maybe_complete_join(group)
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self._complete_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._stop_sync_timer(group)
        is_first = group.state is ClassicGroupState.EMPTY
        group.move(ClassicGroupState.PREPARING_REBALANCE, self._context.now_ms())
        self._logger.info("group %s rebalances after generation %d: %s", group.id, group.generation, reason)
        if is_first:
            # Consumers of one application start one after the other: wait a little, rebalance once.
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
        if (
            group.state is not ClassicGroupState.PREPARING_REBALANCE
            or group.previous_state is ClassicGroupState.EMPTY
        ):
            return EMPTY_RESULT
        return self._complete_join(group) if group.all_joined else EMPTY_RESULT

    def _complete_join(self, group: ClassicGroup) -> CoordinatorResult:
        """Close the join: dynamic members who did not come are out, static ones stay until a session ends."""
        self._stop_join_timer(group)
        for member in list(group.members.values()):
            if member.join_done is None and not member.is_static:
                group.remove(member.id)
        if group.members and not group.elect_joined_leader():
            self._start_join_timer(group, group.rebalance_timeout_ms, lambda: self._complete_join(group))
            return EMPTY_RESULT
        group.next_generation(self._context.now_ms())
        group.new_member_added = False
        if not group.members:
            self._logger.info("group %s is empty at generation %d", group.id, group.generation)
            return CoordinatorResult([group.record({})], lambda error: self._warn_not_stored(group, error))
        self._logger.info(
            "group %s is at generation %d with %d members", group.id, group.generation, len(group.members)
        )
        for member in list(group.members.values()):
            group.complete_join(member, group.join_response(member.id))
            self.renew_session(group, member)
            member.is_new = False
            group.pending_syncs.add(member.id)
        generation = group.generation
        self._stop_sync_timer(group)
        group.sync_timer = self._context.schedule(
            group.rebalance_timeout_ms, lambda: self._sync_timed_out(group, generation)
        )
        return EMPTY_RESULT

    def _store_assignment(self, group: ClassicGroup, sync: SyncRequest) -> CoordinatorResult:
        given = dict(sync.assignments)
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def stored(error: ApiError | None) -> None:
            # Someone may have joined meanwhile; then this generation is over and all was said.
            if (
                group.state is not ClassicGroupState.COMPLETING_REBALANCE
                or group.generation != sync.generation
            ):
                return
            if error is None:
                for member in group.members.values():
                    member.assignment = assignments.get(member.id, b"")
                self._complete_syncs(group, ErrorCode.NONE)
                group.move(ClassicGroupState.STABLE, self._context.now_ms())
                return
            for member in group.members.values():
                member.assignment = b""
            self._complete_syncs(group, response_error(error))
            self._rebalance(group, f"its assignment could not be stored: {error.code.name}")

        return CoordinatorResult([group.record(assignments)], stored)

    def _complete_syncs(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in list(group.members.values()):
            response = (
                _sync_response(group, member)
                if code == ErrorCode.NONE
                else SyncGroupResponse(error_code=code, assignment=b"")
            )
            if group.complete_sync(member, response):
                # Its session was not watched while it waited here.
                self.renew_session(group, member)

    # --- leaving, and time

    def _remove_leaving(self, group: ClassicGroup, identity: MemberIdentity) -> str:
        if identity.member_id in group.pending_joins:
            group.remove(identity.member_id)
            return identity.member_id
        if identity.member_id:
            member = group.check_member(identity.member_id, identity.group_instance_id)
        else:
            member_id = group.static_member_ids.get(identity.group_instance_id or "")
            if member_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            member = group.members[member_id]
        self._remove_member(group, member)
        return member.id

    @staticmethod
    def _remove_member(group: ClassicGroup, member: ClassicGroupMember) -> None:
        # Told UNKNOWN_MEMBER_ID, a client that is still there joins anew.
        group.complete_join(member, _join_error(ErrorCode.UNKNOWN_MEMBER_ID))
        group.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.id)

    def _warn_not_stored(self, group: ClassicGroup, error: ApiError | None) -> None:
        # A restart would bring the last stored generation back, whose members would then time out.
        if error is not None:
            self._logger.warning(
                "group %s: the empty generation was not stored: %s", group.id, error.code.name
            )

    def _session_timed_out(self, group: ClassicGroup, member: ClassicGroupMember) -> CoordinatorResult:
        if group.members.get(member.id) is not member or member.ignores_session_timeout:
            return EMPTY_RESULT
        self._logger.info("group %s: the session of %s is over", group.id, member.id)
        self._remove_member(group, member)
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
            return self._rebalance(group, f"the session of {member.id} is over")
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.all_joined:
            return self._complete_join(group)
        return EMPTY_RESULT

    def _pending_join_timed_out(self, group: ClassicGroup, member_id: str) -> CoordinatorResult:
        if member_id not in group.pending_joins:
            return EMPTY_RESULT
        group.remove(member_id)
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.all_joined:
            return self._complete_join(group)
        return EMPTY_RESULT

    def _sync_timed_out(self, group: ClassicGroup, generation: int) -> CoordinatorResult:
        if generation != group.generation or not group.pending_syncs:
            return EMPTY_RESULT
        if group.state not in (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE):
            return EMPTY_RESULT
        missing = sorted(group.pending_syncs)
        for member_id in missing:
            group.remove(member_id)
        return self._rebalance(group, f"no SyncGroup from {', '.join(missing)}")

    def _start_join_timer(
        self, group: ClassicGroup, delay_ms: int, command: Callable[[], CoordinatorResult]
    ) -> None:
        self._stop_join_timer(group)
        group.join_timer = self._context.schedule(delay_ms, command)

    @staticmethod
    def _stop_join_timer(group: ClassicGroup) -> None:
        timer, group.join_timer = group.join_timer, None
        if timer is not None:
            timer.cancel()

    @staticmethod
    def _stop_sync_timer(group: ClassicGroup) -> None:
        timer, group.sync_timer = group.sync_timer, None
        if timer is not None:
            timer.cancel()


def _join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id, members=[])


def _sync_response(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
