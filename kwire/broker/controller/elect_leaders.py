"""ElectLeaders (KIP-183, KIP-460), and the periodic elections of preferred and unclean leaders."""

from __future__ import annotations

from typing import Final

from kwire.broker.controller.commands import (
    MAX_RECORDS_PER_REQUEST,
    TOO_MANY_RECORDS,
    ControllerResult,
    Election,
    ElectLeaders,
    Fault,
    RunPeriodicElection,
)
from kwire.broker.controller.partition_change_builder import (
    PartitionChangeBuilder,
    election_for_topic,
    find_partition,
)
from kwire.broker.metadata.image import NO_LEADER, MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.elect_leaders import PartitionResult, ReplicaElectionResult

MAX_ELECTIONS_AT_ONCE: Final = 1_000
"""The maximum number of elections in one periodic run, as in Kafka."""

_NOT_NEEDED = Fault(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NOT_AVAILABLE = {
    Election.PREFERRED: Fault(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    ),
    Election.UNCLEAN: Fault(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
    ),
}


def elect_leaders(
    command: ElectLeaders, image: MetadataImage
) -> ControllerResult[list[ReplicaElectionResult]]:
    """Elect leaders of the requested partitions.

    The response to a request for all partitions omits partitions that need no election. Raises ApiError
    POLICY_VIOLATION for the complete request if it needs too many records.
    """
    records: list[StoredRecord] = []
    results: list[ReplicaElectionResult] = []
    requested = command.topics
    if requested is None:
        requested = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    for name, indexes in requested:
        result = ReplicaElectionResult(topic=name, partition_result=[])
        results.append(result)
        for index in indexes:
            outcome = _elect(image, name, index, command.election)
            if isinstance(outcome, StoredRecord):
                records.append(outcome)
                if len(records) > MAX_RECORDS_PER_REQUEST:
                    raise ApiError(*TOO_MANY_RECORDS)
                result.partition_result.append(PartitionResult(partition_id=index, error_message=None))
            elif command.topics is not None or outcome is not _NOT_NEEDED:
                result.partition_result.append(
                    PartitionResult(
                        partition_id=index, error_code=outcome.code, error_message=outcome.message
                    )
                )
    return ControllerResult(records, results, atomic=False)


def _elect(image: MetadataImage, name: str, index: int, election: Election) -> StoredRecord | Fault:
    if name not in image.topics:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    found = find_partition(image, name, index)
    if found is None:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    topic, partition = found
    is_led = partition.leader != NO_LEADER
    if election is Election.PREFERRED:
        is_led = partition.leader == partition.replicas[0]
    if is_led:
        return _NOT_NEEDED
    change = PartitionChangeBuilder(image, topic, index)
    change.election = election
    return change.build() or _NOT_AVAILABLE[election]


def run_periodic_election(
    command: RunPeriodicElection, image: MetadataImage, *, unclean_enabled: bool
) -> ControllerResult[bool]:
    """Elect preferred leaders, or unclean leaders for offline partitions whose topics allow it.

    The response is True if the run stopped after MAX_ELECTIONS_AT_ONCE elections.
    """
    records: list[StoredRecord] = []
    is_unclean = command.election is Election.UNCLEAN
    for topic in image.topics.values():
        if (
            is_unclean
            and election_for_topic(image, topic.name, unclean_enabled=unclean_enabled) is not Election.UNCLEAN
        ):
            continue
        for index, partition in enumerate(topic.partitions):
            is_led = (
                partition.leader != NO_LEADER if is_unclean else partition.leader == partition.replicas[0]
            )
            if is_led:
                continue
            change = PartitionChangeBuilder(image, topic, index)
            change.election = command.election
            record = change.build()
            if record is not None:
                records.append(record)
                if len(records) == MAX_ELECTIONS_AT_ONCE:
                    return ControllerResult(records, True, atomic=False)
    return ControllerResult(records, False, atomic=False)
