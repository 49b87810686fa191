"""The topics that a mirror fills: made and grown as the source's are, and nobody else's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from kwire.pipeline.offset_map import (
    MAP_SUFFIX,
    RESULT_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    DeliveryError,
    MapEntry,
    committed_reader,
    last_entry,
    map_partition_of,
    messages,
)
from kwire.pipeline.origin import Origin

MAP_SETTINGS: Final = {"cleanup.policy": "compact"}
"""Every entry has a key of its own, so that this keeps all of them."""


class TargetTopic(NamedTuple):
    """A topic as it is to be."""

    name: str
    partitions: int
    origin: Origin
    settings: Mapping[str, str]


Progress = dict[tuple[str, int], MapEntry | None]
"""The last entry of the map for partitions of the target; None where nothing was mirrored."""


def prepare(client: Mapping[str, str], job: str, topics: list[TargetTopic]) -> Progress:
    """Make what is not there, and say how far one has come. KafkaException.

    DeliveryError where a topic is not this mirror's: it has other records, the map of another source or job,
    or more partitions than the source.
    """
    admin: Any = AdminClient({"log_level": "5", **client})
    metadata = admin.list_topics(timeout=TIMEOUT_SECONDS)
    counts = {name: len(found.partitions) for name, found in metadata.topics.items()}
    consumer = committed_reader(dict(client), job)
    found: Progress = {}
    sources = {topic.origin[:2] for topic in topics}
    try:
        for topic in topics:
            if (str(metadata.cluster_id), topic.name) in sources:
                raise DeliveryError(
                    f"topic {topic.name} is both a source and a target, in the same cluster: choose a prefix "
                    f"or a suffix, and a pattern that does not fit it"
                )
            found |= _checked(consumer, job, topic, counts)
    finally:
        consumer.close()
    for topic in topics:
        # The map first: a target without a map is somebody else's.
        _make(admin, topic.name + MAP_SUFFIX, topic.partitions, MAP_SETTINGS, counts)
        _make(admin, topic.name, topic.partitions, topic.settings, counts)
    return found


def _checked(consumer: Consumer, job: str, topic: TargetTopic, counts: Mapping[str, int]) -> Progress:
    existing = counts.get(topic.name, 0)
    if existing > topic.partitions:
        raise DeliveryError(
            f"topic {topic.name} has {existing} partitions, and {topic.origin.topic} of the source has "
            f"{topic.partitions}: records cannot keep theirs; choose another prefix or suffix"
        )
    found: Progress = {(topic.name, partition): None for partition in range(topic.partitions)}
    in_map = counts.get(topic.name + MAP_SUFFIX, 0)
    for partition in range(existing):
        entry = None
        if partition < in_map:
            entry = last_entry(consumer, map_partition_of(topic.name, partition, in_map))
        if entry is not None:
            check_owner(job, topic, partition, entry)
        elif _has_records(consumer, TopicPartition(topic.name, partition)):
            raise DeliveryError(
                f"topic {topic.name} has records that no offset map tells of: it is not this mirror's; "
                f"choose another prefix or suffix"
            )
        found[topic.name, partition] = entry
    if not existing and in_map:
        for partition in range(in_map):
            if last_entry(consumer, map_partition_of(topic.name, partition, in_map)) is not None:
                raise DeliveryError(
                    f"topic {topic.name} is gone, and its map {topic.name}{MAP_SUFFIX} is not: delete that "
                    f"and the checkpoint to mirror anew"
                )
    return found


def check_owner(job: str, topic: TargetTopic, partition: int, entry: MapEntry) -> None:
    """DeliveryError where an entry of a map is not one of this mirror."""
    origin = Origin.of(entry.origin)
    if entry.job != job or entry.partition != partition:
        raise DeliveryError(
            f"topic {topic.name} is filled by the job {entry.job!r}, not by {job!r}; choose another prefix "
            f"or suffix"
        )
    if origin.is_same(topic.origin):
        return
    if origin[:2] == topic.origin[:2]:
        raise DeliveryError(
            f"topic {topic.origin.topic} of the source has been deleted and created anew since {topic.name} "
            f"was made from it: choose another prefix or suffix, or delete {topic.name}, its map and the "
            f"checkpoint"
        )
    raise DeliveryError(
        f"topic {topic.name} has the offset map of another source: topic {origin.topic} of cluster "
        f"{origin.cluster}, not {topic.origin.topic} of {topic.origin.cluster}"
    )


def _has_records(consumer: Consumer, place: TopicPartition) -> bool:
    """Whether anything is committed in a partition."""
    first = messages(consumer, TopicPartition(place.topic, place.partition), OFFSET_BEGINNING)
    return next(first, None) is not None


def _make(
    admin: Any, name: str, partitions: int, settings: Mapping[str, str], counts: Mapping[str, int]
) -> None:
    existing = counts.get(name, 0)
    if not existing:
        futures = admin.create_topics([NewTopic(name, num_partitions=partitions, config=dict(settings))])
    elif existing < partitions:
        futures = admin.create_partitions([NewPartitions(name, partitions)])
    else:
        return
    try:
        futures[name].result(RESULT_TIMEOUT_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
