"""ElectLeaders v0–2, AlterPartitionReassignments v0–1, ListPartitionReassignments v0.

ElectLeaders does preferred leader election (KIP-183), and from v1 on also unclean election (KIP-460).
Reassignments: KIP-455, KIP-860.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kwire.broker.api.request.commands import submit
from kwire.broker.api.request.context import Delayed
from kwire.broker.api.request.error_responses import with_results
from kwire.broker.controller.commands import AlterPartitionReassignments, Election, ElectLeaders, Fault
from kwire.broker.controller.partition_change_builder import find_partition, is_reassigning
from kwire.wire.api_keys import ApiKey
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
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

    def respond(results: list[ReplicaElectionResult]) -> ElectLeadersResponse:
        return ElectLeadersResponse(replica_election_results=results)

    topics = request.topic_partitions
    requested = None if topics is None else [(topic.topic, topic.partitions) for topic in topics]
    return submit(node, context, ElectLeaders(election, requested), respond)


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

    def respond(faults: list[Fault | None]) -> AlterPartitionReassignmentsResponse:
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
        )
        return with_results(ApiKey.ALTER_PARTITION_REASSIGNMENTS, response, request, faults)

    command = AlterPartitionReassignments(requested, request.allow_replication_factor_change)
    return submit(node, context, command, respond)


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
