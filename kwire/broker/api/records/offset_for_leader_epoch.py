"""OffsetForLeaderEpoch v2–4: the end offsets of leader epochs. KIP-101, KIP-279, KIP-320."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.records.fetch_isolation import REPLICA_OFFSETS, find_replica
from kwire.broker.api.request.context import RequestContext
from kwire.wire.errors import ApiError
from kwire.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole


def handle(
    node: BrokerRole, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return, for each partition, the largest epoch up to the requested epoch and its end offset.

    Both are -1 if there is no such epoch.
    """
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(node, topic.topic, requested) for requested in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_offset(node: BrokerRole, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = find_replica(node, topic, requested.partition)
        REPLICA_OFFSETS.readable_end(partition, requested.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=requested.partition, error_code=error.code)
    epoch, end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)
