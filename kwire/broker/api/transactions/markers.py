"""WriteTxnMarkers v1–2, from coordinators, and from administrators who abort a hanging transaction.

KIP-98, KIP-664, KIP-1228.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed, RequestContext
from kwire.broker.replication.roles import Role
from kwire.coordinator.transactions.state_machine import TransactionMarker
from kwire.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kwire.wire.primitives import TopicPartition

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import BrokerRole


Results = dict[int, dict[TopicPartition, ErrorCode]]


def write_txn_markers(node: BrokerRole, context: RequestContext, request: WriteTxnMarkersRequest) -> Delayed:
    """Respond when every marker is written or rejected. Results with the same producer id are merged."""
    results: Results = {}
    left = 1

    def marker_done() -> None:
        nonlocal left
        left -= 1
        if not left:
            context.complete(_response(results))

    for marker in request.markers:
        partitions = _partitions(marker)
        if not partitions:
            continue
        codes = results.setdefault(marker.producer_id, {})
        if marker.producer_id == NO_PRODUCER_ID or marker.producer_epoch == NO_PRODUCER_EPOCH:
            codes.update(dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST))
            continue
        txn_marker = TransactionMarker(
            "",
            marker.producer_id,
            marker.producer_epoch,
            marker.transaction_result,
            frozenset(),
            marker.transaction_version,
        )
        for partition in partitions:
            held = node.partition(*partition)
            if held is None or held.role is Role.OFFLINE:
                codes[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            codes[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
            left += 1

            def written(
                error: ApiError | None,
                codes: dict[TopicPartition, ErrorCode] = codes,
                partition: TopicPartition = partition,
            ) -> None:
                codes[partition] = ErrorCode.NONE if error is None else error.code
                marker_done()

            node.write_marker(partition, txn_marker, marker.coordinator_epoch, written)
    marker_done()
    return DELAYED


def _partitions(marker: WritableTxnMarker) -> dict[TopicPartition, None]:
    """Return the partitions of a marker without duplicates."""
    return dict.fromkeys((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)


def _response(results: Results) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    for producer_id, codes in results.items():
        topics: dict[str, WritableTxnMarkerTopicResult] = {}
        for (name, index), code in codes.items():
            topic = topics.setdefault(name, WritableTxnMarkerTopicResult(name=name))
            topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
        response.markers.append(
            WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values()))
        )
    return response
