"""The job `mirror` between kwire and Apache Kafka, with kills: the target topic and its offset map."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.pipeline.job_runs import JOB_SECONDS, Jobs, kafka, produce_odd, read

WAIT_S: Final = 30.0
POLL_S: Final = 0.01
FLIGHTS: Final = {"kwire": 50_000, "apache": 10_000}
KILLS: Final = {"kwire": 3, "apache": 1}
"""The number of kills by broker kind. kwire is killed more often, because it starts faster."""
PARTITIONS: Final = 4
ODD: Final = "odd"
SUFFIX: Final = ".mirror"
GROUP: Final = "readers"
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}


class Pair(NamedTuple):
    name: str
    source: Broker
    target: Broker


@pytest.fixture(
    params=[(Kwire, Kwire), (ApacheKafka, Kwire), (Kwire, ApacheKafka)],
    ids=["kwire-to-kwire", "apache-to-kwire", "kwire-to-apache"],
)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Start two brokers for one test only."""
    kinds = request.param
    source, target = kinds[0](), kinds[1]()
    with ExitStack() as stack:
        for broker in (source, target):
            stack.callback(broker.discard)
            broker.start()
        yield Pair("apache" if ApacheKafka in kinds else "kwire", source, target)


def size(consumer: Consumer, topic: str, partitions: int) -> int:
    """Return the sum of the partitions' end offsets, or 0 if the topic or a leader does not exist."""
    if topic not in consumer.list_topics(timeout=WAIT_S).topics:
        return 0
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)[1]
            for partition in range(partitions)
        )
    except KafkaException:
        return 0  # the broker knows the partition, but the partition has no leader yet


def make_odd(broker: Broker) -> None:
    """Write unusual records to the first of the topic's two partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(ODD, 2, 1, config={"retention.ms": "-1"})])[ODD].result(WAIT_S)
    produce_odd(broker, ODD, 1, 1_000_000_000_000)


def map_of(broker: Broker, topic: str, partition: int) -> dict[int, int]:
    """Return target offsets by source offset. Check that the ranges of source offsets are contiguous."""
    found: dict[int, int] = {}
    reached = None
    for record in read(broker, topic + ".offset-map")[topic + ".offset-map", partition].values():
        entry = json.loads(record.value or b"")
        assert record.key == b"m/%d/%d" % (partition, entry["source"])
        assert reached in (None, entry["source"]), "the ranges have a hole, or overlap"
        reached = entry["end"]
        source, target, numbers = entry["source"], entry["target"], entry["runs"]
        for at in range(0, len(numbers), 3):
            source, target = source + numbers[at], target + numbers[at + 1]
            found |= {source + step: target + step for step in range(numbers[at + 2])}
            source, target = source + numbers[at + 2], target + numbers[at + 2]
    return found


def commit(broker: Broker, offsets: Mapping[tuple[str, int], int]) -> None:
    places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, places)])
    asked[GROUP].result(WAIT_S)


def committed(broker: Broker) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])
    places = asked[GROUP].result(WAIT_S).topic_partitions
    return {(place.topic, place.partition): place.offset for place in places}


def stable_end(broker: Broker, topic: str, partition: int) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.list_offsets(
        {TopicPartition(topic, partition): OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
    )
    [answer] = asked.values()
    return int(answer.result(WAIT_S).offset)


def kill_on_its_way(jobs: Jobs, config: Mapping[str, Any], pair: Pair, chance: Random, records: int) -> None:
    """Start the mirror. Once it has mirrored some records, kill the driver and its child processes.

    The number of these records is random, and at most a fifth of `records`.
    """
    consumer = Consumer({"bootstrap.servers": pair.target.bootstrap, "group.id": "watch"})
    wanted = size(consumer, "flights" + SUFFIX, PARTITIONS) + chance.randint(1, records // 5)
    process = jobs.start("mirror", config)
    deadline = time.monotonic() + JOB_SECONDS
    try:
        while size(consumer, "flights" + SUFFIX, PARTITIONS) < wanted:
            assert not process.has_ended, f"it was done before it was killed: {process.tail()}"
            assert time.monotonic() < deadline, process.tail()
            time.sleep(POLL_S)
        process.kill_driver(chance)
    finally:
        process.process.kill()
        process.end()
        consumer.close()


def test_mirror_is_exact_after_kills(pair: Pair, tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    flights = FLIGHTS[pair.name]
    replay = {"topic": "flights", "limit": flights, "partitions": PARTITIONS}
    jobs.run("replay", {"replay": {**replay, "client": {"bootstrap.servers": pair.source.bootstrap}}})
    make_odd(pair.source)
    config = {
        "input": kafka(pair.source, "flights", ODD, maxOffsetsPerTrigger=str(flights // 4), **COMMITTED),
        "mirror": {
            "job": "m",
            "checkpoint": str(tmp_path / "checkpoint"),
            "suffix": SUFFIX,
            "client": {"bootstrap.servers": pair.target.bootstrap},
        },
    }
    places = [*[("flights", number) for number in range(PARTITIONS)], (ODD, 0), (ODD, 1)]
    truth = read(pair.source, "flights", ODD)
    ends = {place: stable_end(pair.source, *place) for place in places}
    # Commit the offset of a record, an offset inside a gap, and the end offsets.
    odd_gap = next(offset for offset in range(20, ends[ODD, 0]) if offset not in truth[ODD, 0])
    wants = {
        ("flights", 0): 0,
        ("flights", 1): 777,
        ("flights", 2): ends["flights", 2],
        (ODD, 0): odd_gap,
        (ODD, 1): 0,
    }
    commit(pair.source, wants)

    chance = Random(1)
    for _ in range(KILLS[pair.name]):
        kill_on_its_way(jobs, config, pair, chance, flights)
    jobs.run("mirror", config)

    expected = {}
    mirrored = read(pair.target, "flights" + SUFFIX, ODD + SUFFIX)
    for place in places:
        topic, partition = place[0] + SUFFIX, place[1]
        there = mirrored[topic, partition]
        mapped = map_of(pair.target, topic, partition)
        assert list(mapped) == list(truth[place])
        for offset, record in truth[place].items():
            assert there[mapped[offset]].content == record.content
        assert len(there) == len(mapped)
        if place in wants:
            after = [offset for offset in mapped if offset >= wants[place]]
            end = stable_end(pair.target, topic, partition)
            expected[topic, partition] = mapped[after[0]] if after else end
    assert committed(pair.target) == expected

    audit = {
        "audit": {"window": "30 days", "suffix": SUFFIX, "offsets": False},
        "left": kafka(pair.source, "flights", ODD, **COMMITTED),
        "right": kafka(pair.target, "flights" + SUFFIX, ODD + SUFFIX, **COMMITTED),
    }
    records = sum(map(len, truth.values()))
    assert f"clean: both sides have the same {records} records" in jobs.run("audit", audit)

    # Without its checkpoint, a new run must still find that nothing is left to mirror.
    before = {place: stable_end(pair.target, place[0] + SUFFIX, place[1]) for place in places}
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    output = jobs.run("mirror", config).splitlines()
    assert f"flights-0: 0 records, up to offset {ends['flights', 0]}, lag 0" in output
    assert {place: stable_end(pair.target, place[0] + SUFFIX, place[1]) for place in places} == before
    assert committed(pair.target) == expected
