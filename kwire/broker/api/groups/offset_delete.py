"""OffsetDelete v0: forget offsets of a group in topics that it does not consume now. KIP-496."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(node: Node, context: RequestContext, request: OffsetDeleteRequest) -> Parked:
    """Answer for each partition once the offsets are gone."""
    refused: dict[str, OffsetDeleteResponseTopic] = {}
    """What does not exist, by topic: the coordinator is not asked about it."""
    asked: list[tuple[str, list[int]]] = []
    for topic in request.topics:
        indexes = [partition.partition_index for partition in topic.partitions]
        there = [index for index in indexes if node.partition_exists(topic.name, index)]
        missing = [index for index in indexes if index not in there]
        if missing or topic.name not in node.image.topics:
            answer = refused.setdefault(topic.name, OffsetDeleteResponseTopic(name=topic.name, partitions=[]))
            answer.partitions += [
                OffsetDeleteResponsePartition(
                    partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                for index in missing
            ]
        if there:
            asked.append((topic.name, there))

    def done(code: ErrorCode, outcome: Mapping[tuple[str, int], ErrorCode]) -> None:
        response = OffsetDeleteResponse(error_code=code, topics=[])
        if not code:
            deleted = [
                OffsetDeleteResponseTopic(
                    name=name,
                    partitions=[
                        OffsetDeleteResponsePartition(partition_index=index, error_code=outcome[name, index])
                        for index in indexes
                    ],
                )
                for name, indexes in asked
            ]
            response.topics = _merged(refused, deleted)
        context.complete(response)

    node.groups.delete_offsets(
        request.group_id, [(name, index) for name, indexes in asked for index in indexes], done
    )
    return PARKED


def _merged(
    refused: dict[str, OffsetDeleteResponseTopic], deleted: list[OffsetDeleteResponseTopic]
) -> list[OffsetDeleteResponseTopic]:
    """Apache Kafka's order: what was refused comes first, and then a topic has one place only."""
    if not refused:
        return deleted
    for topic in deleted:
        known = refused.setdefault(topic.name, topic)
        if known is not topic:
            known.partitions += topic.partitions
    return list(refused.values())
