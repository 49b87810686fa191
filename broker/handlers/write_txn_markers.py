"""WriteTxnMarkers v1–2: markers from a coordinator, or from an administrator who ends a hanging transaction.

KIP-98, KIP-664, KIP-1228.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.handlers.context import PARKED, Parked, RequestContext
from coordinator.transactions.machine import Ending
from kwire.errors import ApiError, ErrorCode
from kwire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, context: RequestContext, request: WriteTxnMarkersRequest) -> Parked:
    """Answer when every marker is in its log, or refused."""
    response = WriteTxnMarkersResponse()
    # Kafka fails on the first marker that cannot be made, and then for the whole request.
    is_nonsense = any(marker.producer_id < 0 or marker.producer_epoch < 0 for marker in request.markers)
    left = 1

    def answered() -> None:
        nonlocal left
        left -= 1
        if not left:
            context.complete(response)

    for marker in request.markers:
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(result)
        ending = Ending(
            "",
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            frozenset(),
            marker.transaction_version,
        )
        for topic in marker.topics:
            topic_result = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(topic_result)
            for index in topic.partition_indexes:
                answer = WritableTxnMarkerPartitionResult(partition_index=index)
                topic_result.partitions.append(answer)
                if is_nonsense:
                    answer.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
                    continue
                left += 1

                def written(
                    error: ApiError | None, answer: WritableTxnMarkerPartitionResult = answer
                ) -> None:
                    answer.error_code = ErrorCode.NONE if error is None else error.code
                    answered()

                node.write_marker((topic.name, index), ending, marker.coordinator_epoch, written)
    answered()
    return PARKED
