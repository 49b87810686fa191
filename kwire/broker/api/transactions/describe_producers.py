"""DescribeProducers v0: who has been writing to partitions that this broker leads. KIP-664."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import RequestContext
from kwire.broker.metadata.names import name_fault
from kwire.wire.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kwire.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers of each partition, or why they cannot be told."""
    topics = []
    for topic in request.topics:
        fault = _topic_fault(node, topic.name)
        partitions = [_partition(node, topic.name, index, fault) for index in topic.partition_indexes]
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _topic_fault(node: Node, topic: str) -> ApiError | None:
    """What is wrong with all partitions of a topic, which is told in words; nothing where it is there."""
    name_error = name_fault(topic)
    if name_error is not None:
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, name_error)
    if topic not in node.image.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ApiError(code, DEFAULT_MESSAGES[code])
    return None


def _partition(node: Node, topic: str, index: int, topic_fault: ApiError | None) -> PartitionResponse:
    try:
        if topic_fault is not None:
            raise topic_fault
        log = node.led_partition(topic, index).log
    except ApiError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=-1 if state.txn_first_offset is None else state.txn_first_offset,
            )
            for producer_id, state in log.producers.producers.items()
        ],
    )
