"""The lag of consumer groups on a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import confluent_kafka.admin
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

ADMIN: Final[Any] = confluent_kafka.admin  # its types are partial
TIMEOUT_SECONDS: Final = 60.0
GROUPS_AT_ONCE: Final = 50


class GroupLag(NamedTuple):
    """The lag of a consumer group that has committed offsets for the topic."""

    group: str
    state: str
    partitions: dict[int, int]
    """Lag in offsets by partition; partitions without a committed offset are omitted."""

    @property
    def total(self) -> int:
        return sum(self.partitions.values())


def lag_of(committed: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return the lag in offsets of each partition that has a committed offset and an end offset.

    The lag is 0 if the committed offset is beyond the partition's end, as after a topic was recreated.
    """
    return {
        partition: max(0, ends[partition] - offset)
        for partition, offset in sorted(committed.items())
        if offset >= 0 and partition in ends
    }


def lags(client: Mapping[str, str], topic: str) -> list[GroupLag]:
    """Return the lag of each group with committed offsets for the topic, the largest lag first.

    Raises KafkaException.
    """
    admin = ADMIN.AdminClient(dict(client))
    about = admin.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
    if about.error is not None:
        raise KafkaException(about.error)
    partitions = [TopicPartition(topic, partition) for partition in about.partitions]
    futures = admin.list_offsets(
        dict.fromkeys(partitions, ADMIN.OffsetSpec.latest()), request_timeout=TIMEOUT_SECONDS
    )
    ends = {partition.partition: future.result().offset for partition, future in futures.items()}
    listed = admin.list_consumer_groups(request_timeout=TIMEOUT_SECONDS).result()
    if listed.errors:
        raise listed.errors[0]
    states = {group.group_id: group.state.name.lower() for group in listed.valid}
    names = sorted(states)
    found = []
    for first in range(0, len(names), GROUPS_AT_ONCE):
        # The client accepts one group per call.
        futures = {
            name: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name, partitions)], request_timeout=TIMEOUT_SECONDS
            )[name]
            for name in names[first : first + GROUPS_AT_ONCE]
        }
        for name, future in futures.items():
            committed = {
                partition.partition: partition.offset
                for partition in future.result().topic_partitions
                if partition.error is None
            }
            lag = lag_of(committed, ends)
            if lag:
                found.append(GroupLag(name, states[name], lag))
    return sorted(found, key=lambda one: (-one.total, one.group))
