"""Online migration: groups with members of both protocols, and their change from one type to the other.

When a member with the consumer protocol (KIP-848) joins a classic group, the group becomes a consumer group.
The other members stay as classic members, and continue with JoinGroup, SyncGroup and Heartbeat. A classic
member's generation is its member epoch. JoinGroup takes the member's next step towards its target assignment.
SyncGroup returns the member's current assignment. Heartbeat returns REBALANCE_IN_PROGRESS when the member has
a step to take. When the last member with the consumer protocol leaves, the group becomes a classic group
again. `group.consumer.migration.policy` restricts both changes. KIP-848, "Upgrading" and "Downgrading".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kwire.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from kwire.coordinator.groups.classic.member import ClassicGroupMember
from kwire.coordinator.groups.classic.rebalance import ClassicGroups
from kwire.coordinator.groups.classic_protocol import JoinDone, JoinRequest, SyncDone, SyncRequest
from kwire.coordinator.groups.consumer.consumer_protocol import (
    CustomAssignorError,
    MalformedProtocolError,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
    owned_partitions_of,
)
from kwire.coordinator.groups.consumer.group import NO_EPOCH, ConsumerGroup
from kwire.coordinator.groups.consumer.heartbeat import ConsumerGroups
from kwire.coordinator.groups.consumer.member import ConsumerGroupMember, MemberState
from kwire.coordinator.groups.consumer.timers import MemberTimers
from kwire.coordinator.groups.errors import response_error
from kwire.coordinator.groups.group_type import GroupRegistry
from kwire.coordinator.state_machine import (
    EMPTY_RESULT,
    Committed,
    CoordinatorRecord,
    CoordinatorResult,
)
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from kwire.wire.messages.join_group import JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity
from kwire.wire.messages.sync_group import SyncGroupResponse
from kwire.wire.plural import plural
from kwire.wire.records.consumer_groups import ClassicMemberMetadata, ClassicProtocol


class OnlineMigration:
    """`migration_port.Migration` for the groups of one partition of `__consumer_offsets`."""

    def __init__(self, registry: GroupRegistry, classic: ClassicGroups, consumer: ConsumerGroups) -> None:
        self._config = registry.config
        self._context = registry.context
        self._logger = registry.context.logger("kwire.groups")
        self._topics = registry.topics
        self._classic = classic
        self._consumer = consumer
        self._join_timers = MemberTimers(registry.context)
        """Classic members that must rejoin and have not sent JoinGroup."""
        self._sync_timers = MemberTimers(registry.context)
        """Classic members that have joined and have not sent SyncGroup."""

    def _allows(self, change: str) -> bool:
        """Whether a group with members may change its type. `change` is `upgrade` or `downgrade`."""
        return self._config.group_consumer_migration_policy.lower() in (change, "bidirectional")

    # --- a classic group becomes a consumer group

    def upgrade(self, classic: ClassicGroup, records: list[CoordinatorRecord]) -> ConsumerGroup:
        """Convert a classic group with members to a consumer group, and add the records to `records`.

        Waiting JoinGroup and SyncGroup requests get REBALANCE_IN_PROGRESS. Raises the errors of `Migration`.
        """
        cannot = f"Cannot upgrade classic group {classic.id} to consumer group because"
        fault = self._upgrade_fault(classic)
        if fault is not None:
            self._logger.info("Group %s: cannot upgrade to a consumer group: %s", classic.id, fault)
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{cannot} {fault}.")
        for pending in list(classic.members.values()):
            classic.complete_join(
                pending,
                JoinGroupResponse(
                    error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=pending.id, members=[]
                ),
            )
            classic.complete_sync(pending, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        if classic.protocol is None:
            # The group has no generation yet. Apache Kafka returns this error, too, which ends the consumer.
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
        group = ConsumerGroup(classic.id, self._logger)
        group.epoch = group.assignment_epoch = classic.generation
        try:
            for member in classic.members.values():
                self._convert_member(group, member, classic.protocol)
        except MalformedProtocolError as error:
            self._logger.warning("Group %s: cannot upgrade to a consumer group: %s", classic.id, error)
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"{cannot} the embedded consumer protocol is malformed."
            ) from None
        except CustomAssignorError:
            self._logger.warning(
                "Group %s: cannot upgrade to a consumer group: the group uses a custom assignor, which the "
                "consumer protocol does not support",
                classic.id,
            )
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"{cannot} an unsupported custom assignor is in use. Please refer to the documentation or "
                "switch to a default assignor before re-attempting the upgrade.",
            ) from None
        group.metadata_hash = self._consumer.subscriptions.metadata_hash(group.counts)
        records += classic.tombstones()
        records += group.creation_records()
        for taken in group.members.values():
            assert taken.classic is not None
            self._consumer.start_session(group.id, taken.id, taken.classic.session_timeout_ms)
        self._logger.info(
            "Group %s: upgraded to a consumer group with %s", group.id, plural(len(group.members), "member")
        )
        return group

    def _upgrade_fault(self, classic: ClassicGroup) -> str | None:
        if not self._allows("upgrade"):
            return "online upgrade is disabled"
        if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return "the group does not use the consumer embedded protocol"
        if len(classic.members) > self._config.group_consumer_max_size:
            return "the group size exceeds the consumer group maximum size"
        return None

    def _convert_member(self, group: ConsumerGroup, member: ClassicGroupMember, protocol: str) -> None:
        """Add a member of a classic group to the consumer group.

        Raises MalformedProtocolError, CustomAssignorError, or ApiError UNKNOWN_SERVER_ERROR if the member
        joined after the last rebalance and does not support `protocol`, the group's assignment protocol.
        """
        target = decode_assignment(member.assignment, self._topics)
        if protocol not in dict(member.protocols):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
        subscription = decode_subscription(member.metadata(protocol))
        group.targets[member.id] = target
        group.put(
            ConsumerGroupMember(
                member.id,
                epoch=group.epoch,
                previous_epoch=group.epoch,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id or None,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed=frozenset(subscription.topics),
                assigned={
                    topic_id: dict.fromkeys(sorted(partitions), group.epoch)
                    for topic_id, partitions in target.items()
                },
                classic=ClassicMemberMetadata(
                    session_timeout_ms=member.session_timeout_ms,
                    supported_protocols=[
                        ClassicProtocol(name=name, metadata=metadata) for name, metadata in member.protocols
                    ],
                ),
            )
        )

    # --- a consumer group becomes a classic group

    def downgrade(
        self, group: ConsumerGroup, leaving: Collection[ConsumerGroupMember]
    ) -> CoordinatorResult | None:
        """Remove the members `leaving` and convert the group to a classic group, as `Migration` describes."""
        staying = len(group.members) - len(leaving)
        if group.classic_members - sum(member.is_classic for member in leaving) != staying or staying <= 0:
            return None
        if not self._may_downgrade(group, staying):
            return None
        gone = {member.id for member in leaving}
        # The first remaining member becomes the leader of the classic group.
        members = {member.id: member for member in group.members.values() if member.id not in gone}
        try:
            return self._convert(
                group, members, [], rebalance="the last member with the consumer protocol left"
            )
        except ApiError as error:
            self._logger.warning("Group %s: cannot downgrade to a classic group: %s", group.id, error)
            return None

    def _may_downgrade(self, group: ConsumerGroup, members: int) -> bool:
        if not self._allows("downgrade"):
            self._logger.info(
                "Group %s: cannot downgrade to a classic group: group.consumer.migration.policy forbids it",
                group.id,
            )
            return False
        if members > self._config.group_max_size:
            self._logger.info(
                "Group %s: cannot downgrade to a classic group: %d members exceed group.max.size",
                group.id,
                members,
            )
            return False
        return True

    def _convert(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerGroupMember],
        records: list[CoordinatorRecord],
        *,
        rebalance: str | None,
        replaced: ConsumerGroupMember | None = None,
    ) -> CoordinatorResult:
        """Replace a consumer group by a classic group of `members`, with their target assignments.

        `rebalance` is the reason for a rebalance, or None for no rebalance. If `replaced` is set, the last
        member has replaced the member `replaced`, and `records` already contain the replacement. Raises
        ApiError GROUP_ID_NOT_FOUND if a member's protocol metadata is malformed.
        """
        classic = ClassicGroup(group.id, self._context.now_ms())
        target_ids: dict[str, str] = {}
        for member in members.values():
            assert member.classic is not None
            is_replacement = replaced is not None and member.instance_id == replaced.instance_id
            target_ids[member.id] = replaced.id if replaced is not None and is_replacement else member.id
            classic.add(_classic_member(member, member.classic))
        classic.become_stable(group.epoch)
        for taken in classic.members.values():
            try:
                version = decode_version(taken.metadata(classic.protocol or ""))
            except MalformedProtocolError as error:
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Cannot downgrade the classic group {group.id}: {error}.",
                ) from None
            target = group.targets.get(target_ids[taken.id], {})
            taken.assignment = encode_assignment(target, version, self._topics)
        former_ids = [
            next(new_id for new_id, old_id in target_ids.items() if old_id == member_id)
            if replaced is not None and member_id == replaced.id
            else member_id
            for member_id in group.members
        ]
        stored = [record._replace(applied=True) for record in [*records, *group.tombstones(former_ids)]]
        stored.append(classic.record())
        for member_id in group.members:
            self._consumer.stop_timers(group.id, member_id)
        del self._consumer.groups[group.id]
        rebalanced = self._classic.adopt(classic, rebalance)
        self._logger.info(
            "Group %s: downgraded to a classic group with %s",
            group.id,
            plural(len(classic.members), "member"),
        )

        def committed(error: ApiError | None) -> None:
            if error is not None and self._classic.groups.get(group.id) is classic:
                # The log still contains the consumer group.
                self._classic.remove_group(classic)
                self._consumer.groups[group.id] = group
                for member_id in group.members:
                    self._consumer.start_session(group.id, member_id)
            rebalanced.committed(error)

        return CoordinatorResult([*stored, *rebalanced.records], committed)

    # --- the classic protocol in a consumer group

    def join(self, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        """Add the member, or take its next step. A group without members becomes a classic group."""
        group = self._consumer.groups[join.group_id]
        if not group.members:
            return self._replace_empty(group, join, done)
        try:
            return self._join(group, join, done)
        except ApiError as error:
            done(JoinGroupResponse(error_code=error.code, members=[]))
            return EMPTY_RESULT

    def _replace_empty(self, group: ConsumerGroup, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        result = self._classic.join(join, done)
        if group.id not in self._classic.groups:
            return result
        del self._consumer.groups[group.id]

        def committed(error: ApiError | None) -> None:
            result.committed(error)
            if error is not None and group.id not in self._classic.groups:
                # The log refused the classic group, so it still contains the consumer group.
                self._consumer.groups[group.id] = group

        return CoordinatorResult([*group.tombstones(), *result.records], committed)

    def _join(self, group: ConsumerGroup, join: JoinRequest, done: JoinDone) -> CoordinatorResult:
        if self._config.group_consumer_migration_policy.lower() == "disabled":
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = join.member_id or self._consumer.new_member_id()
        self._consumer.check_size_limit(group, member_id)
        if not _supports(group, join):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not join.member_id and join.instance_id is None and join.requires_member_id:
            done(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, members=[]))
            return EMPTY_RESULT
        records: list[CoordinatorRecord] = []
        replaced: ConsumerGroupMember | None = None
        if join.instance_id is None:
            member = group.members.get(member_id) or ConsumerGroupMember(member_id)
        else:
            if join.member_id:
                member = group.known_static_member(member_id, join.instance_id)
            else:
                member = self._consumer.joining_static_member(
                    group, member_id, join.instance_id, records, is_classic=True
                )
            replaced = group.static_member(join.instance_id)
        downgrades = (
            replaced is not None
            and not replaced.is_classic
            and group.classic_members == len(group.members) - 1
            and self._may_downgrade(group, len(group.members))
        )
        subscription = _decode_subscription(join)
        updated = _joined(member, join, subscription)
        changed = self._consumer.subscriptions.update(group, member, updated, records, None)
        epoch = group.epoch
        homogeneous: bool | None = None
        if changed.subscription or group.needs_refresh(self._context.monotonic_ms()):
            epoch, homogeneous = self._consumer.subscriptions.refresh(
                group, member, updated, records, raise_epoch=changed.subscription
            )
        owned = owned_partitions_of(subscription, self._topics)
        if downgrades:
            is_stale = group.assignment_epoch < epoch
            if not is_stale:
                target = group.target(updated.id, updated.instance_id)
                updated = self._consumer.reconcile(
                    group, updated, group.assignment_epoch, target, changed.subscription, owned, records
                )
            result = self._replace_and_convert(group, updated, replaced, records, is_stale=is_stale)
        else:
            target_epoch, target = self._consumer.update_target(
                group, epoch, member, updated, homogeneous, records
            )
            updated = self._consumer.reconcile(
                group, updated, target_epoch, target, changed.subscription, owned, records
            )
            result = CoordinatorResult(records)
        return result._replace(
            committed=self._joined_callback(group, updated, join, done, result, downgrades)
        )

    def _replace_and_convert(
        self,
        group: ConsumerGroup,
        updated: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        records: list[CoordinatorRecord],
        *,
        is_stale: bool,
    ) -> CoordinatorResult:
        assert replaced is not None
        if replaced.instance_id != updated.instance_id:
            # The replaced member has changed its instance id, which no client does.
            raise ApiError(ErrorCode.INVALID_REQUEST)
        members = {member.id: member for member in group.members.values() if member.id != replaced.id}
        members[updated.id] = updated
        reason = (
            "the last member with the consumer protocol rejoined with the classic protocol"
            if is_stale
            else None
        )
        return self._convert(group, members, records, rebalance=reason, replaced=replaced)

    def _joined_callback(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        join: JoinRequest,
        done: JoinDone,
        result: CoordinatorResult,
        downgrades: bool,
    ) -> Committed:
        assert member.classic is not None
        response = JoinGroupResponse(
            generation_id=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=member.classic.supported_protocols[0].name,
            member_id=member.id,
            members=[],
        )

        def committed(error: ApiError | None) -> None:
            result.committed(error)
            if error is not None:
                done(JoinGroupResponse(error_code=response_error(error), members=[]))
                return
            self._join_timers.stop(group.id, member.id)
            if not downgrades:
                self._consumer.start_session(group.id, member.id, join.session_timeout_ms)
                self._sync_timers.start(
                    group.id,
                    member.id,
                    join.rebalance_timeout_ms,
                    lambda: self._consumer.fence(
                        group.id, member.id, "no SyncGroup within its rebalance timeout"
                    ),
                )
            done(response)

        return committed

    def sync(self, sync: SyncRequest, done: SyncDone) -> CoordinatorResult:
        """Return the member's assignment."""
        group = self._consumer.groups[sync.group_id]
        try:
            member, metadata = self._classic_member(group, sync.member_id, sync.instance_id, sync.generation)
            protocol = metadata.supported_protocols[0]
            if sync.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or sync.protocol not in (
                None,
                protocol.name,
            ):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                # A member with partitions to revoke gets its assignment first, and rejoins after a heartbeat.
                self._await_join(group, member)
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            version = decode_version(protocol.metadata)
        except ApiError as error:
            done(SyncGroupResponse(error_code=error.code))
            return EMPTY_RESULT
        except MalformedProtocolError:
            done(SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST))
            return EMPTY_RESULT
        response = SyncGroupResponse(
            protocol_type=sync.protocol_type,
            protocol_name=sync.protocol,
            assignment=encode_assignment(member.assigned, version, self._topics),
        )

        def committed(error: ApiError | None) -> None:
            if error is not None:
                done(SyncGroupResponse(error_code=response_error(error)))
                return
            self._sync_timers.stop(group.id, member.id)
            self._consumer.start_session(group.id, member.id, metadata.session_timeout_ms)
            done(response)

        return CoordinatorResult((), committed)

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error code, which is REBALANCE_IN_PROGRESS if the member must rejoin."""
        group = self._consumer.groups[group_id]
        try:
            member, metadata = self._classic_member(group, member_id, instance_id, generation)
        except ApiError as error:
            return error.code
        self._consumer.start_session(group.id, member.id, metadata.session_timeout_ms)
        if (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_partition(group, member))
        ):
            self._await_join(group, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity]
    ) -> tuple[CoordinatorResult, LeaveGroupResponse]:
        return self._consumer.leave_group(self._consumer.groups[group_id], leaving)

    @staticmethod
    def _classic_member(
        group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
        """Return the classic member that sent a request, and the member's classic metadata.

        Raises ApiError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = group.known_static_member(member_id, instance_id)
        if member.classic is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    # --- timers

    def _await_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        self._join_timers.start_if_absent(
            group.id,
            member.id,
            member.rebalance_timeout_ms,
            lambda: self._consumer.fence(group.id, member.id, "no JoinGroup within its rebalance timeout"),
        )

    def stop_timers(self, group_id: str, member_id: str) -> None:
        """Stop a member's timers for JoinGroup and SyncGroup."""
        self._join_timers.stop(group_id, member_id)
        self._sync_timers.stop(group_id, member_id)

    def on_unloaded(self) -> None:
        """Stop all timers."""
        self._join_timers.stop_all()
        self._sync_timers.stop_all()


