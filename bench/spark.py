"""A running Spark, a topic with records of 100 bytes in a broker, and the measurement of Spark's jobs."""

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

from bench.brokers import BROKERS, ROOT, Broker, why_missing
from bench.figures import Figure, table
from bench.throughput import BATCH, PRODUCER
from kwire.wire.plural import plural

TARGET = ROOT / "interop" / "target"
SPARK_PYTHON = TARGET / "venv" / "bin" / "python"
SPARK_JARS = TARGET / "spark"
VALUE_BYTES = 100
NOISE_BYTES = 16 << 20
TIMEOUT_SECONDS = 120.0

JobResult = tuple[int, float, float]
"""The number of records that a job processed, its seconds, and its processor seconds."""
Sample = tuple[str, str, float]
"""The name of a figure without the topic, its unit, and a sample."""


@dataclass(frozen=True)
class Topic:
    """A topic with the same number of records in each partition."""

    broker: Broker
    records_count: int
    partitions: int
    name: str = "records"

    def __str__(self) -> str:
        return f"{plural(self.records_count, 'record', ',')} in {plural(self.partitions, 'partition')}"

    def time_job(self, description: str, work: Callable[[], JobResult]) -> tuple[float, float]:
        """Run a job on all records. Returns its seconds, and the processor seconds of the job and the broker.

        Raises RuntimeError if the job did not process every record.
        """
        idle = self.broker.cpu_seconds()
        count, seconds, cpu_seconds = work()
        cpu_seconds += self.broker.cpu_seconds() - idle
        if count != self.records_count:
            raise RuntimeError(f"{description}: {plural(count, 'record')} of {self.records_count}")
        rate = f"{count / seconds:,.0f} records/s, {cpu_seconds:.1f} s of CPU"
        print(f"{description}, {self}: {rate}", file=sys.stderr, flush=True)
        return seconds, cpu_seconds

    def rates(self, name: str, seconds: float, cpu_seconds: float) -> Iterator[Sample]:
        """Yield the throughput and the processor time per record."""
        yield name, "records/s", self.records_count / seconds
        yield f"{name}, CPU", "µs/record", cpu_seconds / self.records_count * 1e6

    def fill(self) -> None:
        """Create and fill the topic. Raises RuntimeError if not every record is acknowledged."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 4})
        admin.create_topics([NewTopic(self.name, num_partitions=self.partitions)])[self.name].result(30)
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **PRODUCER})
        # Values are random, so that Parquet cannot use a dictionary for repeated values or compress them.
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
    """A running Spark: a child process that runs `module` and executes one command per line of its stdin."""

    def __init__(self, topic: Topic, module: str) -> None:
        broker = topic.broker
        arguments = {
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
                [SPARK_PYTHON, "-m", module, json.dumps(arguments)],
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
        self._read_response()

    def __enter__(self) -> Spark:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # this ends the loop of the child process
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def run(self, *command: str) -> JobResult:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        count, seconds, cpu_seconds = self._read_response()
        return count, seconds, cpu_seconds

    def _read_response(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark has ended:\n{self._log_path.read_text(errors='replace')[-2000:]}")
        return json.loads(line)


Rounds = Callable[[Topic, Spark], Iterable[Sample]]
"""A function that runs all rounds with one topic and yields the samples."""


def why_no_spark() -> str | None:
    if not (TARGET / "venv" / ".complete").exists():
        return "Spark is not measured: there is no PySpark, `make interop` installs it."
    if not (SPARK_JARS / ".complete").exists():
        return "Spark is not measured: its Kafka source is not there, `make interop` fetches it."
    reason = why_missing("apache")
    if reason is not None and "Java" in reason:
        return "Spark is not measured: there is no Java on the PATH."
    return None


def measure(
    names: list[str], records_counts: Iterable[int], partitions: Iterable[int], module: str, rounds: Rounds
) -> list[Figure]:
    """Measure each broker with a topic for each combination of record count and partition count.

    `module` runs in Spark: see `Spark`. If Spark is missing, prints the reason and returns an empty list.
    """
    reason = why_no_spark()
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


def make_parser(
    name: str, description: str | None, records_counts: tuple[int, ...], partitions: tuple[int, ...]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    for option, default in (("records", records_counts), ("partitions", partitions)):
        numbers = ",".join(map(str, default))
        parser.add_argument(
            f"--{option}", type=_numbers, default=default, help=f"one or several numbers (default: {numbers})"
        )
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--only", action="append", choices=list(BROKERS), help="one broker; may be repeated")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def report(options: argparse.Namespace, module: str, rounds: Rounds) -> int:
    """Measure with these options and print the table. Return the exit status."""
    names = options.only or [name for name in BROKERS if why_missing(name) is None]
    load = os.getloadavg()[0]
    figures = measure(names, options.records, options.partitions, module, rounds)
    if not figures:
        return 1
    print(table(figures))
    print(
        f"\n{plural(os.cpu_count() or 1, 'core')}, load {load:.1f} at the start and "
        f"{os.getloadavg()[0]:.1f} at the end."
    )
    return 0
