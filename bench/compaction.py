"""Compaction: its throughput and processor time, and the latency of a producer during compaction.

A log of 300 MB has keys that repeat in random order, so most records are superseded. Its segments have 64 MiB
and its batches have 16 KiB, the default of the Java client. `min.compaction.lag.ms` prevents compaction while
the log is written. The measured time starts when this config is set to 0. It ends when the cleaner's
checkpoint covers all segments except the active segment. Both brokers have one cleaner thread with a backoff
of 100 ms. Afterwards the log must be smaller and must have the same end offset.

For the latency, a client produces single records to another topic while the broker compacts a second log of
this kind.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, Broker
from bench.figures import Figure, percentile
from kwire.wire.plural import plural

LOG_BYTES = 300_000_000
SIZES = {"100 B": (100, 100), "50 to 150 B": (50, 150), "1 KiB": (1024, 1024)}
"""By label, the sizes of the smallest and the largest value in a log, in bytes."""
RECORDS_PER_KEY = 15
KEY_BYTES = 16
BATCH = 1000
"""The number of messages per call of the client library."""
POLL_SECONDS = 0.01
TIMEOUT_SECONDS = 120.0
WARM_UP_RECORDS = 500
MAX_REMAINING = 0.5
"""The maximum fraction of the log that may remain, including the active segment."""
NEVER_MS = 10 * 24 * 3_600_000

PROPERTIES = {"log.cleaner.threads": "1", "log.cleaner.backoff.ms": "100"}
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": str(NEVER_MS),
}
PRODUCER: dict[str, str | int | float | bool] = {
    "acks": "all",
    "linger.ms": 20,
    "batch.size": 16384,
    "queue.buffering.max.messages": 200_000,
}


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """In each round, compact a log of each size. Then produce for `seconds`, and during a compaction."""
    figures: dict[str, Figure] = {}

    def figure(name: str, unit: str) -> Figure:
        return figures.setdefault(name, Figure(name, unit))

    brokers = {name: BROKERS[name](PROPERTIES) for name in names}
    try:
        for broker in brokers.values():
            broker.start()
            _FilledLog(broker, *SIZES["100 B"]).compact()
        for number in range(rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                broker = brokers[name]
                for label, sizes in SIZES.items():
                    megabytes, elapsed, cpu = _FilledLog(broker, *sizes).compact()
                    figure(f"compact {label}", "MB/s").add(name, megabytes / elapsed)
                    figure(f"compact {label}, CPU", "ms/MB").add(name, cpu / megabytes * 1e3)
                for percent, (idle, busy) in _latencies(broker, seconds).items():
                    figure(f"produce one record, p{percent}", "ms").add(name, idle * 1e3)
                    figure(f"the same while compacting, p{percent}", "ms").add(name, busy * 1e3)
                    figure(f"compacting / idle, p{percent}", "").add(name, busy / idle)
    finally:
        for broker in brokers.values():
            broker.discard()
    return [figures[name] for name in sorted(figures, key=lambda name: not name.startswith("compact "))]


class _FilledLog:
    """A topic with one partition that has many superseded records."""

    def __init__(self, broker: Broker, min_bytes: int, max_bytes: int) -> None:
        self._broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self._topic = f"compacted-{max_bytes}-{time.monotonic_ns()}"
        self._data = broker.directory / "data"
        self._directory = self._data / f"{self._topic}-0"
        topic = NewTopic(self._topic, num_partitions=1, config=TOPIC)
        self._admin.create_topics([topic])[self._topic].result(30)
        self._count = LOG_BYTES // ((min_bytes + max_bytes) // 2 + KEY_BYTES)
        self._fill(min_bytes, max_bytes)

    def _fill(self, min_bytes: int, max_bytes: int) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "log_level": 0, **PRODUCER})
        producer.list_topics(self._topic, timeout=30)
        rng = random.Random(max_bytes)
        keys = self._count // RECORDS_PER_KEY
        value = rng.randbytes(max_bytes)
        sent = 0
        while sent < self._count:
            count = min(BATCH, self._count - sent)
            batch = [
                {
                    "key": f"{rng.randrange(keys):0{KEY_BYTES}}",
                    "value": value if min_bytes == max_bytes else value[: rng.randint(min_bytes, max_bytes)],
                }
                for _ in range(count)
            ]
            while batch:
                queued = producer.produce_batch(self._topic, batch, partition=0)
                batch = batch[queued:]
                sent += queued
                producer.poll(0.002 if batch else 0)
        if producer.flush(TIMEOUT_SECONDS):
            raise RuntimeError(f"{self._broker.name} did not acknowledge everything")

    def compact(self) -> tuple[float, float, float]:
        """Compact the log. Returns the dirty MB, the seconds, and the processor seconds of all processes."""
        active = max(self._directory.glob("*.log"))
        before = self._size_bytes()
        megabytes = (before - active.stat().st_size) / 1e6
        before_cpu = self._broker.cpu_seconds()
        begun = time.perf_counter()
        lag = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self._topic, incremental_configs=[lag])
        self._admin.incremental_alter_configs([resource])[resource].result(30)
        while self._cleaned_offset() < int(active.stem):
            if time.perf_counter() - begun > TIMEOUT_SECONDS:
                raise RuntimeError(f"{self._broker.name} did not compact within {TIMEOUT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        elapsed = time.perf_counter() - begun
        cpu = self._broker.cpu_seconds() - before_cpu
        self._check(before)
        self._admin.delete_topics([self._topic])[self._topic].result(30)
        return megabytes, elapsed, cpu

    def _cleaned_offset(self) -> int:
        with suppress(FileNotFoundError):
            for line in (self._data / "cleaner-offset-checkpoint").read_text(encoding="ascii").splitlines():
                if line.startswith(f"{self._topic} 0 "):
                    return int(line.split()[2])
        return -1

    def _size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._directory.glob("*.log"))

    def _check(self, before: int) -> None:
        after = self._size_bytes()
        if after > before * MAX_REMAINING:
            raise RuntimeError(f"{self._broker.name} kept {after:,} of {plural(before, 'byte', ',')}")
        consumer = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": "b", "log_level": 0})
        try:
            end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=30)[1]
        finally:
            consumer.close()
        if end != self._count:
            raise RuntimeError(
                f"{self._broker.name} has the end offset {end} after {plural(self._count, 'record')}"
            )


def _latencies(broker: Broker, seconds: float) -> dict[int, tuple[float, float]]:
    """Return two percentiles of the latency of single records, in seconds.

    The first value of a percentile is from an idle broker, the second from a broker that compacts a log.
    """
    log = _FilledLog(broker, *SIZES["100 B"])
    until = time.perf_counter() + seconds
    idle = _ack_latencies(broker, lambda: time.perf_counter() < until)
    failed: list[BaseException] = []

    def compact() -> None:
        try:
            log.compact()
        except BaseException as error:
            failed.append(error)

    compacting = threading.Thread(target=compact)
    busy = _ack_latencies(broker, compacting.is_alive, compacting.start)
    compacting.join()
    if failed:
        raise failed[0]
    return {percent: (percentile(idle, percent), percentile(busy, percent)) for percent in (50, 99)}


def _ack_latencies(
    broker: Broker, is_running: Callable[[], bool], on_start: Callable[[], None] = lambda: None
) -> list[float]:
    """Send single records while `is_running()`, and return the seconds until each is acknowledged.

    A warm-up comes first and does not count. Then the function calls `on_start`.
    """
    topic = f"single-{time.monotonic_ns()}"
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(30)
    producer = Producer({**client, "acks": "all", "linger.ms": 0, "socket.nagle.disable": True})
    latencies: list[float] = []

    def send_one() -> None:
        begun = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0)
        if producer.flush(30):
            raise RuntimeError(f"{broker.name} did not acknowledge a record in 30 s")
        latencies.append(time.perf_counter() - begun)

    for _ in range(WARM_UP_RECORDS):
        send_one()
    latencies.clear()
    on_start()
    send_one()
    while is_running():
        send_one()
    return latencies
