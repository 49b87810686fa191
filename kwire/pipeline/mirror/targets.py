"""The target topics of a mirror: their creation, and the check that no other program writes to them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
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
from kwire.wire.plural import plural

MAP_SETTINGS: Final = {"cleanup.policy": "compact"}
"""The configs of an offset map. Compaction keeps all entries, because every entry has a different key."""


class TargetTopic(NamedTuple):
    """The required state of a target topic."""

    name: str
    partitions: int
    origin: Origin
    settings: Mapping[str, str]


Progress = dict[tuple[str, int], MapEntry | None]
"""The last map entry of each target partition; None if nothing was mirrored to the partition."""


def prepare(client: Mapping[str, str], job: str, topics: list[TargetTopic]) -> Progress:
    """Create missing target topics and partitions, and return the mirror's progress. Raises KafkaException.

    Raises DeliveryError if a target topic has records of another program, has the map of another source or
    job, has more partitions than the source topic, was deleted without its map, or is a source topic, too.
    """
    admin: Any = AdminClient({"log_level": "5", **client})
    metadata = admin.list_topics(timeout=TIMEOUT_SECONDS)
    counts = {name: len(found.partitions) for name, found in metadata.topics.items()}
    found: Progress = {}
    sources = {topic.origin[:2] for topic in topics}
    with closing(committed_reader(dict(client), job)) as consumer:
        for topic in topics:
            if (str(metadata.cluster_id), topic.name) in sources:
                raise DeliveryError(
                    f"topic {topic.name} is both a source and a target in the same cluster: choose a prefix "
                    f"or suffix, and a pattern that does not match the target"
                )
            found |= _checked(consumer, job, topic, counts)
    for topic in topics:
        # Create the map first, because a target topic without a map counts as a topic of another program.
        _make(admin, topic.name + MAP_SUFFIX, topic.partitions, MAP_SETTINGS, counts)
        _make(admin, topic.name, topic.partitions, topic.settings, counts)
    return found


def _checked(consumer: Consumer, job: str, topic: TargetTopic, counts: Mapping[str, int]) -> Progress:
    existing = counts.get(topic.name, 0)
    if existing > topic.partitions:
        raise DeliveryError(
            f"topic {topic.name} has {plural(existing, 'partition')}, but {topic.origin.topic} of the source "
            f"has {topic.partitions}: choose another prefix or suffix"
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
                f"topic {topic.name} has records but no offset map: another program has written to it; "
                f"choose another prefix or suffix"
            )
        found[topic.name, partition] = entry
    if not existing and in_map:
        for partition in range(in_map):
            if last_entry(consumer, map_partition_of(topic.name, partition, in_map)) is not None:
                raise DeliveryError(
                    f"topic {topic.name} does not exist, but its offset map {topic.name}{MAP_SUFFIX} does: "
                    f"delete the map and the checkpoint to mirror the topic again"
                )
    return found


def check_owner(job: str, topic: TargetTopic, partition: int, entry: MapEntry) -> None:
    """Raise DeliveryError if a map entry belongs to another job, partition or source topic."""
    origin = Origin.of(entry.origin)
    if entry.job != job or entry.partition != partition:
        raise DeliveryError(
            f"topic {topic.name} is filled by the job {entry.job!r}, not by {job!r}: choose another prefix "
            f"or suffix"
        )
    if origin.is_same(topic.origin):
        return
    if origin[:2] == topic.origin[:2]:
        raise DeliveryError(
            f"topic {topic.origin.topic} of the source was deleted and recreated after {topic.name} "
            f"was created from it: choose another prefix or suffix, or delete {topic.name}, its map and the "
            f"checkpoint"
        )
    raise DeliveryError(
        f"topic {topic.name} has the offset map of another source: topic {origin.topic} of cluster "
        f"{origin.cluster}, not {topic.origin.topic} of {topic.origin.cluster}"
    )


def _has_records(consumer: Consumer, partition: TopicPartition) -> bool:
    """Return whether a partition has a committed record."""
    first = messages(consumer, partition, OFFSET_BEGINNING)
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
