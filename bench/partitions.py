"""Many partitions on one broker: memory use, and the start time after a clean stop and after SIGKILL.

CreateTopics creates 5,000 empty partitions (100 topics of 50). The results are the start time after a clean
stop, the additional memory compared with a broker without partitions (idle for five seconds), and the number
of open files. Then a client produces 1 GiB to eight partitions. No segment rolls, so the broker flushes
nothing. The process is killed and started again. Batches have 16 KiB, the default of the Java client, or 1
KiB. All acknowledged records must exist afterwards.

The clean stop is measured after a client has produced one record to each of the 5,000 partitions, so that the
broker has to sync every log.

BENCH_PARTITIONS=1000 reduces the number of partitions. With 5,000 partitions, the measurement takes six
minutes.

kwire runs under `ulimit -n 1024`. Apache Kafka does not, because it keeps every log open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, Broker
from bench.figures import Figure
from kwire.wire.plural import plural

PARTITIONS_PER_TOPIC = 50
TOPICS = int(os.environ.get("BENCH_PARTITIONS", "5000")) // PARTITIONS_PER_TOPIC
PARTITIONS = TOPICS * PARTITIONS_PER_TOPIC
TOPICS_AT_ONCE = 20
IDLE_SECONDS = 5.0
STARTS = {"apache": 1, "kwire": 5}
"""The number of starts after a clean stop. Apache Kafka has fewer, because a JVM starts slowly."""
STOPS = 3
OPEN_FILES = 1024
"""The limit of open files for kwire's process."""
UNFLUSHED_BYTES = 1 << 30
UNFLUSHED_PARTITIONS = 8
RECORD_BYTES = 1000
CREATE_SECONDS = 200.0
LEADERS_SECONDS = 60.0
BATCHES: dict[str, dict[str, int]] = {"16 KiB": {}, "1 KiB": {"batch.num.messages": 1}}
"""The client options for each batch size. The measurement sets batch.size to the Java client's default."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure one broker after the other. `seconds` and `rounds` have no effect."""
    clean = Figure("start after a clean stop", "s")
    memory = Figure("idle memory per partition", "KiB")
    restarted = Figure("the same, after a restart", "KiB")
    files = Figure("open files", "")
    stopped = Figure("clean stop after a write to every partition", "s")
    killed = {name: Figure(f"start after a kill, 1 GiB in {name} batches", "s") for name in BATCHES}
    for name in names:
        broker = BROKERS[name]()
        if name == "kwire":
            broker.open_files = OPEN_FILES
        try:
            broker.start()
            empty = _idle_kibibytes(broker)
            _create_topics(broker)
            memory.add(name, (_idle_kibibytes(broker) - empty) / PARTITIONS)
            broker.stop()
            for _ in range(STARTS[name]):
                clean.add(name, broker.start())
                if not restarted.samples.get(name):
                    restarted.add(name, (_idle_kibibytes(broker) - empty) / PARTITIONS)
                    files.add(name, broker.open_file_count())
                broker.stop()
            for _ in range(STOPS):
                broker.start()
                _write_to_every_partition(broker)
                begun = time.perf_counter()
                broker.stop()
                stopped.add(name, time.perf_counter() - begun)
            for batches, options in BATCHES.items():
                broker.start()
                topic = f"unflushed-{batches.replace(' ', '-')}"
                sent = _fill(broker, topic, options)
                broker.kill()
                killed[batches].add(name, broker.start())
                _check(broker, topic, sent)
                admin = AdminClient(_client(broker))
                admin.delete_topics([topic])[topic].result(30)
                broker.stop()
        finally:
            broker.discard()
    return [clean, stopped, *killed.values(), memory, restarted, files]


def _client(broker: Broker) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0}


def _idle_kibibytes(broker: Broker) -> float:
    time.sleep(IDLE_SECONDS)
    return broker.resident_bytes() / 1024


def _create_topics(broker: Broker) -> None:
    admin = AdminClient(_client(broker))
    for first in range(0, TOPICS, TOPICS_AT_ONCE):
        wanted = [
            NewTopic(f"topic-{number:03}", num_partitions=PARTITIONS_PER_TOPIC)
            for number in range(first, min(first + TOPICS_AT_ONCE, TOPICS))
        ]
        for created in admin.create_topics(wanted, request_timeout=120, operation_timeout=100).values():
            created.result(120)
    deadline = time.perf_counter() + CREATE_SECONDS
    while (count := len(list((broker.directory / "data").glob("topic-*")))) < PARTITIONS:
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{broker.name} has created {count} of {PARTITIONS} partitions")
        time.sleep(1.0)
    time.sleep(IDLE_SECONDS)


def _write_to_every_partition(broker: Broker) -> None:
    """Produce an acknowledged record to each partition of the empty topics, without a flush."""
    _produce(
        broker,
        {},
        (
            (f"topic-{topic:03}", partition)
            for topic in range(TOPICS)
            for partition in range(PARTITIONS_PER_TOPIC)
        ),
    )


def _fill(broker: Broker, topic: str, options: dict[str, int]) -> int:
    """Produce 1 GiB that is acknowledged but not flushed, and return the number of records."""
    admin = AdminClient(_client(broker))
    admin.create_topics([NewTopic(topic, num_partitions=UNFLUSHED_PARTITIONS)])[topic].result(30)
    time.sleep(IDLE_SECONDS)  # Apache Kafka has a new topic in its metadata only after this
    count = UNFLUSHED_BYTES // RECORD_BYTES
    _produce(broker, options, ((topic, number // 64 % UNFLUSHED_PARTITIONS) for number in range(count)))
    return count


def _produce(broker: Broker, options: dict[str, int], partitions: Iterable[tuple[str, int]]) -> None:
    """Produce one record per element of `partitions`, and wait for all acknowledgements."""
    producer = Producer(
        {
            **_client(broker),
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 16384,
            "queue.buffering.max.messages": 200_000,
            "message.timeout.ms": 120_000,
            **options,
        }
    )
    failed: list[str] = []

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            failed.append(str(error))

    value = os.urandom(RECORD_BYTES)
    for number, (topic, partition) in enumerate(partitions):
        while True:
            try:
                producer.produce(topic, value, partition=partition, callback=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120) or failed:
        raise RuntimeError(f"{broker.name} did not acknowledge all records: {failed[:1]}")


def _check(broker: Broker, topic: str, sent: int) -> None:
    """Check that no acknowledged record is missing. The page cache survives a kill."""
    consumer = Consumer({**_client(broker), "group.id": "bench"})
    try:
        ends = [_end(consumer, TopicPartition(topic, number)) for number in range(UNFLUSHED_PARTITIONS)]
    finally:
        consumer.close()
    if sum(ends) != sent:
        raise RuntimeError(f"{broker.name} has {sum(ends)} of {plural(sent, 'acknowledged record')}")


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Wait until the broker leads the partition, and return the end offset.

    Apache Kafka accepts requests before it leads its partitions.
    """
    deadline = time.perf_counter() + LEADERS_SECONDS
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=30)[1])
        except KafkaException:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.2)
