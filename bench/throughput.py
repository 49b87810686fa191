"""Records per second of one librdkafka producer, and of one librdkafka consumer that reads the records.

The brokers take turns on the same machine, in reverse order every second round, so that other load affects
both brokers. In each round, the producer writes to a new topic for a given time, and waits until the last
record is acknowledged. The end offsets must match the number of records, and the consumer must receive all
records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Protocol

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import PARTITIONS, Broker, running
from bench.figures import Figure
from kwire.wire.plural import plural

SIZES = {"100 B": 100, "1 KiB": 1024}
BATCH = 1000
"""The number of messages per call of the client library. One call per message would measure Python."""

WARM_UP_SECONDS = 8.0
"""The warm-up at each record size, during which a JVM compiles its code."""

TIMEOUT_SECONDS = 60.0

PRODUCER = {
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 65536,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
    "partitioner": "random",
    "sticky.partitioning.linger.ms": 10,
}
CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": False,
    "fetch.queue.backoff.ms": 0,
    "queued.min.messages": 1_000_000,
    "check.crcs": False,
    "log_level": 4,
}


class Target(Protocol):
    """The interface of a broker or a cluster that this measurement uses."""

    name: str
    client: dict[str, str]
    """The settings with which librdkafka connects."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """In each round, produce records of each size to each broker for `seconds`, and consume them."""
    figures: dict[str, Figure] = {}

    def figure(name: str, unit: str) -> Figure:
        return figures.setdefault(name, Figure(name, unit))

    with running(names) as brokers:
        for broker in brokers.values():
            for size in SIZES.values():
                measure_round(broker, size, WARM_UP_SECONDS)
        for number in range(rounds):
            for label, size in SIZES.items():
                for name in names if number % 2 == 0 else reversed(names):
                    produced, consumed, cost = measure_round(brokers[name], size, seconds)
                    figure(f"produce {label}", "records/s").add(name, produced)
                    figure(f"produce {label}, broker's CPU", "µs/record").add(name, cost[0])
                    figure(f"consume {label}", "records/s").add(name, consumed)
                    figure(f"consume {label}, broker's CPU", "µs/record").add(name, cost[1])
    return list(figures.values())


def measure_round(broker: Broker, size: int, seconds: float) -> tuple[float, float, tuple[float, float]]:
    """Return the records per second of producer and consumer, and the broker's µs per record for each."""
    admin = AdminClient({**broker.client, "log_level": 4})
    topic = f"bench-{size}-{time.monotonic_ns()}"
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(30)
    idle = broker.cpu_seconds()
    count, producing = produce(broker, topic, size, seconds)
    written = broker.cpu_seconds()
    consuming = consume(broker, topic, count)
    read = broker.cpu_seconds()
    admin.delete_topics([topic])[topic].result(30)
    cost = ((written - idle) / count * 1e6, (read - written) / count * 1e6)
    return count / producing, count / consuming, cost


def produce(
    broker: Target,
    topic: str,
    size: int,
    seconds: float,
    partitions: int = PARTITIONS,
    limit: int = sys.maxsize,
    compression: str = "none",
) -> tuple[int, float]:
    """Produce records of `size` bytes for `seconds`, or until `limit` records are sent.

    Without compression all records are equal. With compression they are random words, so that batches shrink
    to about a third.
    Returns the number of acknowledged records, and the seconds until the last acknowledgement. The last batch
    may exceed `limit`. Raises RuntimeError if a record is not acknowledged within TIMEOUT_SECONDS.
    """
    producer = Producer({**broker.client, **PRODUCER, "compression.type": compression})
    producer.list_topics(topic, timeout=30)  # so that the client knows the leaders when the time starts
    values = _values(size, compression)
    batches = [[{"value": next(values)} for _ in range(BATCH)] for _ in range(partitions)]
    sent, turn = 0, 0
    begun = time.perf_counter()
    while sent < limit and time.perf_counter() - begun < seconds:
        batch = batches[turn % partitions]
        queued = producer.produce_batch(topic, batch, partition=turn % partitions)
        sent += queued
        turn += 1
        if queued < BATCH:  # the client's queue is full
            producer.poll(0.002)
    if producer.flush(TIMEOUT_SECONDS):
        raise RuntimeError(f"{broker.name} did not acknowledge everything in {TIMEOUT_SECONDS:.0f} s")
    return sent, time.perf_counter() - begun


def _values(size: int, compression: str) -> Iterator[bytes]:
    """Yield values of `size` bytes."""
    random = Random(1)
    words = [b"%x" % random.getrandbits(40) for _ in range(500)]
    while True:
        if compression == "none":
            yield bytes(range(33, 123)) * (size // 90) + b"x" * (size % 90)
        else:
            yield b" ".join(random.choices(words, k=size // 9 + 1))[:size]


def consume(broker: Target, topic: str, count: int, partitions: int = PARTITIONS) -> float:
    """Consume `count` records. Returns the seconds from the assignment to the last record.

    Raises RuntimeError if the end offsets do not add up to `count`, or if records are missing.
    """
    consumer = Consumer({**broker.client, **CONSUMER})
    try:
        parts = [TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = [consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts]
        if sum(ends) != count:
            raise RuntimeError(f"{broker.name} acknowledged {plural(count, 'record')}, but has {sum(ends)}")
        received = 0
        begun = last = time.perf_counter()
        consumer.assign(parts)
        while received < count:
            messages = consumer.consume(10_000, timeout=0.1)
            now = time.perf_counter()
            for message in messages[:1] + messages[-1:]:
                if message.error() is not None:
                    raise RuntimeError(f"{broker.name}: {message.error()}")
            received += len(messages)
            if messages:
                last = now
            elif now - last > TIMEOUT_SECONDS:
                raise RuntimeError(f"{broker.name} delivered {received} of {plural(count, 'record')}")
        return last - begun
    finally:
        consumer.close()
