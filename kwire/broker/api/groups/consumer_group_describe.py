"""ConsumerGroupDescribe v0–1: epochs, assignor and members of consumer groups. KIP-848, KIP-1099 (v1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.api.groups.consumer_group_heartbeat import consumer_groups_enabled
from kwire.broker.api.groups.describe_groups import ALL_OPERATIONS
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Parked:
    """Answer for each group once all that is shown is stored."""
    if not consumer_groups_enabled(node):
        return ConsumerGroupDescribeResponse(
            groups=[
                DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
                for group_id in request.group_ids
            ]
        )
    # Apache Kafka answers first for those that no partition is asked about.
    asked = [
        *(group_id for group_id in request.group_ids if not group_id),
        *node.groups.in_order(group_id for group_id in request.group_ids if group_id),
    ]
    if not asked:
        return ConsumerGroupDescribeResponse()
    found: dict[int, DescribedGroup] = {}

    def described(at: int, group: DescribedGroup) -> None:
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = ALL_OPERATIONS
        found[at] = group
        if len(found) == len(asked):
            context.complete(ConsumerGroupDescribeResponse(groups=[found[at] for at in range(len(asked))]))

    for at, group_id in enumerate(asked):
        node.groups.describe_consumer_group(group_id, lambda group, at=at: described(at, group))  # type: ignore[misc]
    return PARKED
