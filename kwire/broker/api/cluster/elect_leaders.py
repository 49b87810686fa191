"""ElectLeaders v0–2: leaders by request, the preferred ones or (v1) any that live. KIP-183, KIP-460."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kwire.broker.api.context import PARKED, Parked, RequestContext
from kwire.broker.controller.commands import Election, ElectLeaders
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from kwire.broker.node.node import Node

FIRST_WITH_ERROR = 1
ELECTIONS = {int(one): one for one in (Election.PREFERRED, Election.UNCLEAN)}


def handle(
    node: Node, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse | Parked:
    """One outcome a partition; what concerns the whole request is said for each of them, too."""
    if request.topic_partitions == []:
        return ElectLeadersResponse(replica_election_results=[])
    if request.timeout_ms <= 0:
        return _refused(context, request, ApiError(ErrorCode.REQUEST_TIMED_OUT))
    election = ELECTIONS.get(request.election_type)
    if election is None:
        text = f"Unknown election type {request.election_type}"
        return _refused(context, request, ApiError(ErrorCode.INVALID_REQUEST, text))

    def done(reply: list[ReplicaElectionResult] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.complete(_refused(context, request, reply))
        else:
            context.complete(ElectLeadersResponse(replica_election_results=reply))

    topics = request.topic_partitions
    asked = None if topics is None else [(topic.topic, topic.partitions) for topic in topics]
    node.controller.submit(ElectLeaders(election, asked), done)
    return PARKED


def _refused(context: RequestContext, request: ElectLeadersRequest, error: ApiError) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error.code if context.api_version >= FIRST_WITH_ERROR else ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )
