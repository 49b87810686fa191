"""Reading a topic's records of 100 bytes: out of its files, with Spark's Kafka source, with a consumer.

    python -m bench.segments [--records N] [--partitions N[,N…]] [--rounds N] [--into WHAT]
        [--only BROKER]

Each topic is read into a count and into Parquet, by Spark on `local[2]`: with the segment source of
pipeline/source.py from the broker's data directory, also with a schema that names one column, and with the
Kafka source of Spark itself from the running broker; and here by one librdkafka consumer, in a loop
over its messages by the ten thousand, from which pyarrow makes Parquet. Spark stays up, and does everything
three times before it counts.

The ways take turns in every round, and ratios are those of the same round. CPU is that of Spark with its
Python workers, or of the consumer's process, and that of the broker, which is idle while files are read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.brokers import BROKERS, ROOT, Broker, missing
from bench.figures import Figure, table
from bench.throughput import BATCH, CONSUMER, PRODUCER

TARGET = ROOT / "interop" / "target"
SPARK_PYTHON = TARGET / "venv" / "bin" / "python"
SPARK_JARS = TARGET / "spark"
RECORDS = 3_000_000
PARTITIONS = (1, 10, 100)
VALUE_BYTES = 100
NOISE_BYTES = 16 << 20
MESSAGES = 10_000
WARM_UPS = 3
"""Rounds that are not counted: a JVM compiles for so long what it runs."""
TIMEOUT_SECONDS = 120.0

SEGMENTS, COLUMN, KAFKA, CONSUMER_LOOP = (
    "segments",
    "segments, one column",
    "Spark's Kafka source",
    "consumer loop",
)
Ways = tuple[tuple[str, str], ...]
WAYS: Ways = (
    (SEGMENTS, "count"),
    (COLUMN, "count"),
    (KAFKA, "count"),
    (CONSUMER_LOOP, "count"),
    (SEGMENTS, "Parquet"),
    (KAFKA, "Parquet"),
    (CONSUMER_LOOP, "Parquet"),
)


class MissingSpark(Exception):
    """What this measurement needs is not here; the text is one sentence."""


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """As the command without options. How much is read is given by records, not by `seconds`."""
    try:
        return of(names, RECORDS, PARTITIONS, rounds, WAYS)
    except MissingSpark as error:
        print(error, file=sys.stderr)
        return []


def of(
    names: list[str], records_count: int, partitions: tuple[int, ...], rounds: int, ways: Ways
) -> list[Figure]:
    """Measure brokers with topics of so many records, in each of these numbers of partitions."""
    require_spark()
    figures: dict[str, Figure] = {}
    for name in names:
        broker = BROKERS[name]()
        try:
            broker.start()
            for number in partitions:
                topic = f"records-{number}"
                fill(broker, topic, number, records_count)
                with Spark(broker, topic) as spark:
                    _rounds(broker, spark, topic, number, records_count, rounds, ways, figures)
        finally:
            broker.discard()
    return list(figures.values())


def require_spark() -> None:
    """MissingSpark."""
    if not SPARK_PYTHON.exists():
        raise MissingSpark("segments are not measured: there is no PySpark, `make interop` installs it.")
    if not any(SPARK_JARS.glob("spark-sql-kafka-*.jar")):
        raise MissingSpark(
            "segments are not measured: Spark's Kafka source is not there, `make interop` fetches it."
        )
    reason = missing("apache")
    if reason is not None and "Java" in reason:
        raise MissingSpark("segments are not measured: there is no Java on the PATH.")


def _rounds(
    broker: Broker,
    spark: Spark,
    topic: str,
    partitions: int,
    records_count: int,
    rounds: int,
    ways: Ways,
    figures: dict[str, Figure],
) -> None:
    def add(name: str, unit: str, value: float) -> None:
        name = f"{name}, {partitions} partition{'s' if partitions > 1 else ''}"
        figures.setdefault(name, Figure(name, unit)).add(broker.name, value)

    for number in range(WARM_UPS + rounds):
        took: dict[tuple[str, str], tuple[float, float]] = {}
        for way, into in ways if number % 2 == 0 else reversed(ways):
            idle = broker.cpu_seconds()
            if way == CONSUMER_LOOP:
                count, seconds, cpu_seconds = _consume(broker, topic, records_count, into)
            else:
                count, seconds, cpu_seconds = spark.do(way, into)
            cpu_seconds += broker.cpu_seconds() - idle
            if count != records_count:
                raise RuntimeError(f"{way} into {into}: {count} records of {records_count}")
            took[way, into] = seconds, cpu_seconds
            rate = f"{records_count / seconds:,.0f} records/s, {cpu_seconds:.1f} s of CPU"
            print(
                f"round {number}, {partitions} partitions, {into}, {way}: {rate}", file=sys.stderr, flush=True
            )
        if number < WARM_UPS:
            continue
        for way, into in ways:
            seconds, cpu_seconds = took[way, into]
            add(f"{into}: {way}", "records/s", records_count / seconds)
            add(f"{into}: {way}, CPU", "µs/record", cpu_seconds / records_count * 1e6)
        for way, into in ((SEGMENTS, "count"), (COLUMN, "count"), (SEGMENTS, "Parquet")):
            if (way, into) not in ways:
                continue
            for other in (KAFKA, CONSUMER_LOOP):
                add(f"{into}: {way} / {other}", "times", took[other, into][0] / took[way, into][0])


class Spark:
    """A Spark that is up and takes commands."""

    def __init__(self, broker: Broker, topic: str, module: str = "bench.segments_job") -> None:
        given = {
            "bootstrap": broker.bootstrap,
            "topic": topic,
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

    def do(self, *command: str) -> tuple[int, float, float]:
        """How many records, in how many seconds, and of processor time."""
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


def fill(broker: Broker, topic: str, partitions: int, records_count: int) -> None:
    """A topic with so many records, evenly in its partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    admin.create_topics([NewTopic(topic, num_partitions=partitions)])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **PRODUCER})
    # No value comes twice, as Parquet has dictionaries for those that do; and nothing compresses.
    noise = os.urandom(NOISE_BYTES)
    sent = 0
    while sent < records_count:
        count = min(BATCH, records_count - sent)
        head = sent.to_bytes(8, "big")
        first = sent * VALUE_BYTES % (NOISE_BYTES - BATCH * VALUE_BYTES)
        batch: list[dict[str, Any]] = [
            {"value": head + noise[at + 8 : at + VALUE_BYTES]}
            for at in range(first, first + count * VALUE_BYTES, VALUE_BYTES)
        ]
        partition = sent // BATCH % partitions
        while batch:
            producer.produce_batch(topic, batch, partition=partition)
            batch = [{"value": message["value"]} for message in batch if "_error" in message]
            producer.poll(0.01 if batch else 0)  # the client's queue is full
        sent += count
    if producer.flush(TIMEOUT_SECONDS):
        raise RuntimeError(f"{broker.name} did not acknowledge everything in {TIMEOUT_SECONDS:.0f} s")


