"""A cluster of three brokers and a controller: three replicas, acks=all, min.insync.replicas=2.

The clusters run one after the other, because two clusters at a time would share the machine:

- launch: from the start of all nodes to the first acknowledged write, of a new cluster and after a stop; the
  memory five seconds later; and the launches of `bench/launch.py`;
- throughput: one librdkafka producer and consumer as in bench/throughput.py, with the processor time of all
  nodes;
- latency: the time from produce() to poll() at 1,000 records per second;
- gaps: the longest time without an acknowledgement when the leader is killed, or stopped with SIGTERM; the
  broker session timeout is Kafka's default of nine seconds;
- partitions: with 3,000 partitions, the processor time of an idle cluster, and the time from a broker's kill
  until each of its partitions has a new leader.

BENCH_CLUSTER_PARTITIONS=300 reduces the number of partitions. BENCH_CLUSTER selects parts: launch,
throughput, latency, gaps, partitions.
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
from bench.launch import measure_combined_launches, write_first_record, write_record
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
"""The size of the consumed topic, so that both clusters serve the same number of records."""
FILL_SECONDS = 60.0
RECORD_SECONDS = 0.001
"""The interval between records in the latency measurement."""
GAP_PAUSE_SECONDS = 0.005
BEFORE_SECONDS = 3.0
GAP_LIMIT_SECONDS = 60.0
RETRY_MS = 10
"""The client's retry backoff. librdkafka's default of 100 ms would be most of the gap after a stop."""
AFTER_SECONDS = 3.0
STEADY_SECONDS = 0.5
"""The measurement ends when no interval between acknowledgements in `AFTER_SECONDS` was longer than this."""
LAUNCHES = {"apache": 2, "kwire": 5}
GAPS = {"killed": 2, "stopped": 5}
KILLS = 5
"""The number of kills. The failover times differ by up to 2 s: a session begins with the last heartbeat."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure the parts that BENCH_CLUSTER selects, by default all, one cluster after the other."""
    figures: dict[str, Figure] = {}
    parts: dict[str, Callable[[Samples], None]] = {
        "launch": _measure_launches,
        "throughput": lambda samples: _measure_throughput(samples, seconds, rounds),
        "latency": lambda samples: _measure_latency(samples, seconds, rounds),
        "gaps": _measure_gaps,
        "partitions": _measure_partitions,
    }
    wanted = os.environ.get("BENCH_CLUSTER", " ".join(parts)).split()
    for part in wanted:
        for name in names:
            parts[part](Samples(figures, name))
    return list(figures.values())


def _start_cluster(samples: Samples) -> Cluster:
    return CLUSTERS[samples.name]().start()


# --- launch


def _measure_launches(samples: Samples) -> None:
    measure_combined_launches(samples)
    for _ in range(LAUNCHES[samples.name]):
        with CLUSTERS[samples.name]() as cluster:
            began = time.perf_counter()
            cluster.start()
            write_first_record(cluster)
            samples.add("launch to the first acknowledged write", "s", time.perf_counter() - began)
            time.sleep(SETTLE_SECONDS)
            samples.add("memory of the four nodes", "MB", cluster.resident_bytes() / 1e6)
            for nodes in (cluster.brokers, cluster.controllers):
                for node in nodes:
                    cluster.stop_node(node, cleanly=True)
                for node in nodes:
                    cluster.await_end(node)
            began = time.perf_counter()
            cluster.start()
            write_record(cluster)
            samples.add("restart to the first acknowledged write", "s", time.perf_counter() - began)


# --- throughput


def _measure_throughput(samples: Samples, seconds: float, rounds: int) -> None:
    with _start_cluster(samples) as cluster:
        for number in range(-1, rounds):
            for label, size in SIZES.items():
                with _temporary_topic(cluster, f"produced-{size}-{number + 1}") as topic:
                    idle = cluster.cpu_seconds()
                    wanted = seconds if number >= 0 else WARM_UP_SECONDS
                    count, elapsed = produce(cluster, topic, size, wanted, THROUGHPUT_PARTITIONS)
                    cost = cluster.cpu_seconds() - idle
                if number >= 0:
                    samples.add(f"produce {label}", "records/s", count / elapsed)
                    samples.add(f"produce {label}, CPU of all nodes", "µs/record", cost / count * 1e6)
        for label, size in SIZES.items():
            with _temporary_topic(cluster, f"consumed-{size}") as topic:
                count, _ = produce(
                    cluster, topic, size, FILL_SECONDS, THROUGHPUT_PARTITIONS, CONSUMED_BYTES // size
                )
                for number in range(-1, rounds):
                    idle = cluster.cpu_seconds()
                    elapsed = consume(cluster, topic, count, THROUGHPUT_PARTITIONS)
                    cost = cluster.cpu_seconds() - idle
                    if number >= 0:
                        samples.add(f"consume {label}", "records/s", count / elapsed)
                        samples.add(f"consume {label}, CPU of all nodes", "µs/record", cost / count * 1e6)


@contextmanager
def _temporary_topic(cluster: Cluster, name: str) -> Iterator[str]:
    cluster.create_topics([name], THROUGHPUT_PARTITIONS)
    cluster.await_replicas(name)
    yield name
    cluster.admin.delete_topics([name])[name].result(30)


# --- latency


