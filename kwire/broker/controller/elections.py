"""ElectLeaders: leaders by request, the preferred ones or any that live. KIP-183, KIP-460."""

from __future__ import annotations

from kwire.broker.controller.commands import Election, ElectLeaders, Fault, Result
from kwire.broker.controller.partition_changes import PartitionChange, find
from kwire.broker.metadata.image import NO_LEADER, MetadataImage
from kwire.broker.metadata.records import StoredRecord
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.elect_leaders import PartitionResult, ReplicaElectionResult

_NOT_NEEDED = Fault(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NOT_AVAILABLE = {
    Election.PREFERRED: Fault(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    ),
    Election.UNCLEAN: Fault(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
    ),
}


def elect_leaders(command: ElectLeaders, image: MetadataImage) -> Result[list[ReplicaElectionResult]]:
    """One outcome a partition that was named; of all partitions, only where there was something to do."""
    records: list[StoredRecord] = []
    results: list[ReplicaElectionResult] = []
    asked = command.topics
    if asked is None:
        asked = [(topic.name, range(len(topic.partitions))) for topic in image.topics.values()]
    for name, indexes in asked:
        result = ReplicaElectionResult(topic=name, partition_result=[])
        results.append(result)
        for index in indexes:
            outcome = _elect(image, name, index, command.election)
            if isinstance(outcome, StoredRecord):
                records.append(outcome)
                result.partition_result.append(PartitionResult(partition_id=index, error_message=None))
            elif command.topics is not None or outcome is not _NOT_NEEDED:
                result.partition_result.append(
                    PartitionResult(
                        partition_id=index, error_code=outcome.code, error_message=outcome.message
                    )
                )
    return Result(records, results, atomic=False)


def _elect(image: MetadataImage, name: str, index: int, election: Election) -> StoredRecord | Fault:
    if name not in image.topics:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    found = find(image, name, index)
    if found is None:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    topic, partition = found
    is_led = partition.leader != NO_LEADER
    if election is Election.PREFERRED:
        is_led = partition.leader == partition.replicas[0]
    if is_led:
        return _NOT_NEEDED
    change = PartitionChange(image, topic, index)
    change.election = election
    return change.record() or _NOT_AVAILABLE[election]
