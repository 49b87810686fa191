"""The state of a classic group: its members, its generation, and its valid state transitions.

This module has no timers and writes no records; `coordinator.groups.classic.rebalance` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from kwire.coordinator.groups.classic.member import ClassicGroupMember
from kwire.coordinator.groups.classic_protocol import Protocols
from kwire.coordinator.groups.group_type import Group, since_commit
from kwire.coordinator.groups.offsets import CommittedOffset, OffsetCommit
from kwire.coordinator.state_machine import CoordinatorRecord, TimerHandle
from kwire.wire.codegen import decoder
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from kwire.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from kwire.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.records.groups import GroupMetadataKey, GroupMetadataValue, MemberMetadata

CONSUMER_PROTOCOL_TYPE = "consumer"
GROUP_METADATA_VERSION = 3
"""The version of GroupMetadataValue that Kafka has written since version 2.3."""


class ClassicGroupState(Enum):
    """The states of a classic group. Each value is the state's name in responses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_TRANSITIONS: Final[Mapping[ClassicGroupState, frozenset[ClassicGroupState]]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.DEAD}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.EMPTY, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset(
        {ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.STABLE, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.PREPARING_REBALANCE, ClassicGroupState.DEAD}),
    ClassicGroupState.DEAD: frozenset(),
}
"""The valid next states of each state."""