def _supports(group: ConsumerGroup, join: JoinRequest) -> bool:
    """Whether one of the request's protocols is supported by all classic members."""
    return join.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
        group.classic_protocols.get(name, 0) == group.classic_members for name, _ in join.protocols
    )


def _decode_subscription(join: JoinRequest) -> ConsumerProtocolSubscription:
    """Return the subscription in a request, which is the same for all its protocols.

    Raises ApiError INVALID_REQUEST if the subscription is malformed.
    """
    try:
        return decode_subscription(join.protocols[0][1])
    except MalformedProtocolError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _joined(
    member: ConsumerGroupMember, join: JoinRequest, subscription: ConsumerProtocolSubscription
) -> ConsumerGroupMember:
    """Return the member with the values of its JoinGroup request."""
    return member._replace(
        instance_id=member.instance_id if join.instance_id is None else join.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if join.rebalance_timeout_ms == -1 else join.rebalance_timeout_ms
        ),
        client_id=join.client_id,
        client_host=join.client_host,
        subscribed=frozenset(subscription.topics),
        regex="",
        classic=ClassicMemberMetadata(
            session_timeout_ms=join.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in join.protocols
            ],
        ),
    )


def _classic_member(member: ConsumerGroupMember, metadata: ClassicMemberMetadata) -> ClassicGroupMember:
    return ClassicGroupMember(
        member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=metadata.session_timeout_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=[(protocol.name, bytes(protocol.metadata)) for protocol in metadata.supported_protocols],
    )


def _waits_for_partition(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Whether another member still owns a partition of this member's target assignment."""
    return any(
        partition not in member.assigned.get(topic_id, ())
        and group.owner_epoch(topic_id, partition) != NO_EPOCH
        for topic_id, partitions in group.targets.get(member.id, {}).items()
        for partition in partitions
    )