def _measure_latency(samples: Samples, seconds: float, rounds: int) -> None:
    with _start_cluster(samples) as cluster:
        topic = "latency"
        cluster.create_topics([topic], len(BROKERS))
        cluster.await_replicas(topic)
        for number in range(-1, rounds):
            before = cluster.cpu_seconds()
            latencies = _deliveries(cluster, topic, seconds if number >= 0 else WARM_UP_SECONDS)
            cost = (cluster.cpu_seconds() - before) / len(latencies) * 1e6
            if number >= 0:
                samples.add("1,000 records/s: end to end, p50", "ms", percentile(latencies, 50) * 1e3)
                samples.add("1,000 records/s: end to end, p99", "ms", percentile(latencies, 99) * 1e3)
                samples.add("1,000 records/s: CPU of all nodes", "µs/record", cost)


def _deliveries(cluster: Cluster, topic: str, seconds: float) -> list[float]:
    """Return the seconds from produce() to poll() of each record."""
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
    latencies: list[float] = []
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
        consumer.poll(1.0)  # so that every broker has a waiting fetch when the first record is sent
        sender.start()
        while len(latencies) < count:
            message = consumer.poll(30)
            if message is None or message.error() is not None:
                raise RuntimeError(f"{cluster.name} did not deliver: {message and message.error()}")
            value = message.value()
            assert isinstance(value, bytes)
            latencies.append((time.perf_counter_ns() - int(value[:20])) / 1e9)
    finally:
        consumer.close()
    sender.join()
    producer.flush(30)
    return latencies


# --- gaps


def _measure_gaps(samples: Samples) -> None:
    with _start_cluster(samples) as cluster:
        cluster.create_topics(["gaps"], 1)
        for end, times in GAPS.items():
            for _ in range(times):
                cluster.await_all(lambda one: len(one.isrs) == len(BROKERS), "gaps")
                time.sleep(SETTLE_SECONDS)
                leader = cluster.leader_of("gaps")
                gap = _measure_gap(cluster, leader, cleanly=end == "stopped")
                samples.add(f"write gap after the leader is {end}", "s", gap)
                cluster.await_end(leader)
                cluster.start_node(leader)


def _measure_gap(cluster: Cluster, leader: int, *, cleanly: bool) -> float:
    """End the leader with SIGKILL, or with SIGTERM if `cleanly`. Returns the longest gap in seconds."""
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

    def on_delivery(error: object, message: Message) -> None:
        if error is None:
            acknowledged.append(time.perf_counter())

    begun = now = time.perf_counter()
    stopped_at = ended = float("inf")
    while now - ended < AFTER_SECONDS or _longest_gap(acknowledged, now - AFTER_SECONDS) > STEADY_SECONDS:
        producer.produce("gaps", b"x" * 100, on_delivery=on_delivery)
        producer.poll(0)
        time.sleep(GAP_PAUSE_SECONDS)
        now = time.perf_counter()
        if stopped_at > now and now - begun > BEFORE_SECONDS:
            cluster.stop_node(leader, cleanly=cleanly)
            stopped_at = now
        if ended > now and stopped_at < now and cluster.has_ended(leader):
            ended = now
        if now - stopped_at > GAP_LIMIT_SECONDS:
            raise RuntimeError(f"{cluster.name} acknowledges no more writes: {cluster.directory}")
    producer.flush(30)
    return _longest_gap(acknowledged, stopped_at - STEADY_SECONDS)


def _longest_gap(acknowledged: list[float], since: float) -> float:
    """Return the longest interval between acknowledgements that ends after `since`, in seconds.

    Returns `since`, a time of `perf_counter`, if there is no such interval: it is longer than any interval.
    """
    return max((after - before for before, after in pairwise(acknowledged) if after > since), default=since)


# --- many partitions


def _measure_partitions(samples: Samples) -> None:
    topics = [f"topic-{number:03}" for number in range(PARTITIONS // PARTITIONS_PER_TOPIC)]
    with _start_cluster(samples) as cluster:
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            cluster.create_topics(topics[first : first + TOPICS_AT_ONCE], PARTITIONS_PER_TOPIC)
        cluster.await_all(lambda one: len(one.isrs) == len(BROKERS), *topics)
        time.sleep(2 * SETTLE_SECONDS)
        before = cluster.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        percent = (cluster.cpu_seconds() - before) / IDLE_SECONDS * 100
        samples.add(f"idle with {PARTITIONS:,} partitions, CPU of all nodes", "% of a core", percent)
        samples.add(
            f"memory of the four nodes, {PARTITIONS:,} partitions", "MB", cluster.resident_bytes() / 1e6
        )
        for number in range(KILLS):
            elapsed = _measure_failover(cluster, BROKERS[number % len(BROKERS)], topics)
            samples.add("killed: until every partition has a new leader", "s", elapsed)


def _measure_failover(cluster: Cluster, victim: int, topics: list[str]) -> float:
    """Kill a broker and start it again. Returns the seconds until all partitions had other leaders."""
    cluster.stop_node(victim, cleanly=False)
    stopped_at = time.perf_counter()
    cluster.await_end(victim)
    done = cluster.await_all(lambda one: one.leader not in (-1, victim), *topics)
    cluster.start_node(victim)
    cluster.await_all(lambda one: len(one.isrs) == len(BROKERS), *topics)
    cluster.admin.elect_leaders(ElectionType.PREFERRED).result(60)
    time.sleep(SETTLE_SECONDS)
    return done - stopped_at
