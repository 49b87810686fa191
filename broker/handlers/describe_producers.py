"""DescribeProducers v0: who has been writing to partitions that this broker leads. KIP-664."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.handlers.context import RequestContext
from kwire.errors import ApiError
from kwire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from broker.node import Node


def handle(
    node: Node, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The producers of each partition, or why they cannot be told."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_partition(node, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _partition(node: Node, topic: str, index: int) -> PartitionResponse:
    try:
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
