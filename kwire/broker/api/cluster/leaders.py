"""ElectLeaders v0–2, AlterPartitionReassignments v0–1, ListPartitionReassignments v0.

ElectLeaders does preferred leader election (KIP-183), and from v1 on also unclean election (KIP-460).
Reassignments: KIP-455, KIP-860.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kwire.broker.api.request.context import DELAYED, Delayed
from kwire.broker.controller.commands import AlterPartitionReassignments, Election, ElectLeaders, Fault
from kwire.broker.controller.partition_change_builder import find_partition, is_reassigning
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kwire.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)
from kwire.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from kwire.broker.api.request.ports import ControllerRequestContext, ControllerRole

ELECTIONS = {int(one): one for one in (Election.PREFERRED, Election.UNCLEAN)}


def elect_leaders(
    node: ControllerRole, context: ControllerRequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse | Delayed:
    """Elect leaders. Return one result per partition; a null list means all that need an election.

    Raises ApiError REQUEST_TIMED_OUT if the timeout is not positive, or INVALID_REQUEST for an unknown
    election type.
    """
    if request.topic_partitions == []:
        return ElectLeadersResponse(replica_election_results=[])
    if request.timeout_ms <= 0:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
    election = ELECTIONS.get(request.election_type)
    if election is None:
        text = f"Unknown election type {request.election_type}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)

    def done(reply: list[ReplicaElectionResult] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.refuse(reply)
        else:
            context.complete(ElectLeadersResponse(replica_election_results=reply))

    topics = request.topic_partitions
    requested = None if topics is None else [(topic.topic, topic.partitions) for topic in topics]
    node.own_controller.submit(ElectLeaders(election, requested), done)
    return DELAYED


def alter_partition_reassignments(
    node: ControllerRole, context: ControllerRequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse | Delayed:
    """Start or cancel reassignments. Return one result per partition, in the order of the request.

    Raises ApiError REQUEST_TIMED_OUT if the timeout is not positive.
    """
    requested = [
        (topic.name, partition.partition_index, partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_message="", responses=[])
    if request.timeout_ms <= 0:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    def done(reply: list[Fault | None] | ApiError) -> None:
        if isinstance(reply, ApiError):
            context.refuse(reply)
            return
        response = _response(request, reply)
        response.allow_replication_factor_change = request.allow_replication_factor_change
        context.complete(response)

    node.own_controller.submit(
        AlterPartitionReassignments(requested, request.allow_replication_factor_change), done
    )
    return DELAYED


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


def list_partition_reassignments(
    node: ControllerRole, _context: ControllerRequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Return the ongoing reassignments of the requested partitions. A null list means all partitions."""
    image = node.image
    requested: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        requested = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    else:
        requested = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics: list[OngoingTopicReassignment] = []
    for name, indexes in requested:
        moving = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(found[1].replicas),
                adding_replicas=list(found[1].adding_replicas),
                removing_replicas=list(found[1].removing_replicas),
            )
            for index in indexes
            if (found := find_partition(image, name, index)) is not None and is_reassigning(found[1])
        ]
        if moving:
            topics.append(OngoingTopicReassignment(name=name, partitions=moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)
