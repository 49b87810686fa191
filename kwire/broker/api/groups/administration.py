"""ListGroups v0–5, DescribeGroups v0–6, ConsumerGroupDescribe v0–1, DeleteGroups v0–2.

ListGroups: KIP-518 (states, v4), KIP-848 (types, v5). DescribeGroups returns state, protocol and members of
classic groups: KIP-430 (v3), KIP-345 (v4). A group that does not exist is described as Dead, and from v6 on
also gets an error (KIP-1043). ConsumerGroupDescribe returns epochs, assignor and members: KIP-848, KIP-1099
(v1). DeleteGroups deletes groups without members, and their offsets: KIP-229.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kwire.broker.api.groups.membership import consumer_groups_enabled
from kwire.broker.api.request.authorized_operations import authorized_operations
from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.coordinator.groups.registry import CLASSIC, CONSUMER
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kwire.wire.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from kwire.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kwire.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from kwire.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole

FIRST_VERSION_WITH_NOT_FOUND = 6
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def list_groups(node: BrokerRole, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Return the groups that match the filters for states and types. An empty filter matches every group."""
    groups = node.groups.list_groups(request.states_filter, request.types_filter)
    if not node.gate.allows(context, Operation.DESCRIBE, is_asked=False):
        groups = [
            group
            for group in groups
            if node.gate.allows(
                context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id, is_asked=False
            )
        ]
    return ListGroupsResponse(groups=groups)


def describe_groups(
    node: BrokerRole, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Return, for each group, its description or an error."""
    groups = [_described(node, context, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = authorized_operations(
                    node.gate, context, ResourceType.GROUP, group.group_id
                )
    return DescribeGroupsResponse(groups=groups)


def _described(node: BrokerRole, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        return node.groups.describe(CLASSIC, group_id)
    except ApiError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            return DescribedGroup(group_id=group_id, error_code=error.code, members=[])
        unknown = DescribedGroup(group_id=group_id, group_state="Dead", members=[])
        if context.api_version >= FIRST_VERSION_WITH_NOT_FOUND:
            unknown.error_code = error.code
            unknown.error_message = error.message
        return unknown


def consumer_group_describe(
    node: BrokerRole, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Delayed:
    """Return, for each group, its description or an error.

    The response is sent after the described state of all groups is committed. Raises ApiError
    UNSUPPORTED_VERSION if the consumer group protocol is disabled.
    """
    if not consumer_groups_enabled(node):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    group_ids = request.group_ids
    if not group_ids:
        return ConsumerGroupDescribeResponse()
    found: dict[int, DescribedConsumerGroup] = {}

    def described(at: int, group: DescribedConsumerGroup) -> None:
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = authorized_operations(
                node.gate, context, ResourceType.GROUP, group.group_id
            )
        found[at] = group
        if len(found) == len(group_ids):
            groups = _without_hidden(node, context, [found[at] for at in range(len(group_ids))])
            context.complete(ConsumerGroupDescribeResponse(groups=groups))

    for at, group_id in enumerate(group_ids):
        node.groups.describe_committed(CONSUMER, group_id, partial(described, at))
    return DELAYED


def _without_hidden(
    node: BrokerRole, context: RequestContext, groups: list[DescribedConsumerGroup]
) -> list[DescribedConsumerGroup]:
    """Return the groups, with an error for each group that has a topic that the client may not describe."""
    topics_by_group = [
        {
            topic.topic_name
            for member in group.members
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        for group in groups
    ]
    hidden = {
        name
        for name in set().union(*topics_by_group)
        if not node.gate.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
    }
    return [
        group
        if topics.isdisjoint(hidden)
        else DescribedConsumerGroup(
            group_id=group.group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=HIDDEN_TOPICS,
        )
        for group, topics in zip(groups, topics_by_group, strict=True)
    ]


def delete_groups(node: BrokerRole, context: RequestContext, request: DeleteGroupsRequest) -> Delayed:
    """Return one result per group, after every group is deleted or the deletion is rejected."""

    def done(outcome: dict[str, ErrorCode]) -> None:
        context.complete(
            DeleteGroupsResponse(
                results=[
                    DeletableGroupResult(group_id=group_id, error_code=code)
                    for group_id, code in outcome.items()
                ]
            )
        )

    node.groups.delete_groups(request.groups_names, done)
    return DELAYED
