"""A Spark that stays up beside a broker, a topic of records of 100 bytes, and what is measured of the two."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, ROOT, Broker, missing
from bench.figures import Figure, table
from bench.throughput import BATCH, PRODUCER

TARGET = ROOT / "interop" / "target"
SPARK_PYTHON = TARGET / "venv" / "bin" / "python"
SPARK_JARS = TARGET / "spark"
VALUE_BYTES = 100
NOISE_BYTES = 16 << 20
TIMEOUT_SECONDS = 120.0

Took = tuple[int, float, float]
"""How many records, in how many seconds, and of processor time."""
Sample = tuple[str, str, float]
"""Of a figure: its name, without the topic, its unit, and the value."""


@dataclass(frozen=True)
class Topic:
    """So many records in a broker, evenly in their partitions."""

    broker: Broker
    records_count: int
    partitions: int
    name: str = "records"

    def __str__(self) -> str:
        return f"{self.records_count:,} records in {self.partitions} partition{'s' * (self.partitions > 1)}"

    def timed(self, what: str, work: Callable[[], Took]) -> tuple[float, float]:
        """How many seconds it takes to work on all records, and of processor time, the broker's with it.

        RuntimeError where it was not all of them.
        """
        idle = self.broker.cpu_seconds()
        count, seconds, cpu_seconds = work()
        cpu_seconds += self.broker.cpu_seconds() - idle
        if count != self.records_count:
            raise RuntimeError(f"{what}: {count} records of {self.records_count}")
        rate = f"{count / seconds:,.0f} records/s, {cpu_seconds:.1f} s of CPU"
        print(f"{what}, {self}: {rate}", file=sys.stderr, flush=True)
        return seconds, cpu_seconds

    def rates(self, name: str, seconds: float, cpu_seconds: float) -> Iterator[Sample]:
        """What people compare."""
        yield name, "records/s", self.records_count / seconds
        yield f"{name}, CPU", "µs/record", cpu_seconds / self.records_count * 1e6

    def fill(self) -> None:
        """Make it. RuntimeError where the broker does not take everything."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 4})
        admin.create_topics([NewTopic(self.name, num_partitions=self.partitions)])[self.name].result(30)
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **PRODUCER})
        # No value comes twice, as Parquet has dictionaries for those that do; and nothing compresses.
        noise = os.urandom(NOISE_BYTES)
        sent = 0
        while sent < self.records_count:
            count = min(BATCH, self.records_count - sent)
            head = sent.to_bytes(8, "big")
            first = sent * VALUE_BYTES % (NOISE_BYTES - BATCH * VALUE_BYTES)
            batch: list[dict[str, Any]] = [
                {"value": head + noise[at + 8 : at + VALUE_BYTES]}
                for at in range(first, first + count * VALUE_BYTES, VALUE_BYTES)
            ]
            partition = sent // BATCH % self.partitions
            while batch:
                producer.produce_batch(self.name, batch, partition=partition)
                batch = [{"value": message["value"]} for message in batch if "_error" in message]
                producer.poll(0.01 if batch else 0)  # the client's queue is full
            sent += count
        if producer.flush(TIMEOUT_SECONDS):
            raise RuntimeError(f"{self.broker.name} did not acknowledge all in {TIMEOUT_SECONDS:.0f} s")


class Spark:
    """A Spark that is up and takes commands: a module of its side of a measurement."""

    def __init__(self, topic: Topic, module: str) -> None:
        broker = topic.broker
        given = {
            "bootstrap": broker.bootstrap,
            "topic": topic.name,
            "records": topic.records_count,
            "data": str(broker.directory / "data"),
            "parquet": str(broker.directory / "parquet"),
            "directory": str(broker.directory),
        }
        self._log_path = broker.directory / "spark.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [SPARK_PYTHON, "-m", module, json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": str(SPARK_PYTHON),
                    "KWIRE_SPARK_JARS": str(SPARK_JARS),
                },
            )
        self._answer()

    def __enter__(self) -> Spark:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # which ends its loop, and then Spark
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def do(self, *command: str) -> Took:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        count, seconds, cpu_seconds = self._answer()
        return count, seconds, cpu_seconds

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark has ended:\n{self._log_path.read_text(errors='replace')[-2000:]}")
        return json.loads(line)


Rounds = Callable[[Topic, Spark], Iterable[Sample]]
"""All rounds of a measurement of one topic."""


def missing_spark() -> str | None:
    """Why nothing can be measured with Spark here, as one sentence."""
    if not SPARK_PYTHON.exists():
        return "Spark is not measured: there is no PySpark, `make interop` installs it."
    if not any(SPARK_JARS.glob("spark-sql-kafka-*.jar")):
        return "Spark is not measured: its Kafka source is not there, `make interop` fetches it."
    reason = missing("apache")
    if reason is not None and "Java" in reason:
        return "Spark is not measured: there is no Java on the PATH."
    return None


def measure(
    names: list[str], records_counts: Iterable[int], partitions: Iterable[int], module: str, rounds: Rounds
) -> list[Figure]:
    """Brokers, each anew for a topic of so many records in each of these numbers of partitions.

    Nothing, and a sentence to people, where there is no Spark.
    """
    reason = missing_spark()
    if reason is not None:
        print(reason, file=sys.stderr)
        return []
    figures: dict[str, Figure] = {}
    for name, records_count, number in product(names, records_counts, partitions):
        broker = BROKERS[name]()
        try:
            broker.start()
            topic = Topic(broker, records_count, number)
            topic.fill()
            with Spark(topic, module) as spark:
                for figure, unit, value in rounds(topic, spark):
                    figure = f"{figure}, {topic}"
                    figures.setdefault(figure, Figure(figure, unit)).add(name, value)
        finally:
            broker.discard()
    return list(figures.values())


def parser_of(
    name: str, description: str | None, records_counts: tuple[int, ...], partitions: tuple[int, ...]
) -> argparse.ArgumentParser:
    """The options of a measurement's command that `report` takes."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    for option, default in (("records", records_counts), ("partitions", partitions)):
        told = ",".join(map(str, default))
        parser.add_argument(
            f"--{option}", type=_numbers, default=default, help=f"one or several numbers (default: {told})"
        )
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--only", action="append", choices=list(BROKERS), help="one broker; may be repeated")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def report(options: argparse.Namespace, module: str, rounds: Rounds) -> int:
    """Measure as was asked, and print the table; the exit status."""
    names = options.only or [name for name in BROKERS if missing(name) is None]
    load = os.getloadavg()[0]
    figures = measure(names, options.records, options.partitions, module, rounds)
    if not figures:
        return 1
    print(table(figures))
    print(f"\n{os.cpu_count()} cores, load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end.")
    return 0
