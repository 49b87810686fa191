"""Reading of a topic with records of 100 bytes: from its files, with Spark's Kafka source, with a consumer.

    python -m bench.segments [--records N[,N…]] [--partitions N[,N…]] [--rounds N] [--into WHAT]
        [--only BROKER]

Each method counts the records of a topic, and writes the records to Parquet. Spark on `local[2]` reads the
broker's data directory with the segment source of kwire/pipeline/source.py, with all columns and with one
column. It also reads from the running broker with its Kafka source. One librdkafka consumer reads in this
process, 10,000 messages at a time, and pyarrow writes Parquet. "Source without data" is a Python source that
sends the same number of complete rows to Spark without reading data. Its speed is the limit of such a source.
One Spark runs all jobs, and the first three rounds do not count.

Every round runs all methods one after the other, and a ratio compares results of the same round. The
processor time is that of Spark and its Python workers, or of the consumer's process, plus that of the broker.
The broker is idle while files are read.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import spark
from bench.figures import Figure
from bench.throughput import CONSUMER

RECORDS = (3_000_000,)
PARTITIONS = (1, 10, 100)
SPARK_SIDE = "bench.segments_job"
MESSAGES = 10_000
WARM_UPS = 3
"""The number of rounds that do not count, because the JVM is still compiling its code."""

SEGMENTS, COLUMN, EMPTY_SOURCE, KAFKA, CONSUMER_LOOP = (
    "segments",
    "segments, one column",
    "source without data",
    "Spark's Kafka source",
    "consumer loop",
)
Methods = tuple[tuple[str, str], ...]
METHODS: Methods = (
    (SEGMENTS, "count"),
    (COLUMN, "count"),
    (EMPTY_SOURCE, "count"),
    (KAFKA, "count"),
    (CONSUMER_LOOP, "count"),
    (SEGMENTS, "Parquet"),
    (EMPTY_SOURCE, "Parquet"),
    (KAFKA, "Parquet"),
    (CONSUMER_LOOP, "Parquet"),
)


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """Measure with the default options. `seconds` has no effect, because the number of records is fixed."""
    return spark.measure(names, RECORDS, PARTITIONS, SPARK_SIDE, partial(_rounds, rounds, METHODS))


def _rounds(rounds: int, methods: Methods, topic: spark.Topic, up: spark.Spark) -> Iterator[spark.Sample]:
    for number in range(WARM_UPS + rounds):
        results: dict[tuple[str, str], tuple[float, float]] = {}
        for method, into in methods if number % 2 == 0 else reversed(methods):
            work = (
                partial(_consume, topic, into) if method == CONSUMER_LOOP else partial(up.run, method, into)
            )
            results[method, into] = topic.time_job(f"round {number}, {into}: {method}", work)
        if number < WARM_UPS:
            continue
        for method, into in methods:
            yield from topic.rates(f"{into}: {method}", *results[method, into])
        for method, into in methods:
            if method not in (SEGMENTS, COLUMN, EMPTY_SOURCE):
                continue
            for other in (KAFKA, CONSUMER_LOOP):
                yield (
                    f"{into}: {method} / {other}",
                    "times",
                    results[other, into][0] / results[method, into][0],
                )


def _consume(topic: spark.Topic, into: str) -> spark.JobResult:
    """Read the topic with a consumer, and write Parquet if `into` is "Parquet".

    The processor time in the result is that of this process.
    """
    broker = topic.broker
    keep, finish = (
        _parquet(broker.directory / "consumed.parquet") if into == "Parquet" else (len, lambda: None)
    )
    used = _own_cpu_seconds()
    begun = last = time.perf_counter()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **CONSUMER})
    try:
        consumer.assign([TopicPartition(topic.name, number, 0) for number in range(topic.partitions)])
        count = 0
        while count < topic.records_count:
            messages = consumer.consume(MESSAGES, timeout=0.1)
            if messages:
                keep(messages)
                count += len(messages)
                last = time.perf_counter()
            elif time.perf_counter() - last > spark.TIMEOUT_SECONDS:
                break
        finish()
        return count, time.perf_counter() - begun, _own_cpu_seconds() - used
    finally:
        consumer.close()


def _own_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _parquet(path: Path) -> tuple[Callable[[list[Any]], object], Callable[[], object]]:
    """Return a function that writes messages to a Parquet file, and one that closes the file."""
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
            [kind - 1 for kind, _ in stamps],  # librdkafka's timestamp types start at 1
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))

    return keep, writer.close


def main() -> int:
    parser = spark.make_parser("bench.segments", __doc__, RECORDS, PARTITIONS)
    parser.add_argument("--into", choices=("count", "Parquet"), help="only this (default: both)")
    options = parser.parse_args()
    methods = tuple(method for method in METHODS if options.into in (None, method[1]))
    return spark.report(options, SPARK_SIDE, partial(_rounds, options.rounds, methods))


if __name__ == "__main__":
    sys.exit(main())
