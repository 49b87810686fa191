"""Three brokers and their controller, with three replicas of everything, acks=all and min.insync.replicas=2.

One cluster after the other, since two would have half of the machine each:

- from the launch of all nodes to the first acknowledged write, and what they weigh five seconds later;
- throughput of one librdkafka producer and consumer as in `throughput`, with the processor time of all nodes;
- from produce() to poll() at 1,000 records a second;
- how long nothing is acknowledged when the broker that leads is killed, or stopped by SIGTERM; the session
  is Kafka's default of nine seconds;
- with 3,000 partitions: the processor time of the cluster that does nothing, and how long after the death of
  a broker the last of the partitions that it led has another leader.

With BENCH_CLUSTER_PARTITIONS=300 there are fewer. BENCH_CLUSTER names parts: launch, throughput, latency,
gaps, partitions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from confluent_kafka import Consumer, ElectionType, Message, Producer, TopicPartition

from bench.figures import Figure, Samples, percentile
from bench.nodes import BROKERS, CLIENT, CLUSTERS, Cluster
from bench.throughput import SIZES, consume, produce

PARTITIONS = int(os.environ.get("BENCH_CLUSTER_PARTITIONS", "3000"))
PARTITIONS_PER_TOPIC = 50
TOPICS_AT_ONCE = 10
THROUGHPUT_PARTITIONS = 6
SETTLE_SECONDS = 5.0
IDLE_SECONDS = 20.0
WARM_UP_SECONDS = 8.0
CONSUMED_BYTES = 400_000_000
"""In the topic that is consumed: as many records for each cluster, however fast it takes them."""
FILL_SECONDS = 60.0
RECORD_SECONDS = 0.001
"""Between two records, where what each takes is measured."""
GAP_PAUSE_SECONDS = 0.005
BEFORE_SECONDS = 3.0
GAP_LIMIT_SECONDS = 60.0
RETRY_MS = 10
"""librdkafka's own 100 ms before it tries again would be most of what a stop takes."""
AFTER_SECONDS = 3.0
STEADY_SECONDS = 0.5
"""So long after the end of the leader, with a write acknowledged so often, the gap is over."""
LAUNCHES = {"apache": 1, "kwire": 3}
GAPS = {"killed": 2, "stopped": 5}
DEATHS = 5
"""One takes up to two seconds more or less than another: the session begins with the last heartbeat."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """All parts, of one cluster after the other."""
    figures: dict[str, Figure] = {}
    parts: dict[str, Callable[[Samples], None]] = {
        "launch": _launches,
        "throughput": lambda samples: _throughput(samples, seconds, rounds),
        "latency": lambda samples: _latency(samples, seconds, rounds),
        "gaps": _gaps,
        "partitions": _partitions,
    }
    wanted = os.environ.get("BENCH_CLUSTER", " ".join(parts)).split()
    for part in wanted:
        for name in names:
            parts[part](Samples(figures, name))
    return list(figures.values())


def _started(samples: Samples) -> Cluster:
    return CLUSTERS[samples.name]().start()


# --- launch


def _launches(samples: Samples) -> None:
    for _ in range(LAUNCHES[samples.name]):
        with CLUSTERS[samples.name]() as cluster:
            began = time.perf_counter()
            cluster.start()
            cluster.create_topics(["first"], 1)
            _write_one(cluster, "first")
            samples.add("launch to the first acknowledged write", "s", time.perf_counter() - began)
            time.sleep(SETTLE_SECONDS)
            samples.add("memory of the four nodes", "MB", cluster.resident_bytes() / 1e6)


def _write_one(cluster: Cluster, topic: str) -> None:
    producer = Producer(
        {**CLIENT, "bootstrap.servers": cluster.bootstrap, "acks": "all", "retry.backoff.ms": 20}
    )
    told: list[object] = []
    producer.produce(topic, b"x" * 100, on_delivery=lambda error, message: told.append(error))
    if producer.flush(60) or told != [None]:
        raise RuntimeError(f"{cluster.name} did not take the first record: {told}")


# --- throughput


def _throughput(samples: Samples, seconds: float, rounds: int) -> None:
    with _started(samples) as cluster:
        for number in range(-1, rounds):
            for label, size in SIZES.items():
                with _topic(cluster, f"produced-{size}-{number + 1}") as topic:
                    idle = cluster.cpu_seconds()
                    wanted = seconds if number >= 0 else WARM_UP_SECONDS
                    count, taken = produce(cluster, topic, size, wanted, THROUGHPUT_PARTITIONS)
                    cost = cluster.cpu_seconds() - idle
                if number >= 0:
                    samples.add(f"produce {label}", "records/s", count / taken)
                    samples.add(f"produce {label}, CPU of all", "µs/record", cost / count * 1e6)
        for label, size in SIZES.items():
            with _topic(cluster, f"consumed-{size}") as topic:
                count, _ = produce(
                    cluster, topic, size, FILL_SECONDS, THROUGHPUT_PARTITIONS, CONSUMED_BYTES // size
                )
                for number in range(-1, rounds):
                    idle = cluster.cpu_seconds()
                    taken = consume(cluster, topic, count, THROUGHPUT_PARTITIONS)
                    cost = cluster.cpu_seconds() - idle
                    if number >= 0:
                        samples.add(f"consume {label}", "records/s", count / taken)
                        samples.add(f"consume {label}, CPU of all", "µs/record", cost / count * 1e6)


@contextmanager
def _topic(cluster: Cluster, name: str) -> Iterator[str]:
    cluster.create_topics([name], THROUGHPUT_PARTITIONS)
    cluster.await_replicas(name)
    yield name
    cluster.admin.delete_topics([name])[name].result(30)


# --- latency


def _latency(samples: Samples, seconds: float, rounds: int) -> None:
    with _started(samples) as cluster:
        topic = "latency"
        cluster.create_topics([topic], len(BROKERS))
        cluster.await_replicas(topic)
        for number in range(-1, rounds):
            before = cluster.cpu_seconds()
            taken = _deliveries(cluster, topic, seconds if number >= 0 else WARM_UP_SECONDS)
            cost = (cluster.cpu_seconds() - before) / len(taken) * 1e6
            if number >= 0:
                samples.add("1,000 records/s: produce to poll, p50", "ms", percentile(taken, 50) * 1e3)
                samples.add("1,000 records/s: produce to poll, p99", "ms", percentile(taken, 99) * 1e3)
                samples.add("1,000 records/s: CPU of all", "µs/record", cost)


def _deliveries(cluster: Cluster, topic: str, seconds: float) -> list[float]:
    """Seconds from produce() to poll() of each record."""
    consumer = Consumer(
        {
            **CLIENT,
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    producer = Producer(
        {
            **CLIENT,
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "socket.nagle.disable": True,
        }
    )
    parts = [TopicPartition(topic, number) for number in range(len(BROKERS))]
    for part in parts:
        part.offset = consumer.get_watermark_offsets(part, timeout=30)[1]
    consumer.assign(parts)
    taken: list[float] = []
    count = int(seconds / RECORD_SECONDS)

    def send() -> None:
        due = time.perf_counter()
        for number in range(count):
            due += RECORD_SECONDS
            if (pause := due - time.perf_counter()) > 0:
                time.sleep(pause)
            sent = b"%020d" % time.perf_counter_ns()
            producer.produce(topic, sent + b"x" * 80, partition=number % len(BROKERS))

    sender = threading.Thread(target=send, daemon=True)
    try:
        consumer.poll(1.0)  # the consumer waits at every broker when the first record is sent
        sender.start()
        while len(taken) < count:
            message = consumer.poll(30)
            if message is None or message.error() is not None:
                raise RuntimeError(f"{cluster.name} did not deliver: {message and message.error()}")
            value = message.value()
            assert isinstance(value, bytes)
            taken.append((time.perf_counter_ns() - int(value[:20])) / 1e9)
    finally:
        consumer.close()
    sender.join()
    producer.flush(30)
    return taken


# --- gaps


def _gaps(samples: Samples) -> None:
    with _started(samples) as cluster:
        cluster.create_topics(["gaps"], 1)
        for how, times in GAPS.items():
            for _ in range(times):
                cluster.await_all(lambda one: len(one.isrs) == len(BROKERS), "gaps")
                time.sleep(SETTLE_SECONDS)
                leader = cluster.leader_of("gaps")
                gap = _gap(cluster, leader, cleanly=how == "stopped")
                samples.add(f"no writes after the leader was {how}", "s", gap)
                cluster.await_end(leader)
                cluster.start_node(leader)


def _gap(cluster: Cluster, leader: int, *, cleanly: bool) -> float:
    """The longest time between two acknowledgements, around the end of the leader."""
    producer = Producer(
        {
            "log_level": 0,
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "retry.backoff.ms": RETRY_MS,
        }
    )
    acknowledged: list[float] = []

    def told(error: object, message: Message) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    begun = now = time.perf_counter()
    struck = ended = float("inf")
    while now - ended < AFTER_SECONDS or _longest(acknowledged, now - AFTER_SECONDS) > STEADY_SECONDS:
        producer.produce("gaps", b"x" * 100, on_delivery=told)
        producer.poll(0)
        time.sleep(GAP_PAUSE_SECONDS)
        now = time.perf_counter()
        if struck > now and now - begun > BEFORE_SECONDS:
            cluster.end_node(leader, cleanly=cleanly)
            struck = now
        if ended > now and struck < now and cluster.has_ended(leader):
            ended = now
        if now - struck > GAP_LIMIT_SECONDS:
            raise RuntimeError(f"{cluster.name} does not go on: {cluster.directory}")
    producer.flush(30)
    return _longest(acknowledged, struck - STEADY_SECONDS)


def _longest(acknowledged: list[float], since: float) -> float:
    """The longest time without an acknowledgement."""
    return max((after - before for before, after in pairwise(acknowledged) if after > since), default=since)


# --- many partitions


def _partitions(samples: Samples) -> None:
    topics = [f"topic-{number:03}" for number in range(PARTITIONS // PARTITIONS_PER_TOPIC)]
    with _started(samples) as cluster:
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            cluster.create_topics(topics[first : first + TOPICS_AT_ONCE], PARTITIONS_PER_TOPIC)
        cluster.await_all(lambda one: len(one.isrs) == len(BROKERS), *topics)
        time.sleep(2 * SETTLE_SECONDS)
        before = cluster.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        percent = (cluster.cpu_seconds() - before) / IDLE_SECONDS * 100
        samples.add(f"idle with {PARTITIONS:,} partitions, CPU of all", "% of a core", percent)
        samples.add(
            f"memory of the four nodes, {PARTITIONS:,} partitions", "MB", cluster.resident_bytes() / 1e6
        )
        for number in range(DEATHS):
            taken = _taken_over(cluster, BROKERS[number % len(BROKERS)], topics)
            samples.add("killed, until all it led is led by others", "s", taken)


def _taken_over(cluster: Cluster, victim: int, topics: list[str]) -> float:
    """The seconds from the death of a broker until others lead what it led; it is back when this returns."""
    cluster.end_node(victim, cleanly=False)
    struck = time.perf_counter()
    cluster.await_end(victim)
    done = cluster.await_all(lambda one: one.leader not in (-1, victim), *topics)
    cluster.start_node(victim)
    cluster.await_all(lambda one: len(one.isrs) == len(BROKERS), *topics)
    cluster.admin.elect_leaders(ElectionType.PREFERRED).result(60)
    time.sleep(SETTLE_SECONDS)
    return done - struck
