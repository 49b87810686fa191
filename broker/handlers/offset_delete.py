"""OffsetDelete v0: forget offsets of a group in topics that it does not consume now. KIP-496."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.handlers.context import PARKED, Parked, RequestContext
from kwire.errors import ErrorCode
from kwire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, context: RequestContext, request: OffsetDeleteRequest) -> Parked:
    """Answer for each partition once the offsets are gone."""
    asked = [
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    known = [(name, index) for name, index in asked if node.partition_exists(name, index)]

    def done(code: ErrorCode, outcome: Mapping[tuple[str, int], ErrorCode]) -> None:
        response = OffsetDeleteResponse(error_code=code, topics=[])
        if not code:
            response.topics = [
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=outcome.get(
                                (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                            ),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        context.complete(response)

    node.groups.delete_offsets(request.group_id, known, done)
    return PARKED