class ClassicGroup(Group):
    state: ClassicGroupState
    __slots__ = (
        "_protocol_counts",
        "generation",
        "id",
        "join_timer",
        "leader",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_member_ids",
        "subscribed_topics",
        "sync_timer",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.id = group_id
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.EMPTY
        self.state_since_ms: int | None = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        """None until a member joins. A group that only stores offsets of simple consumers has no type."""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self._protocol_counts: Counter[str] = Counter()
        """The number of members that support each protocol, so that a join need not check every member."""
        self.static_member_ids: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending_joins: dict[str, TimerHandle] = {}
        """Assigned member ids that have not joined yet, with the timers that expire them."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self.subscribed_topics: frozenset[str] | None = None
        """The topics that members subscribe to, or None if they are unknown."""
        self.new_member_added = False
        """Whether a member joined during the initial rebalance delay, so that the delay is extended."""
        self.join_timer: TimerHandle | None = None
        self.sync_timer: TimerHandle | None = None

    # --- states

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Change to another state. Raises AssertionError if the transition is not valid."""
        assert state in VALID_TRANSITIONS[self.state], f"{self.id}: {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return ClassicGroupState.PREPARING_REBALANCE in VALID_TRANSITIONS[self.state]

    def next_generation(self, now_ms: int) -> None:
        """Complete the join phase, and start a generation with the current members.

        Without members, the group becomes Empty.
        """
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed_topics = self._subscribed_topics()
        self.transition_to(
            ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY, now_ms
        )
        self.pending_syncs.clear()

    def become_stable(self, generation: int) -> None:
        """Become Stable at the generation that the members of a converted consumer group already have."""
        self.generation = generation
        self.protocol = self.select_protocol()
        self.subscribed_topics = self._subscribed_topics()
        self.state = self.previous_state = ClassicGroupState.STABLE

    # --- members

    def add(self, member: ClassicGroupMember) -> None:
        """Add a member. The first member becomes the leader."""
        if member.instance_id is not None:
            assert member.instance_id not in self.static_member_ids, (
                "a static member is replaced, not added again"
            )
            self.static_member_ids[member.instance_id] = member.id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self._protocol_counts.update({name for name, _ in member.protocols})
        self.remove_pending_join(member.id)

    def change_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        """Change the protocols that a member supports, or their metadata."""
        self._protocol_counts.subtract({name for name, _ in member.protocols})
        member.protocols = tuple(protocols)
        self._protocol_counts.update({name for name, _ in member.protocols})
        self._protocol_counts += Counter()  # drops protocols without support

    def remove(self, member_id: str) -> None:
        """Remove a member, or the id of a pending join. Does nothing for an unknown id."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._protocol_counts -= Counter({name for name, _ in member.protocols})
            if member.session is not None:
                member.session.cancel()
            if member.instance_id is not None:
                self.static_member_ids.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.remove_pending_join(member_id)
        self.pending_syncs.discard(member_id)

    def remove_pending_join(self, member_id: str) -> None:
        """Remove an assigned member id that has joined or expired."""
        timer = self.pending_joins.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def replace_static(self, instance_id: str, new_member_id: str) -> ClassicGroupMember:
        """Give a restarted static member a new member id, and return the new member.

        Waiting requests of the old member id get FENCED_INSTANCE_ID.
        """
        old = self.members.pop(self.static_member_ids[instance_id])
        self.complete_join(
            old, JoinGroupResponse(member_id=old.id, error_code=ErrorCode.FENCED_INSTANCE_ID, members=[])
        )
        self.complete_sync(old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        if old.session is not None:
            old.session.cancel()
        new = ClassicGroupMember(
            new_member_id,
            instance_id=instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocol_type=old.protocol_type,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members[new_member_id] = new
        if self.leader == old.id:
            self.leader = new_member_id
        self.static_member_ids[instance_id] = new_member_id
        return new

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Return the member that sent a request.

        Raises ApiError: UNKNOWN_MEMBER_ID if the member or instance id is unknown; FENCED_INSTANCE_ID if
        another member has the instance id.
        """
        if instance_id is not None:
            current = self.static_member_ids.get(instance_id)
            if current is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def leaving_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Return the member of a LeaveGroup, which may have only an instance id. Raises ApiError."""
        if member_id:
            return self.check_member(member_id, instance_id)
        static_id = self.static_member_ids.get(instance_id or "")
        if static_id is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[static_id]

    def elect_joined_leader(self) -> bool:
        """Elect a leader among the joined members if the leader has not joined.

        Returns False if no member has joined.
        """
        if self.leader is None:
            return False
        if self.members[self.leader].join_done is not None:
            return True
        for member in self.members.values():
            if member.join_done is not None:
                self.leader = member.id
                return True
        return False

    @property
    def joined_count(self) -> int:
        """The number of members whose JoinGroup waits for the join phase to end."""
        return sum(member.join_done is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined, so that the join phase can end."""
        return not self.pending_joins and self.joined_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- waiting requests

    @staticmethod
    def complete_join(member: ClassicGroupMember, response: JoinGroupResponse) -> bool:
        """Respond to the member's waiting JoinGroup. Returns False if no JoinGroup is waiting."""
        done, member.join_done = member.join_done, None
        if done is None:
            return False
        done(response)
        return True

    @staticmethod
    def complete_sync(member: ClassicGroupMember, response: SyncGroupResponse) -> bool:
        """Respond to the member's waiting SyncGroup. Returns False if no SyncGroup is waiting."""
        done, member.sync_done = member.sync_done, None
        if done is None:
            return False
        done(response)
        return True

    def join_response(self, member_id: str, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """Return the JoinGroup response for a member of the current generation.

        Only the leader gets the member list.
        """
        members = []
        if member_id == self.leader:
            members = [
                JoinGroupResponseMember(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata(self.protocol or ""),
                )
                for member in self.members.values()
            ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=members,
        )

    def sync_response(self, member: ClassicGroupMember) -> SyncGroupResponse:
        """Return the SyncGroup response with the member's assignment."""
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    def stop_join_timer(self) -> None:
        timer, self.join_timer = self.join_timer, None
        if timer is not None:
            timer.cancel()

    def stop_sync_timer(self) -> None:
        timer, self.sync_timer = self.sync_timer, None
        if timer is not None:
            timer.cancel()

    # --- protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join: all members must support one of `protocols`."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        if not self.members:
            return True
        return any(self._protocol_counts[name] == len(self.members) for name, _ in protocols)

    def _candidates(self) -> set[str]:
        return {name for name, count in self._protocol_counts.items() if count == len(self.members)}

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support."""
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        # Version 0 is a prefix of all versions, including future ones.
        decode = decoder(ConsumerProtocolSubscription, 0)
        try:
            for member in self.members.values():
                metadata = member.metadata(self.protocol)
                if len(metadata) < 2:
                    return None
                subscription, _ = decode(memoryview(metadata), 2, len(metadata))
                topics.update(subscription.topics)
        except WireError:
            return None
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to this topic. True if the metadata of consumers cannot be decoded."""
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # --- offsets

    def committing_member(self, commit: OffsetCommit, *, is_transactional: bool) -> ClassicGroupMember | None:
        """Return the member that sent a commit, or None if the sender is not a member and need not be one.

        Raises ApiError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS.
        """
        if commit.generation < 0 and self.state is ClassicGroupState.EMPTY:
            return None
        if commit.generation < 0 and not commit.member_id and commit.instance_id is None:
            if is_transactional:
                return None
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.check_member(commit.member_id, commit.instance_id)
        if commit.generation != self.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if self.state is ClassicGroupState.COMPLETING_REBALANCE and not is_transactional:
            # The member has joined this generation, but has no assignment yet.
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Accept every client."""

    def check_offset_deletion(self) -> None:
        """Raise ApiError NON_EMPTY_GROUP if members have another protocol type than "consumer".

        The topics of other protocol types are unknown.
        """
        if self.state is not ClassicGroupState.EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def retention_start(self) -> Callable[[CommittedOffset], int] | None:
        if self.protocol_type is None:
            return since_commit
        if self.state is ClassicGroupState.EMPTY:
            empty_since_ms = self.state_since_ms
            return since_commit if empty_since_ms is None else lambda _committed: empty_since_ms
        if (
            self.protocol_type == CONSUMER_PROTOCOL_TYPE
            and self.state is ClassicGroupState.STABLE
            and self.subscribed_topics is not None
        ):
            # Only offsets of topics that no member subscribes to expire.
            return since_commit
        return None

    # --- records

    def record(self, assignments: Mapping[str, bytes] | None = None) -> CoordinatorRecord:
        """Return the GroupMetadata record. Without `assignments`, it has the members' current assignments."""
        members = [
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol or ""),
                assignment=member.assignment if assignments is None else assignments.get(member.id, b""),
            )
            for member in self.members.values()
        ]
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=members,
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.id), value, GROUP_METADATA_VERSION, applied=True)

    def empty_record(self) -> CoordinatorRecord:
        """Return the GroupMetadata record of a new group: generation 0 and no members."""
        empty = ClassicGroup(self.id, 0)
        empty.state_since_ms = self.state_since_ms
        return empty.record()

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the tombstone of the group's GroupMetadata record."""
        return [CoordinatorRecord(GroupMetadataKey(group=self.id), None)]

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue, now_ms: int) -> ClassicGroup:
        """Create a group from its record: Stable if the record has members, else Empty."""
        group = cls(group_id, now_ms)
        group.generation = value.generation
        for stored in value.members:
            # Version 0 has one timeout for sessions and rebalances.
            rebalance_timeout_ms = stored.rebalance_timeout
            if rebalance_timeout_ms < 0:
                rebalance_timeout_ms = stored.session_timeout
            member = ClassicGroupMember(
                stored.member_id,
                instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=rebalance_timeout_ms,
                session_timeout_ms=stored.session_timeout,
                protocol_type=value.protocol_type,
                protocols=((value.protocol or "", bytes(stored.subscription)),),
                assignment=bytes(stored.assignment),
            )
            group.add(member)
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        group.state = group.previous_state = (
            ClassicGroupState.STABLE if value.members else ClassicGroupState.EMPTY
        )
        group.state_since_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
        group.subscribed_topics = group._subscribed_topics()
        return group

    # --- DescribeGroups

    def describe(self) -> DescribedGroup:
        """Describe the group for DescribeGroups.

        The group's protocol and the members' metadata are included only while the group is Stable.
        """
        stable = self.state is ClassicGroupState.STABLE
        return DescribedGroup(
            group_id=self.id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=(self.protocol or "") if stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(self.protocol or "") if stable else b"",
                    member_assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )
