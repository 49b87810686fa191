"""CreateTopics, DeleteTopics and CreatePartitions: requests become records.

A new topic is checked in this order: existence, name collision ('.' against '_'), name, configs, manual
assignment or replication factor, partition count, replica placement. The first error is the one that Apache
Kafka returns. Clients print the error messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kwire.broker.controller.commands import (
    MAX_RECORDS_PER_REQUEST,
    THROTTLING_QUOTA_EXCEEDED,
    TOO_MANY_RECORDS,
    AlterOperation,
    ConfigChange,
    ConfigRules,
    ControllerResult,
    CreatePartitions,
    CreateTopics,
    DeletedTopic,
    DeleteTopics,
    Fault,
    MutationQuota,
    ResourceChange,
    TopicToDelete,
)
from kwire.broker.controller.configs import alter_resource
from kwire.broker.controller.replica_placement import place_replicas
from kwire.broker.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionImage,
    TopicImage,
    has_collision_chars,
    unify_collision_chars,
)
from kwire.broker.metadata.records import StoredRecord, partition_record
from kwire.broker.metadata.topic_names import topic_name_fault
from kwire.wire.errors import ApiError, ErrorCode
from kwire.wire.messages.create_partitions import CreatePartitionsTopic
from kwire.wire.messages.create_topics import CreatableTopic, CreatableTopicResult
from kwire.wire.primitives import Uuid
from kwire.wire.records.metadata import RemoveTopicRecord, TopicRecord

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""The maximum number of new partitions in one request, as in Kafka. MAX_RECORDS_PER_REQUEST applies, too."""

_TOO_MANY_PARTITIONS: Final = Fault(
    ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
)