def _consume(broker: Broker, topic: str, records_count: int, into: str) -> tuple[int, float, float]:
    """How many records, in how many seconds, and of this process's processor time."""
    keep, finish = (
        _parquet(broker.directory / "consumed.parquet") if into == "Parquet" else (len, lambda: None)
    )
    used = _own_cpu_seconds()
    begun = last = time.perf_counter()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **CONSUMER})
    try:
        metadata = consumer.list_topics(topic, timeout=30).topics[topic]
        consumer.assign([TopicPartition(topic, number, 0) for number in metadata.partitions])
        count = 0
        while count < records_count:
            messages = consumer.consume(MESSAGES, timeout=0.1)
            if messages:
                keep(messages)
                count += len(messages)
                last = time.perf_counter()
            elif time.perf_counter() - last > TIMEOUT_SECONDS:
                break
        finish()
        return count, time.perf_counter() - begun, _own_cpu_seconds() - used
    finally:
        consumer.close()


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _parquet(path: Path) -> tuple[Callable[[list[Any]], object], Callable[[], object]]:
    """What takes messages into a file, and what ends it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    writer = pq.ParquetWriter(path, schema)

    def keep(messages: list[Any]) -> None:
        stamps = [message.timestamp() for message in messages]
        columns = [
            [message.key() for message in messages],
            [message.value() for message in messages],
            [message.topic() for message in messages],
            [message.partition() for message in messages],
            [message.offset() for message in messages],
            [stamp for _, stamp in stamps],
            [kind - 1 for kind, _ in stamps],  # librdkafka counts from one
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))

    return keep, writer.close


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.segments", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help=f"of each topic (default: {RECORDS})")
    default = ",".join(map(str, PARTITIONS))
    parser.add_argument("--partitions", default=default, help=f"one or several numbers (default: {default})")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--only", action="append", choices=list(BROKERS), help="one broker; may be repeated")
    parser.add_argument("--into", choices=("count", "Parquet"), help="only this (default: both)")
    options = parser.parse_args()
    names = options.only or [name for name in BROKERS if missing(name) is None]
    partitions = tuple(int(number) for number in options.partitions.split(","))
    load = os.getloadavg()[0]
    try:
        ways = tuple(way for way in WAYS if options.into in (None, way[1]))
        figures = of(names, options.records, partitions, options.rounds, ways)
    except MissingSpark as error:
        print(error, file=sys.stderr)
        return 1
    print(table(figures))
    print(f"\n{os.cpu_count()} cores, load {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
