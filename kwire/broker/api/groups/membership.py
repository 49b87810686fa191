"""JoinGroup v0–9, SyncGroup v0–5, Heartbeat v0–4, LeaveGroup v0–5, ConsumerGroupHeartbeat v0–1.

JoinGroup: KIP-62 (rebalance timeout, v1), KIP-394 (member id required, v4), KIP-345 (instance id, v5),
KIP-559 (protocol type, v7), KIP-800 (reason, v8), KIP-814 (static leader keeps the assignment, v9). The
response is delayed until all members have joined. A closed connection does not cancel the join; only a
timeout removes the member. SyncGroup: KIP-345 (v3), KIP-559 (v5). Heartbeat: KIP-345 (v3). LeaveGroup:
KIP-345 (many members, v3), KIP-800 (reason, v5).

ConsumerGroupHeartbeat is for groups whose assignments the coordinator computes (KIP-848). From v1 on, it
supports regular expressions, and clients generate their member ids (KIP-1082). It requires the group.version
feature, and `consumer` in group.coordinator.rebalance.protocols.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.coordinator.groups.classic_protocol import JoinRequest, SyncRequest
from kwire.coordinator.groups.consumer.requests import ClientIdentity, MayDescribe, describes_all
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kwire.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from kwire.wire.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole
    from kwire.broker.api.request.repeated_request import FastPath

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_MEMBER_ID_FIRST = 4
FIRST_VERSION_WITH_NULL_PROTOCOL = 7
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9
FIRST_VERSION_WITH_PROTOCOL = 5
FIRST_VERSION_WITH_MEMBERS = 3
CONSUMER_PROTOCOL = "consumer"


def join_group(node: BrokerRole, context: RequestContext, request: JoinGroupRequest) -> Delayed:
    """Respond when the rebalance completes, or at once with an error."""
    version = context.api_version
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < FIRST_VERSION_WITH_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = request.session_timeout_ms

    def done(response: JoinGroupResponse) -> None:
        if not response.protocol_name:
            # A missing protocol is null in the response, if the version allows null.
            response.protocol_name = "" if version < FIRST_VERSION_WITH_NULL_PROTOCOL else None
        if version < FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
            response.skip_assignment = False
        context.complete(response)

    node.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=f"/{context.peer_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            reason=request.reason,
            requires_member_id=version >= FIRST_VERSION_WITH_MEMBER_ID_FIRST,
            can_skip_assignment=version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT,
        ),
        done,
    )
    return DELAYED


def sync_group(node: BrokerRole, context: RequestContext, request: SyncGroupRequest) -> Delayed:
    """Respond with the member's assignment after the assignments of the group are committed.

    KIP-559: from v5 on, the request must name the protocol type and the protocol. Otherwise raises ApiError
    INCONSISTENT_GROUP_PROTOCOL.
    """
    if context.api_version >= FIRST_VERSION_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    node.gate.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    node.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments=[(given.member_id, bytes(given.assignment)) for given in request.assignments],
        ),
        context.complete,
    )
    return DELAYED


def heartbeat(node: BrokerRole, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the member's session. During a rebalance, also return REBALANCE_IN_PROGRESS.

    Returns UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION if the group does not have this member or generation.
    """
    code = node.groups.heartbeat(
        request.group_id, request.generation_id, request.member_id, request.group_instance_id
    )
    if code == ErrorCode.NONE:
        context.fast_path = node.groups.heartbeat_fast_path(
            request.group_id, request.generation_id, request.member_id
        )
    return HeartbeatResponse(error_code=code)


def leave_group(node: BrokerRole, context: RequestContext, request: LeaveGroupRequest) -> Delayed:
    """Remove members from a group. Return one result per member; before v3, there is only one member."""
    many = context.api_version >= FIRST_VERSION_WITH_MEMBERS
    members = request.members if many else [MemberIdentity(member_id=request.member_id)]

    def done(response: LeaveGroupResponse) -> None:
        if not many:
            codes = [response.error_code, *(member.error_code for member in response.members)]
            response = LeaveGroupResponse(error_code=next((code for code in codes if code), 0), members=[])
        context.complete(response)

    node.groups.leave(request.group_id, members, done)
    return DELAYED


def consumer_group_heartbeat(
    node: BrokerRole, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Delayed:
    """Respond after the changes that the heartbeat causes are committed.

    Raises ApiError UNSUPPORTED_VERSION if the consumer group protocol is disabled.
    """
    if not consumer_groups_enabled(node):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    may_describe: MayDescribe = describes_all
    if node.gate.authorizer is not None:  # otherwise no member keeps its request
        # Apache Kafka does not log that a regular expression matches topics that the member may not describe.
        may_describe = partial(
            node.gate.allows, context, Operation.DESCRIBE, ResourceType.TOPIC, is_asked=False
        )
    client = ClientIdentity(context.client_id, f"/{context.peer_host}", may_describe)
    node.groups.consumer_heartbeat(request, client, context.api_version, context.complete)
    if context.completed:
        fast_path = node.groups.consumer_heartbeat_fast_path(request, client)
        if fast_path is not None:
            context.fast_path = _until_reconfigured(node, fast_path)
    return DELAYED


def _until_reconfigured(node: BrokerRole, fast_path: FastPath) -> FastPath:
    image = node.image
    configs, features = image.configs, image.features

    def checked() -> bool:
        image = node.image
        return image.configs is configs and image.features is features and fast_path()

    return checked


def consumer_groups_enabled(node: BrokerRole) -> bool:
    """Return whether the consumer group protocol of KIP-848 is enabled."""
    if node.image.features.get("group.version", 0) < 1:
        return False
    protocols = node.config.group_coordinator_rebalance_protocols
    return CONSUMER_PROTOCOL in protocols or CONSUMER_PROTOCOL in map(str.lower, protocols)
