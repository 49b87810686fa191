"""ListPartitionReassignments v0: which partitions are on their way to other replicas. KIP-455."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.broker.controller.partition_changes import find, is_moving
from kwire.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, _context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The moves under way among the partitions asked for; a null list asks for all."""
    image = node.image
    asked: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        asked = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics: list[OngoingTopicReassignment] = []
    for name, indexes in asked:
        moving = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(found[1].replicas),
                adding_replicas=list(found[1].adding_replicas),
                removing_replicas=list(found[1].removing_replicas),
            )
            for index in indexes
            if (found := find(image, name, index)) is not None and is_moving(found[1])
        ]
        if moving:
            topics.append(OngoingTopicReassignment(name=name, partitions=moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)
