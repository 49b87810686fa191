"""Reading a topic's records of 100 bytes: out of its files, with Spark's Kafka source, with a consumer.

    python -m bench.segments [--records N[,N…]] [--partitions N[,N…]] [--rounds N] [--into WHAT]
        [--only BROKER]

Each topic is read into a count and into Parquet, by Spark on `local[2]`: with the segment source of
pipeline/source.py from the broker's data directory, also with a schema that names one column, and with the
Kafka source of Spark itself from the running broker; and here by one librdkafka consumer, in a loop
over its messages by the ten thousand, from which pyarrow makes Parquet. "nothing" is a source in Python that
sends Spark as many whole rows and reads none of them: none can be faster. Spark stays up, and does
everything three times before it counts.

The ways take turns in every round, and ratios are those of the same round. CPU is that of Spark with its
Python workers, or of the consumer's process, and that of the broker, which is idle while files are read.
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
"""Rounds that are not counted: a JVM compiles for so long what it runs."""

SEGMENTS, COLUMN, NOTHING, KAFKA, CONSUMER_LOOP = (
    "segments",
    "segments, one column",
    "nothing",
    "Spark's Kafka source",
    "consumer loop",
)
Ways = tuple[tuple[str, str], ...]
WAYS: Ways = (
    (SEGMENTS, "count"),
    (COLUMN, "count"),
    (NOTHING, "count"),
    (KAFKA, "count"),
    (CONSUMER_LOOP, "count"),
    (SEGMENTS, "Parquet"),
    (NOTHING, "Parquet"),
    (KAFKA, "Parquet"),
    (CONSUMER_LOOP, "Parquet"),
)


def measure(names: list[str], seconds: float, rounds: int) -> list[Figure]:
    """As the command without options. How much is read is given by records, not by `seconds`."""
    return spark.measure(names, RECORDS, PARTITIONS, SPARK_SIDE, partial(_rounds, rounds, WAYS))


def _rounds(rounds: int, ways: Ways, topic: spark.Topic, up: spark.Spark) -> Iterator[spark.Sample]:
    for number in range(WARM_UPS + rounds):
        took: dict[tuple[str, str], tuple[float, float]] = {}
        for way, into in ways if number % 2 == 0 else reversed(ways):
            work = partial(_consume, topic, into) if way == CONSUMER_LOOP else partial(up.do, way, into)
            took[way, into] = topic.timed(f"round {number}, {into}: {way}", work)
        if number < WARM_UPS:
            continue
        for way, into in ways:
            yield from topic.rates(f"{into}: {way}", *took[way, into])
        for way, into in ways:
            if way not in (SEGMENTS, COLUMN, NOTHING):
                continue
            for other in (KAFKA, CONSUMER_LOOP):
                yield f"{into}: {way} / {other}", "times", took[other, into][0] / took[way, into][0]


def _consume(topic: spark.Topic, into: str) -> spark.Took:
    """Its processor time is that of this process."""
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
    parser = spark.parser_of("bench.segments", __doc__, RECORDS, PARTITIONS)
    parser.add_argument("--into", choices=("count", "Parquet"), help="only this (default: both)")
    options = parser.parse_args()
    ways = tuple(way for way in WAYS if options.into in (None, way[1]))
    return spark.report(options, SPARK_SIDE, partial(_rounds, options.rounds, ways))


if __name__ == "__main__":
    sys.exit(main())
