"""AlterPartitionReassignments v0–1: partitions move to other replicas, or stop doing so. KIP-455, KIP-860."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import AlterReassignments, Fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node


def handle(
    node: Node, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse | Parked:
    """One outcome a partition, in the order asked."""
    asked = [
        (topic.name, partition.partition_index, partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_message="", responses=[])
    if request.timeout_ms <= 0:
        return _refused(request, ApiError(ErrorCode.REQUEST_TIMED_OUT), len(asked))

    def done(reply: list[Fault | None] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.complete(_refused(request, reply, len(asked)))
            return
        response = _response(request, reply)
        response.allow_replication_factor_change = request.allow_replication_factor_change
        context.complete(response)

    node.controller.submit(AlterReassignments(asked, request.allow_replication_factor_change), done)
    return PARKED


def _refused(
    request: AlterPartitionReassignmentsRequest, error: ApiError, partitions: int
) -> AlterPartitionReassignmentsResponse:
    """The same for each partition."""
    response = _response(request, [Fault(error.code, error.message)] * partitions)
    response.error_code, response.error_message = error.code, error.message
    return response


def _response(
    request: AlterPartitionReassignmentsRequest, outcomes: Sequence[Fault | None]
) -> AlterPartitionReassignmentsResponse:
    left = iter(outcomes)
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.NONE if fault is None else fault.code,
                        error_message=None if fault is None else fault.message,
                    )
                    for partition, fault in zip(topic.partitions, left, strict=False)
                ],
            )
            for topic in request.topics
        ],
    )
