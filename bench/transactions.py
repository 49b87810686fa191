"""Commits per second of one producer with 100 records of 100 B per transaction, for librdkafka and Java.

Transactions follow one another without a pause and with linger.ms=0, in a topic with one partition and in a
topic with four partitions. In the end, the last stable offset of each partition must be its end offset.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from confluent_kafka import IsolationLevel, Producer
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic, TopicPartition

from bench.brokers import KAFKA_JARS, Broker, running
from bench.figures import Figure

RECORDS, RECORD_BYTES = 100, 100
PARTITION_COUNTS = (1, 4)
WARM_UP_SECONDS = 8.0
"""The warm-up of each client with each broker, during which a JVM compiles its code."""
TIMEOUT_SECONDS = 60.0
JAVA_PROGRAM = Path(__file__).parent / "java" / "TransactionLoop.java"


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure one broker after the other in each round. Every second round has the reverse order."""
    figures: dict[str, Figure] = {}

    def figure(name: str, unit: str) -> Figure:
        return figures.setdefault(name, Figure(name, unit))

    loops: dict[tuple[str, str, int], Loop] = {}
    with running(names) as brokers:
        try:
            for name, broker in brokers.items():
                for partitions in PARTITION_COUNTS:
                    for client, kind in CLIENTS.items():
                        if kind is JavaLoop and (
                            shutil.which("javac") is None or not (KAFKA_JARS / ".complete").exists()
                        ):
                            continue
                        topic = f"transactions-{client}-{partitions}"
                        _create(broker, topic, partitions)
                        loops[name, client, partitions] = kind(broker, topic, partitions)
            for loop in loops.values():
                loop.commits_per_second(WARM_UP_SECONDS / len(PARTITION_COUNTS))
            for number in range(rounds):
                for client, partitions in dict.fromkeys((client, count) for _, client, count in loops):
                    label = f"{client}, partitions: {partitions}"
                    for name in names if number % 2 == 0 else reversed(names):
                        broker = brokers[name]
                        idle = broker.cpu_seconds()
                        rate = loops[name, client, partitions].commits_per_second(seconds)
                        cost = (broker.cpu_seconds() - idle) / (rate * seconds)
                        figure(label, "commits/s").add(name, rate)
                        figure(f"{label}, broker's CPU", "µs/commit").add(name, cost * 1e6)
            for (name, _, partitions), loop in loops.items():
                _check(brokers[name], loop.topic, partitions)
        finally:
            for loop in loops.values():
                loop.close()
    return list(figures.values())


class Loop(ABC):
    """A producer that commits one transaction after another."""

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        self.topic = topic

    @abstractmethod
    def commits_per_second(self, seconds: float) -> float:
        """Commit transactions for `seconds`, and return the number of commits per second."""

    def close(self) -> None:  # noqa: B027 - a client may have nothing to close
        """Close the client."""


class LibrdkafkaLoop(Loop):
    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        super().__init__(broker, topic, partitions)
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0, "log_level": 2}
        )
        message = {"value": bytes(RECORD_BYTES)}
        count = RECORDS // partitions
        self._batches = [[dict(message) for _ in range(count)] for _ in range(partitions)]
        self._producer.init_transactions(TIMEOUT_SECONDS)

    def commits_per_second(self, seconds: float) -> float:
        producer, commits = self._producer, 0
        begun = time.perf_counter()
        while (now := time.perf_counter()) - begun < seconds:
            producer.begin_transaction()
            for partition, batch in enumerate(self._batches):
                producer.produce_batch(self.topic, batch, partition=partition)
            producer.commit_transaction(TIMEOUT_SECONDS)
            commits += 1
        return commits / (now - begun)


class JavaLoop(Loop):
    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        super().__init__(broker, topic, partitions)
        arguments = [broker.bootstrap, topic, str(partitions), str(RECORDS), str(RECORD_BYTES)]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", quiet, "-cp", f"{KAFKA_JARS}/*", str(JAVA_PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read_response()

    def _read_response(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java producer of {self.topic} ended with {self._process.wait()}")
        return line

    def commits_per_second(self, seconds: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._read_response())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


CLIENTS: dict[str, type[Loop]] = {"librdkafka": LibrdkafkaLoop, "Java": JavaLoop}


def _create(broker: Broker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=partitions)])[topic].result(30)


def _check(broker: Broker, topic: str, partitions: int) -> None:
    """Check that the last stable offset of each partition becomes the end offset within ten seconds."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    requests = {TopicPartition(topic, number): latest for number in range(partitions)}
    deadline = time.monotonic() + 10
    while True:
        ends = [
            {partition.partition: future.result(30).offset for partition, future in found.items()}
            for found in (
                admin.list_offsets(requests, isolation_level=level)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
        ]
        if ends[0] == ends[1]:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{broker.name}: {topic} is stable up to {ends[0]}, but ends at {ends[1]}")
        time.sleep(0.1)
