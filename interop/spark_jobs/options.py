"""Options of format("kafka") that the other programs do not use, for the source, the sink and the caches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from interop.spark_jobs.batch import content
from interop.spark_jobs.session import outcome, print_event, reader, session, settings, spark_options, stream

RECORDS = 400
WAIT_S = 60.0
CACHES = {
    "spark.kafka.consumer.cache.capacity": "1",
    "spark.kafka.consumer.cache.timeout": "10ms",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "10ms",
    "spark.kafka.consumer.fetchedData.cache.timeout": "10ms",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10ms",
    "spark.kafka.producer.cache.timeout": "10ms",
    "spark.kafka.producer.cache.evictorThreadRunInterval": "10ms",
}
"""Options that close cached consumers and producers early. The other programs use Spark's defaults."""


class Options:
    """Reads and writes in one Spark session with one broker. Failures are returned by `outcome`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.bootstrap: str = given["bootstrap"]
        self.directory: str = given["directory"]
        self.spark: SparkSession = session(given["jars"], self.directory)

    def rows(self, count: int, *columns: str) -> DataFrame:
        return self.spark.range(0, count, 1, 2).selectExpr(*columns)

    def write(self, rows: DataFrame, **options: Any) -> Any:
        """Write rows as a batch and return the outcome."""

        def save() -> str:
            sink = rows.write.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
            sink.options(**spark_options(options)).save()
            return "written"

        return outcome(save)

    def content(self, topic: str) -> Any:
        return content(reader(self.spark, self.bootstrap, subscribe=topic, includeHeaders="true"))

    def batches(self, name: str, trigger: dict[str, Any], enough: int, **options: Any) -> Any:
        """Run a stream until its micro-batches have `enough` records, the stream ends, or time is over.

        Return the number of records of each micro-batch.
        """

        def drain() -> list[int]:
            query = (
                stream(self.spark, self.bootstrap, **options)
                .writeStream.format("noop")
                .option("checkpointLocation", f"{self.directory}/checkpoint-{name}")
                .trigger(**trigger)
                .start()
            )
            try:
                deadline = time.monotonic() + WAIT_S
                while True:
                    counts = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
                    if sum(counts) >= enough or not query.isActive or time.monotonic() > deadline:
                        break
                    time.sleep(0.1)
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                return counts
            finally:
                query.stop()

        return outcome(drain)

    def streamed(self, name: str, frame: DataFrame, mode: str, **options: Any) -> Any:
        """Write `frame` with a stream until its present records are written, and return the outcome."""

        def run() -> str:
            query = (
                frame.writeStream.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .option("checkpointLocation", f"{self.directory}/checkpoint-{name}")
                .options(**spark_options(options))
                .outputMode(mode)
                .trigger(availableNow=True)
                .start()
            )
            try:
                if not query.awaitTermination(WAIT_S):
                    raise TimeoutError(f"{name} is not done")
                return "written"
            finally:
                query.stop()

        return outcome(run)


def source(it: Options) -> dict[str, Any]:
    """Read topic spark-options, which has four partitions of a hundred records each."""
    topic, seen = "spark-options", {}
    first = {"subscribe": topic, "startingOffsets": "earliest"}
    soon = {"processingTime": "100 milliseconds"}

    def tasks(**options: Any) -> Any:
        def cut() -> Any:
            frame = reader(it.spark, it.bootstrap, subscribe=topic, **options)
            per_task = frame.selectExpr("spark_partition_id() AS task").groupBy("task").count().collect()
            return sorted(row["count"] for row in per_task)

        return outcome(cut)

    seen["at most 30 a task"] = tasks(maxRecordsPerPartition=30)
    seen["at most 30 a task, six tasks at least"] = tasks(maxRecordsPerPartition=30, minPartitions=6)
    seen["at most 0 a task"] = tasks(maxRecordsPerPartition=0)
    seen["three tasks at least"] = tasks(minPartitions=3)
    seen["no tasks"] = tasks(minPartitions=0)
    seen["at least 1000, or in time"] = it.batches(
        "delay", soon, RECORDS, **first, minOffsetsPerTrigger=1000, maxTriggerDelay="3s"
    )
    seen["at least 100, at most 150"] = it.batches(
        "both", soon, RECORDS, **first, minOffsetsPerTrigger=100, maxOffsetsPerTrigger=150
    )
    seen["at least more than at most"] = it.batches(
        "wrong", soon, RECORDS, **first, minOffsetsPerTrigger=200, maxOffsetsPerTrigger=100
    )
    seen["tries and intervals"] = it.batches(
        "tries",
        {"availableNow": True},
        RECORDS,
        **first,
        fetchOffset_numRetries=5,
        fetchOffset_retryIntervalMs=50,
        kafkaConsumer_pollTimeoutMs=5000,
    )
    seen["a group of its own"] = it.batches(
        "prefix", {"availableNow": True}, RECORDS, **first, groupIdPrefix="spark-options-prefix"
    )
    seen["a given group"] = it.batches(
        "group", {"availableNow": True}, RECORDS, **first, kafka_group_id="spark-options-group"
    )
    seen["client settings"] = it.batches(
        "client",
        {"availableNow": True},
        RECORDS,
        **first,
        kafka_fetch_min_bytes=1,
        kafka_fetch_max_wait_ms=10,
        kafka_max_poll_records=7,
        kafka_max_partition_fetch_bytes=1000,
        kafka_receive_buffer_bytes=32768,
        kafka_client_rack="somewhere",
        kafka_check_crcs="true",
    )
    for option in (
        {"kafka_auto_offset_reset": "earliest"},
        {"kafka_key_deserializer": "x"},
        {"kafka_enable_auto_commit": "true"},
        {"kafka_interceptor_classes": "x"},
        {"startingOffsets": "somewhere"},
        {"startingOffsets": {topic: {"0": 1}}},
        {"endingOffsets": "earliest"},
        {"assign": "{}"},
        {"subscribePattern": "x"},
    ):
        name = f"refused: {json.dumps(option)}"
        seen[name] = outcome(partial(counted, it, **{"subscribe": topic, **option}))
    seen["no subscription"] = outcome(partial(counted, it))
    seen["a topic that is not there"] = outcome(partial(counted, it, subscribe="spark-no-such"))
    return seen


def counted(it: Options, **options: Any) -> int:
    return int(reader(it.spark, it.bootstrap, **options).count())


def sink(it: Options) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    value = "CAST(id AS STRING) AS value"
    place = "CAST(id % 2 AS INT) AS partition"
    by_column = it.rows(40, value, place, "concat('spark-sink-', id % 2) AS topic")
    seen["topics by column"] = [it.write(by_column), it.content("spark-sink-0"), it.content("spark-sink-1")]
    seen["the option wins"] = [it.write(by_column, topic="spark-sink-2"), it.content("spark-sink-2")]
    for name, columns, options in (
        ("no value", ["CAST(id AS STRING) AS key"], {"topic": "spark-sink-3"}),
        ("no topic", [value], {}),
        ("a null topic", [value, "CAST(NULL AS STRING) AS topic"], {}),
        ("a value of another type", ["id AS value"], {"topic": "spark-sink-3"}),
        ("a key of another type", [value, "id AS key"], {"topic": "spark-sink-3"}),
        ("a partition of another type", [value, "id AS partition"], {"topic": "spark-sink-3"}),
        ("headers of another type", [value, "id AS headers"], {"topic": "spark-sink-3"}),
        ("a partition too many", [value, "CAST(9 AS INT) AS partition"], {"topic": "spark-sink-3"}),
        ("its own serializer", [value], {"topic": "spark-sink-3", "kafka_value_serializer": "x"}),
    ):
        short = {"kafka_max_block_ms": 4000} if name == "a partition too many" else {}
        seen[name] = it.write(it.rows(3, *columns), **options, **short)
    producers: list[dict[str, Any]] = [
        {"kafka_acks": "0"},
        {"kafka_acks": "1", "kafka_linger_ms": 20, "kafka_batch_size": 200},
        {"kafka_acks": "all", "kafka_enable_idempotence": "true", "kafka_compression_type": "zstd"},
        {"kafka_max_in_flight_requests_per_connection": 1, "kafka_retries": 3, "kafka_buffer_memory": 65536},
    ]
    for number, settings_ in enumerate(producers, 4):
        topic = f"spark-sink-{number}"
        written = it.write(it.rows(200, value, "CAST(0 AS INT) AS partition"), topic=topic, **settings_)
        seen[json.dumps(settings_)] = [written, settled(partial(it.content, topic))]
    seen["modes"] = [
        outcome(partial(written_with, it, mode)) for mode in ("append", "overwrite", "ignore", "error")
    ]
    return seen


def settled(look: Callable[[], Any]) -> Any:
    """Call `look` until it returns the same records twice: without acks, records may arrive later."""
    before = look()
    for _ in range(20):
        time.sleep(0.2)
        after = look()
        if after == before and after["count"]:
            break
        before = after
    return before


def written_with(it: Options, mode: str) -> str:
    rows = it.rows(2, "CAST(id AS STRING) AS value")
    sink = rows.write.format("kafka").option("kafka.bootstrap.servers", it.bootstrap)
    sink.option("topic", "spark-sink-8").mode(mode).save()
    return "written"


def streaming_sink(it: Options) -> dict[str, Any]:
    """Write records of spark-options with a stream, in every output mode."""
    seen: dict[str, Any] = {}

    def records() -> DataFrame:
        return stream(it.spark, it.bootstrap, subscribe="spark-options", startingOffsets="earliest")

    copied = records().select("key", "value", "partition")
    seen["append"] = [
        it.streamed("append", copied, "append", topic="spark-streamed-1"),
        it.content("spark-streamed-1"),
    ]
    per_partition = records().groupBy("partition").count()
    result = per_partition.selectExpr("CAST(partition AS STRING) AS key", "CAST(count AS STRING) AS value")
    for mode in ("update", "complete"):
        topic = f"spark-streamed-{mode}"
        seen[mode] = [it.streamed(mode, result, mode, topic=topic), it.content(topic)]
    seen["append without a watermark"] = it.streamed("wrong", result, "append", topic="spark-streamed-wrong")
    return seen


def main() -> None:
    it = Options(settings())
    print_event(seen={"source": source(it), "sink": sink(it), "streams": streaming_sink(it)})
    it.spark.stop()


if __name__ == "__main__":
    main()
