"""MirrorMaker 2 between Apache Kafka and the broker under test, in both directions at the same time."""

# The type annotations of the client libraries are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from interop.brokers import ApacheKafka, Broker, Served
from interop.java_programs import JavaProgram
from interop.scenario import scenario
from interop.scenarios.clients_confluent import consumer_of, producer_of
from interop.workload import records

WAIT_S = 120.0
COUNT = 500
GROUP = "mirror-readers"
CONFIGS = {
    "east": {"retention.ms": "-1", "segment.bytes": "1048576", "max.message.bytes": "200000"},
    "west": {"retention.ms": "-1", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.9"},
}
"""The configurations of the source topics: `mirror-east` in one cluster and `mirror-west` in the other."""


class MirroredCluster:
    """One of the two clusters, with its own topic and the topic that is mirrored from cluster `origin`."""

    def __init__(self, name: str, broker: Served, origin: str) -> None:
        self.name = name
        self.broker = broker
        self.topic = f"mirror-{name}"
        self.mirrored_topic = f"{origin}.mirror-{origin}"
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create_topic(self, partitions: int) -> None:
        topic = NewTopic(self.topic, partitions, 1, config=CONFIGS[self.name])
        self.admin.create_topics([topic])[self.topic].result(30)

    def produce(self, partitions: int) -> None:
        """Produce `COUNT` records to the first `partitions` partitions in turn."""
        self._produce(COUNT, range(partitions))

    def produce_one(self, partition: int) -> None:
        self._produce(1, range(partition, partition + 1))

    def _produce(self, count: int, partitions: range) -> None:
        producer = producer_of(self.broker, **{"enable.idempotence": True, "compression.type": "lz4"})
        for index, sent in enumerate(records(count)):
            producer.produce(
                self.topic,
                key=f"{self.name}-{index}".encode(),
                value=sent.value,
                headers=sent.headers,
                timestamp=sent.timestamp_ms,
                partition=partitions[index % len(partitions)],
            )
        assert producer.flush(30) == 0

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        found = self.admin.list_topics(timeout=30).topics.get(topic)
        return [] if found is None else [TopicPartition(topic, number) for number in sorted(found.partitions)]

    def read(self, topic: str, starts: list[TopicPartition] | None = None) -> list[list[str]]:
        """Return timestamp, key, value and headers of all committed records, by partition.

        `starts` contains the offset at which to start in each partition. The default is offset 0.
        """
        places = starts or [TopicPartition(topic, place.partition, 0) for place in self.partitions_of(topic)]
        found: list[list[str]] = [[] for _ in places]
        if not places:
            return found
        consumer = consumer_of(
            self.broker,
            "mirror-reader",
            **{"isolation.level": "read_committed", "enable.partition.eof": True},
        )
        consumer.assign(places)
        open_ = {place.partition for place in places}
        while open_:
            message = consumer.poll(30)
            assert message is not None, f"{topic} does not end"
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is None:
                row = (message.timestamp(), message.key(), message.value(), message.headers())
                found[partition].append(repr(row))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_.discard(partition)
        consumer.close()
        return found

    def has_mirrored(self, count: int) -> bool:
        return sum(map(len, self.read(self.mirrored_topic))) >= count

    def has_partitions(self, count: int) -> bool:
        return len(self.partitions_of(self.mirrored_topic)) == count

    def topic_configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource])[resource].result(30)
        wanted = CONFIGS["east"] | CONFIGS["west"] | {"message.timestamp.type": ""}
        return {key: entries[key].value for key in sorted(wanted)}

    def commit_ends(self) -> None:
        """Commit the end offsets of the cluster's own topic for `GROUP`."""
        consumer = consumer_of(self.broker, GROUP)
        ends = [
            TopicPartition(self.topic, place.partition, consumer.get_watermark_offsets(place, timeout=30)[1])
            for place in self.partitions_of(self.topic)
        ]
        consumer.commit(offsets=ends, asynchronous=False)
        consumer.close()

    def unread_by_group(self) -> list[int] | None:
        """Return the number of mirrored records after the committed offset of `GROUP`, by partition.

        Return None if any partition has no committed offset.
        """
        requested = ConsumerGroupTopicPartitions(GROUP, self.partitions_of(self.mirrored_topic))
        response = self.admin.list_consumer_group_offsets([requested])[GROUP].result(30)
        if any(place.offset < 0 for place in response.topic_partitions):
            return None
        return [len(rows) for rows in self.read(self.mirrored_topic, sorted(response.topic_partitions))]

    def is_group_caught_up(self) -> bool:
        left = self.unread_by_group()
        return left is not None and not any(left)

    def mirror_topics(self) -> dict[str, int]:
        """Return the partition counts of the source and mirrored topics and of MirrorMaker's own topics."""
        kinds = ("mirror-", "mm2-", "heartbeats", "east.", "west.")
        listed = self.admin.list_topics(timeout=30).topics
        return {name: len(found.partitions) for name, found in listed.items() if name.startswith(kinds)}


