"""The state of one classic group: members, generation, and which moves between states are legal.

Nothing here waits, schedules or writes; `coordinator.groups.classic` does that on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Final

from kwire.coordinator.groups.classic.member import ClassicGroupMember, Protocols
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
"""The version of GroupMetadataValue that Kafka writes since 2.3."""


class ClassicGroupState(Enum):
    """Where a classic group stands. The values are what clients are told."""

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
"""From each state, the states that may follow."""


class ClassicGroup:
    """One classic group."""

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
        """None for a group that has never had members: simple consumers keep offsets in it."""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self._protocol_counts: Counter[str] = Counter()
        """How many members support each protocol: a join need not ask all of them."""
        self.static_member_ids: dict[str, str] = {}
        """Member ids by instance id."""
        self.pending_joins: dict[str, TimerHandle] = {}
        """Member ids that were given out and have not joined, with the timers that take them back."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self.subscribed_topics: frozenset[str] | None = None
        """Topics that the members subscribe to; None where that cannot be known."""
        self.new_member_added = False
        """Whether a member came during the delay before the first rebalance, which prolongs it."""
        self.join_timer: TimerHandle | None = None
        self.sync_timer: TimerHandle | None = None

    # --- states

    def move(self, state: ClassicGroupState, now_ms: int) -> None:
        """Enter a state. AssertionError where `VALID_TRANSITIONS` has no such move."""
        assert state in VALID_TRANSITIONS[self.state], f"{self.id}: {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin."""
        return ClassicGroupState.PREPARING_REBALANCE in VALID_TRANSITIONS[self.state]

    def next_generation(self, now_ms: int) -> None:
        """Close the join: a new generation with the members there are now."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed_topics = self._subscribed_topics()
        self.move(ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def become_stable(self, generation: int) -> None:
        """Be Stable at a generation that the members, who come from a group of another kind, have already."""
        self.generation = generation
        self.protocol = self.select_protocol()
        self.subscribed_topics = self._subscribed_topics()
        self.state = self.previous_state = ClassicGroupState.STABLE

    # --- members

    def add(self, member: ClassicGroupMember) -> None:
        """Take a member in; the first one is the leader until the join ends."""
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
        """Let a member support other protocols, or the same with other metadata."""
        self._protocol_counts.subtract({name for name, _ in member.protocols})
        member.protocols = tuple(protocols)
        self._protocol_counts.update({name for name, _ in member.protocols})
        self._protocol_counts += Counter()  # without those that nobody supports any more

    def remove(self, member_id: str) -> None:
        """Let a member or a pending member go. Does nothing for an id that is not known."""
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
        """An id that was given out is in use now, or taken back."""
        timer = self.pending_joins.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def replace_static(self, instance_id: str, new_member_id: str) -> ClassicGroupMember:
        """Give the place of a static member to its next incarnation; requests of the old one are fenced."""
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
        """The member that speaks. ApiError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
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

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one of those who joined. False where nobody did."""
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
        """How many members wait for the join to end."""
        return sum(member.join_done is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether the join has nobody to wait for."""
        return not self.pending_joins and self.joined_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a join may take: the most that any member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- answers that wait

    @staticmethod
    def complete_join(member: ClassicGroupMember, response: JoinGroupResponse) -> bool:
        """Answer the member's JoinGroup, if it waits for one."""
        done, member.join_done = member.join_done, None
        if done is None:
            return False
        done(response)
        return True

    @staticmethod
    def complete_sync(member: ClassicGroupMember, response: SyncGroupResponse) -> bool:
        """Answer the member's SyncGroup, if it waits for one."""
        done, member.sync_done = member.sync_done, None
        if done is None:
            return False
        done(response)
        return True

    def join_response(self, member_id: str, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """The current generation as this member is told of it; only the leader sees the members."""
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

    # --- protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether someone with these protocols can join: one of them must be everybody's."""
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
        """The protocol that most members prefer among those that all support."""
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
        # Version 0 is a prefix of all versions, also of those that are not known here.
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
        """Whether a member consumes this topic. Consumers whose metadata cannot be read count as doing so."""
        if self.subscribed_topics is not None:
            return topic in self.subscribed_topics
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # --- what is stored

    def record(self, assignments: Mapping[str, bytes] | None = None) -> CoordinatorRecord:
        """The group as its partition keeps it, with these assignments or else the members' own."""
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
        """A group that exists and has no generation yet."""
        value = GroupMetadataValue(
            protocol_type="",
            generation=0,
            protocol=None,
            leader=None,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=[],
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.id), value, GROUP_METADATA_VERSION, applied=True)

    def tombstone(self) -> CoordinatorRecord:
        """The group is gone."""
        return CoordinatorRecord(GroupMetadataKey(group=self.id), None)

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue, now_ms: int) -> ClassicGroup:
        """The group as it was when this was stored: Stable where it had members, else Empty."""
        group = cls(group_id, now_ms)
        group.generation = value.generation
        for stored in value.members:
            # Version 0 had one timeout for both.
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

    # --- what is described

    def describe(self) -> DescribedGroup:
        """The group for DescribeGroups: protocol and metadata only while it is Stable."""
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