class TopicDefaults:
    """Default values for topics and elections, from the node's configuration."""

    __slots__ = (
        "ignores_case",
        "min_insync_replicas",
        "num_partitions",
        "replication_factor",
        "unclean_leader_election",
    )

    def __init__(
        self,
        num_partitions: int,
        replication_factor: int,
        min_insync_replicas: int = 1,
        *,
        unclean_leader_election: bool = False,
        ignores_case: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ignores_case` returns whether names that differ only in case are the same in the file system."""
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.min_insync_replicas = min_insync_replicas
        self.unclean_leader_election = unclean_leader_election
        self.ignores_case = ignores_case


# --- create


def create_topics(
    command: CreateTopics,
    image: MetadataImage,
    rules: ConfigRules,
    defaults: TopicDefaults,
    rng: random.Random,
) -> ControllerResult[list[CreatableTopicResult]]:
    """Create all valid topics in one atomic batch; an invalid topic does not affect the others.

    Raises ApiError POLICY_VIOLATION if the request needs too many partitions or records.
    """
    requested = sum(_partition_count(topic, defaults) for topic in command.topics)
    if requested > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(*_TOO_MANY_PARTITIONS)
    records: list[StoredRecord] = []
    results: list[CreatableTopicResult] = []
    taken = {name.casefold(): name for name in image.topics} if defaults.ignores_case() else None
    for topic in command.topics:
        outcome = _case_fault(topic.name, image, taken) or _create_topic(topic, image, rules, defaults, rng)
        if not isinstance(outcome, Fault) and not _is_allowed(command.quota, outcome[1].num_partitions):
            outcome = THROTTLING_QUOTA_EXCEEDED
        if isinstance(outcome, Fault):
            results.append(_failure(topic, outcome))
            continue
        if taken is not None:
            taken[topic.name.casefold()] = topic.name
        topic_records, result = outcome
        records.extend(topic_records)
        results.append(result)
        if len(records) > MAX_RECORDS_PER_REQUEST:
            raise ApiError(*TOO_MANY_RECORDS)
    return ControllerResult([] if command.validate_only else records, results)


def _is_allowed(quota: MutationQuota | None, partitions: int) -> bool:
    return quota is None or quota.take(partitions)


def _partition_count(topic: CreatableTopic, defaults: TopicDefaults) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return defaults.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)


def _failure(topic: CreatableTopic, fault: Fault) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, error_code=fault.code, error_message=fault.message)


def _create_topic(
    topic: CreatableTopic,
    image: MetadataImage,
    rules: ConfigRules,
    defaults: TopicDefaults,
    rng: random.Random,
) -> Fault | tuple[list[StoredRecord], CreatableTopicResult]:
    fault = _name_fault(topic.name, image)
    if fault is not None:
        return fault
    without_value = [config.name for config in topic.configs if config.value is None]
    if without_value:
        text = "Null value not supported for topic configs: " + ",".join(without_value)
        return Fault(ErrorCode.INVALID_CONFIG, text)
    # If a request names a key twice, the last value is used, as in Kafka.
    values = {config.name: config.value for config in topic.configs}
    configuration = alter_resource(
        ResourceChange(
            RESOURCE_TOPIC,
            topic.name,
            [ConfigChange(name, AlterOperation.SET, value) for name, value in values.items()],
        ),
        image,
        rules,
        is_new=True,
    )
    if isinstance(configuration, Fault):
        return configuration
    placed = _assign_topic(topic, image, defaults, rng)
    if isinstance(placed, Fault):
        return placed
    topic_id = new_uuid(rng)
    records = [StoredRecord(TopicRecord(name=topic.name, topic_id=topic_id)), *configuration]
    records.extend(partition_record(image, topic_id, index, part) for index, part in enumerate(placed))
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(placed),
        replication_factor=len(placed[0].replicas),
    )
    return records, result


def _case_fault(name: str, image: MetadataImage, taken: Mapping[str, str] | None) -> Fault | None:
    """Return the fault of a name whose directories would be those of another topic.

    `taken` has the names of all topics by their `casefold`. It is None if the file system distinguishes case.
    """
    other = None if taken is None or name in image.topics else taken.get(name.casefold())
    if other is None:
        return None
    text = (
        f"Topic '{name}' differs only in case from existing topic '{other}', and the file system of the data "
        f"directory does not distinguish case: choose another name."
    )
    return Fault(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def _name_fault(name: str, image: MetadataImage) -> Fault | None:
    if name in image.topics:
        return Fault(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if has_collision_chars(name):
        colliding = image.colliding_names.get(unify_collision_chars(name))
        if colliding:
            text = f"Topic '{name}' collides with existing topic: {colliding[0]}"
            return Fault(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    text_or_none = topic_name_fault(name)
    return None if text_or_none is None else Fault(ErrorCode.INVALID_TOPIC_EXCEPTION, text_or_none)


def _assign_topic(
    topic: CreatableTopic, image: MetadataImage, defaults: TopicDefaults, rng: random.Random
) -> Fault | list[PartitionImage]:
    if topic.assignments:
        return _assign_topic_manually(topic, image)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        return Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        text = "Number of partitions was set to an invalid non-positive value."
        return Fault(ErrorCode.INVALID_PARTITIONS, text)
    count = defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    placed = _assign_partitions(image, count, factor, rng)
    if isinstance(placed, Fault) and not (placed.message or "").startswith("Unable"):
        return _placement_fault(factor, placed.message)
    return placed


def _assign_topic_manually(topic: CreatableTopic, image: MetadataImage) -> Fault | list[PartitionImage]:
    if topic.replication_factor != -1:
        text = "A manual partition assignment was specified, but replication factor was not set to -1."
        return Fault(ErrorCode.INVALID_REQUEST, text)
    if topic.num_partitions != -1:
        text = "A manual partition assignment was specified, but numPartitions was not set to -1."
        return Fault(ErrorCode.INVALID_REQUEST, text)
    placed: dict[int, PartitionImage] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in placed:
            text = f"Found multiple manual partition assignments for partition {index}"
            return Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        partition = _assign_manually(image, index, assignment.broker_ids, replication_factor)
        if isinstance(partition, Fault):
            return partition
        replication_factor = len(assignment.broker_ids)
        placed[index] = partition
    if set(placed) != set(range(len(placed))):
        text = "partitions should be a consecutive 0-based integer sequence"
        return Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return [placed[index] for index in range(len(placed))]


def _assign_manually(
    image: MetadataImage, index: int, broker_ids: Sequence[int], replication_factor: int | None
) -> Fault | PartitionImage:
    fault = assignment_fault(image, broker_ids, replication_factor)
    if fault is not None:
        return fault
    partition = _new_partition(image, broker_ids)
    if partition is None:
        text = (
            f"All brokers specified in the manual partition assignment for partition {index} "
            "are fenced or in controlled shutdown."
        )
        return Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return partition


def assignment_fault(
    image: MetadataImage, broker_ids: Sequence[int], replication_factor: int | None
) -> Fault | None:
    """Return why these brokers cannot be the replicas of one partition, or None if they can."""
    text: str | None = None
    if not broker_ids:
        text = "The manual partition assignment includes an empty replica list."
    previous: int | None = None
    for broker_id in sorted(broker_ids):
        if broker_id not in image.brokers:
            text = (
                f"The manual partition assignment includes broker {broker_id}, "
                "but no such broker is registered."
            )
            break
        if broker_id == previous:
            text = f"The manual partition assignment includes the broker {broker_id} more than once."
            break
        previous = broker_id
    if text is None and replication_factor is not None and len(broker_ids) != replication_factor:
        text = (
            f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), "
            "but this is not consistent with previous partitions, which have "
            f"{replication_factor} replica(s)."
        )
    return None if text is None else Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _assign_partitions(
    image: MetadataImage, count: int, replication_factor: int, rng: random.Random
) -> Fault | list[PartitionImage]:
    """Return `count` new partitions with replicas spread over the brokers, or an error."""
    placed = place_replicas(image, count, replication_factor, rng)
    if isinstance(placed, Fault):
        return placed
    partitions = []
    for broker_ids in placed:
        partition = _new_partition(image, broker_ids)
        if partition is None:
            return _placement_fault(
                replication_factor, "All brokers are currently fenced or in controlled shutdown."
            )
        partitions.append(partition)
    return partitions


def _placement_fault(replication_factor: int, reason: str | None) -> Fault:
    text = f"Unable to replicate the partition {replication_factor} time(s): {reason}"
    return Fault(ErrorCode.INVALID_REPLICATION_FACTOR, text)


def _new_partition(image: MetadataImage, broker_ids: Iterable[int]) -> PartitionImage | None:
    """Return a partition led by the first active broker of `broker_ids`, or None if none is active."""
    replicas = tuple(broker_ids)
    isr = tuple(broker_id for broker_id in replicas if image.brokers[broker_id].is_active)
    if not isr:
        return None
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        directories=tuple(default_directory(image, broker_id) for broker_id in replicas),
    )


def default_directory(image: MetadataImage, broker_id: int) -> Uuid:
    """Return the log directory of a new replica on this broker (KIP-858).

    DIRECTORY_UNASSIGNED: the broker will choose. DIRECTORY_MIGRATING: it registered no directory ids.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        return DIRECTORY_UNASSIGNED
    if not broker.log_dirs:
        return DIRECTORY_MIGRATING
    return broker.log_dirs[0] if len(broker.log_dirs) == 1 else DIRECTORY_UNASSIGNED


def new_uuid(rng: random.Random) -> Uuid:
    """Return a random UUID (version 4) whose text does not start with a dash, as an option would."""
    while True:
        raw = bytearray(rng.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 62:  # the first character: URL-safe base64 encodes 62 as '-'
            return Uuid(bytes(raw))


# --- delete


def delete_topics(command: DeleteTopics, image: MetadataImage) -> ControllerResult[list[DeletedTopic]]:
    """Delete topics by name or id. A topic that the request names twice gets an error and is not deleted."""
    results: list[DeletedTopic] = []
    names: dict[str, int] = {}
    ids: dict[Uuid, int] = {}
    for topic in command.topics:
        if topic.name is not None and topic.topic_id is not None:
            text = "You may not specify both topic name and topic id."
            results.append(DeletedTopic(*topic, Fault(ErrorCode.INVALID_REQUEST, text)))
        elif topic.name is not None:
            names[topic.name] = names.get(topic.name, 0) + 1
        elif topic.topic_id is not None:
            ids[topic.topic_id] = ids.get(topic.topic_id, 0) + 1
        else:
            text = "Neither topic name nor id were specified."
            results.append(DeletedTopic(None, None, Fault(ErrorCode.INVALID_REQUEST, text)))
    for name, times in names.items():
        if times > 1:
            fault = Fault(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(DeletedTopic(name, None, fault))
    for topic_id, times in ids.items():
        if times > 1:
            fault = Fault(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
            results.append(DeletedTopic(None, topic_id, fault))
    found: dict[Uuid, TopicImage] = {}
    for topic_id, times in ids.items():
        if times > 1:
            continue
        by_id = image.topics_by_id.get(topic_id)
        if by_id is None:
            fault = Fault(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            results.append(DeletedTopic(None, topic_id, fault))
        else:
            found[topic_id] = by_id
    for name, times in names.items():
        if times > 1:
            continue
        by_name = image.topics.get(name)
        if by_name is None:
            text = "This server does not host this topic-partition."
            results.append(DeletedTopic(name, None, Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)))
        elif by_name.topic_id in ids:
            found.pop(by_name.topic_id, None)
            text = "The provided topic name maps to an ID that was already supplied."
            results.append(DeletedTopic(name, by_name.topic_id, Fault(ErrorCode.INVALID_REQUEST, text)))
        else:
            found[by_name.topic_id] = by_name
    for topic_id, known in list(found.items()):
        if not _is_allowed(command.quota, len(known.partitions)):
            del found[topic_id]
            results.append(DeletedTopic(known.name, topic_id, THROTTLING_QUOTA_EXCEEDED))
    records = [StoredRecord(RemoveTopicRecord(topic_id=topic_id)) for topic_id in found]
    if len(records) > MAX_RECORDS_PER_REQUEST:
        results.extend(DeletedTopic(topic.name, topic.topic_id, TOO_MANY_RECORDS) for topic in found.values())
        return ControllerResult([], results)
    results.extend(DeletedTopic(topic.name, topic.topic_id, None) for topic in found.values())
    return ControllerResult(records, results)


# --- create partitions


def create_partitions(
    command: CreatePartitions, image: MetadataImage, rng: random.Random
) -> ControllerResult[list[tuple[str, Fault | None]]]:
    """Add partitions to each topic, up to the requested total count.

    Raises ApiError POLICY_VIOLATION if the request names too many topics.
    """
    if len(command.topics) > MAX_RECORDS_PER_REQUEST:
        raise ApiError(*TOO_MANY_RECORDS)
    records: list[StoredRecord] = []
    results: list[tuple[str, Fault | None]] = []
    for requested in command.topics:
        added = _add_partitions(requested, image, rng, command.quota)
        if isinstance(added, Fault):
            results.append((requested.name, added))
            continue
        if len(records) + len(added) > MAX_RECORDS_PER_REQUEST:
            results.append((requested.name, TOO_MANY_RECORDS))
            continue
        records.extend(added)
        results.append((requested.name, None))
    return ControllerResult([] if command.validate_only else records, results)


def _add_partitions(
    requested: CreatePartitionsTopic, image: MetadataImage, rng: random.Random, quota: MutationQuota | None
) -> Fault | list[StoredRecord]:
    topic = image.topics.get(requested.name)
    if topic is None:
        return Fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(topic.partitions)
    if requested.count == present:
        return Fault(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if requested.count < present:
        text = (
            f"The topic {requested.name} currently has {present} partition(s); "
            f"{requested.count} would not be an increase."
        )
        return Fault(ErrorCode.INVALID_PARTITIONS, text)
    additional = requested.count - present
    if requested.assignments is not None and len(requested.assignments) != additional:
        text = (
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(requested.assignments)} assignment(s) were specified."
        )
        return Fault(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if not _is_allowed(quota, additional):
        return THROTTLING_QUOTA_EXCEEDED
    replication_factor = len(topic.partitions[0].replicas)
    placed: list[PartitionImage] = []
    if requested.assignments is not None:
        for index, assignment in enumerate(requested.assignments, present):
            partition = _assign_manually(image, index, assignment.broker_ids, replication_factor)
            if isinstance(partition, Fault):
                return partition
            placed.append(partition)
    elif additional > MAX_RECORDS_PER_REQUEST:
        # Check the count before the placement, because a request may ask for two billion partitions.
        return TOO_MANY_RECORDS
    else:
        outcome = _assign_partitions(image, additional, replication_factor, rng)
        if isinstance(outcome, Fault):
            return outcome
        placed = outcome
    return [
        partition_record(image, topic.topic_id, index, partition)
        for index, partition in enumerate(placed, present)
    ]


__all__ = [
    "TopicDefaults",
    "TopicToDelete",
    "create_partitions",
    "create_topics",
    "delete_topics",
    "new_uuid",
]