@contextmanager
def mirror_maker(
    directory: Path, east: MirroredCluster, west: MirroredCluster, *, replication_factor: int = 1
) -> Iterator[JavaProgram]:
    """Run MirrorMaker in both directions. It refreshes topics, configurations and groups every second."""
    settings = {
        "clusters": "east, west",
        "east.bootstrap.servers": east.broker.bootstrap,
        "west.bootstrap.servers": west.broker.bootstrap,
        "east->west.enabled": "true",
        "west->east.enabled": "true",
        "topics": "mirror-.*",
        "groups": f"{GROUP}.*",
        "sync.topic.acls.enabled": "false",
        "sync.group.offsets.enabled": "true",
        # With offset syncs for each batch, MirrorMaker translates group offsets exactly.
        "offset.lag.max": "0",
        "tasks.max": "1",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "offset.flush.interval.ms": "1000",
        **{
            f"{what}.interval.seconds": "1"
            for what in (
                *("refresh.topics", "refresh.groups", "sync.topic.configs"),
                *("emit.checkpoints", "emit.heartbeats", "sync.group.offsets"),
            )
        },
        **{
            f"{what}.replication.factor": str(replication_factor)
            for what in (
                *("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"),
                *("offset.storage", "status.storage", "config.storage"),
            )
        },
        "replication.factor": str(replication_factor),
        "offset.storage.partitions": "2",
    }
    properties = directory / "mirror.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with JavaProgram(
        "org.apache.kafka.connect.mirror.MirrorMaker", str(properties), log=directory / "mirror.log"
    ) as program:
        yield program


@scenario(seconds=480)
def both_directions(broker: Broker) -> Any:
    """Mirror records, configurations, new partitions and group offsets to and from Apache Kafka."""
    other = ApacheKafka()
    other.start()
    try:
        return mirror_both_directions(
            MirroredCluster("east", other, "west"), MirroredCluster("west", broker, "east")
        )
    finally:
        other.discard()


def mirror_both_directions(east: MirroredCluster, west: MirroredCluster) -> Any:
    """Mirror the topic of each cluster to the other cluster, and return the content of both clusters."""
    east.create_topic(3)
    west.create_topic(2)
    east.produce(3)
    west.produce(2)
    flows = [(east, west), (west, east)]
    with (
        tempfile.TemporaryDirectory(prefix="interop-mirror-") as name,
        mirror_maker(Path(name), east, west) as program,
    ):
        for origin, target in flows:
            program.until(
                partial(target.has_mirrored, COUNT),
                f"{origin.topic} is mirrored",
                WAIT_S,
            )
        for origin, _ in flows:
            count = len(origin.partitions_of(origin.topic)) + 1
            origin.admin.create_partitions([NewPartitions(origin.topic, count)])[origin.topic].result(30)
        for origin, target in flows:
            count = len(origin.partitions_of(origin.topic))
            program.until(
                partial(target.has_partitions, count),
                f"{origin.topic} has its new partition on the other side",
                WAIT_S,
            )
            # For a new partition, the mirroring task restarts, and the stopped task drops pending offset
            # syncs. So the scenario produces nothing else until the restarted task has mirrored a record.
            origin.produce_one(count - 1)
            program.until(
                partial(target.has_mirrored, COUNT + 1),
                f"the new partition of {origin.topic} is mirrored",
                WAIT_S,
            )
            origin.produce(count)
            origin.commit_ends()
        for origin, target in flows:
            program.until(
                target.is_group_caught_up,
                f"the group's offsets in {origin.topic} are there on the other side",
                WAIT_S,
            )
        seen: dict[str, Any] = {}
        for origin, target in flows:
            origin.produce(1)
            program.until(
                partial(target.has_mirrored, 3 * COUNT + 1),
                f"{origin.topic} is mirrored again",
                WAIT_S,
            )
            rows = origin.read(origin.topic)
            seen[f"{origin.topic} as it was"] = [digest(partition) for partition in rows]
            seen[f"{origin.topic} mirrored equally"] = target.read(target.mirrored_topic) == rows
            seen[f"{origin.topic}, new to the group"] = target.unread_by_group()
            seen[f"{origin.topic}, settings of the mirror"] = target.topic_configs(target.mirrored_topic)
            seen[f"topics in the {target.name}"] = target.mirror_topics()
        program.stop()
    return seen


def digest(rows: list[str]) -> list[Any]:
    return [len(rows), hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]]
