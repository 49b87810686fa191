"""Batch writes and batch reads with format("kafka"), all in one session."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from interop.spark_jobs.session import digest, outcome, print_event, reader, session, settings

KEY = "CASE WHEN id % 7 = 0 THEN NULL ELSE CAST(concat('key-', id % 10) AS BINARY) END AS key"
VALUE = (
    "CASE WHEN id % 11 = 5 AND id % 7 != 0 THEN NULL"
    " ELSE CAST(repeat(concat('value-', id), CAST(1 + id % 40 AS INT)) AS BINARY) END AS value"
)
HEADERS = (
    "CASE WHEN id % 3 = 0 THEN array("
    "named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY)),"
    " named_struct('key', 'n', 'value', X''), named_struct('key', 'ü', 'value', X'00ff')) END AS headers"
)
PARTITION = "CAST(id % 4 AS INT) AS partition"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def records(spark: SparkSession, count: int, *columns: str, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr(*columns)


def write(records_: DataFrame, bootstrap: str, **options: str) -> None:
    sink = records_.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    sink.options(**{name.replace("_", "."): value for name, value in options.items()}).save()


def content(read: DataFrame) -> dict[str, Any]:
    """Return the content of a topic, without the values that differ between brokers."""
    rows = read.selectExpr(
        "topic",
        "partition",
        "offset",
        "timestampType",
        "key",
        "value",
        "transform(headers, header -> struct(header.key, header.value)) AS headers",
    ).collect()
    partitions = sorted({row["partition"] for row in rows})
    by_partition = [[row for row in rows if row["partition"] == partition] for partition in partitions]
    return {
        "count": len(rows),
        "topics": sorted({row["topic"] for row in rows}),
        "partitions": partitions,
        "offsets": [
            [
                len(found),
                len({row["offset"] for row in found}),
                min(row["offset"] for row in found),
                max(row["offset"] for row in found),
            ]
            for found in by_partition
        ],
        "timestamp types": sorted({row["timestampType"] for row in rows}),
        "contents": digest([row["key"], row["value"], row["headers"]] for row in rows),
        "by partition": [
            digest([row["key"], row["value"], row["headers"]] for row in found) for found in by_partition
        ],
        "without key": sum(row["key"] is None for row in rows),
        "without value": sum(row["value"] is None for row in rows),
        "with headers": sum(bool(row["headers"]) for row in rows),
    }


def main() -> None:
    given = settings()
    bootstrap = given["bootstrap"]
    spark = session(given["jars"], given["directory"])
    seen: dict[str, Any] = {}

    rows = records(spark, 1000, KEY, VALUE, HEADERS, PARTITION)
    write(rows, bootstrap, topic="spark-batch")
    read = reader(spark, bootstrap, subscribe="spark-batch", includeHeaders="true")
    seen["schema"] = read.schema.simpleString()
    seen["whole"] = content(read)
    sent = rows.selectExpr(
        "key", "value", "transform(headers, header -> struct(header.key, header.value)) AS headers"
    )
    seen["as sent"] = digest(list(row) for row in sent.collect()) == seen["whole"]["contents"]
    schema = reader(spark, bootstrap, subscribe="spark-batch").schema.simpleString()
    seen["schema without headers"] = schema

    # With keys, Kafka's partitioner is deterministic. With one task, so is the order within a partition.
    write(
        records(spark, 300, "CAST(concat('k', id) AS BINARY) AS key", VALUE, tasks=1),
        bootstrap,
        topic="spark-keyed",
    )
    keyed = reader(spark, bootstrap, subscribe="spark-keyed").select("partition", "offset", "key").collect()
    seen["by key"] = digest(list(row) for row in keyed)

    for codec in CODECS:
        write(
            records(spark, 40, "CAST(id AS STRING) AS value", f"'spark-{codec}' AS topic", tasks=1),
            bootstrap,
            kafka_compression_type=codec,
            kafka_acks="1" if codec == "gzip" else "all",
            kafka_enable_idempotence="false" if codec in ("gzip", "none") else "true",
        )
    every_codec = reader(spark, bootstrap, subscribe=",".join(f"spark-{codec}" for codec in CODECS))
    per_topic = every_codec.groupBy("topic").count().collect()
    seen["codecs"] = sorted(list(row) for row in per_topic)
    seen["codecs' contents"] = digest(
        list(row) for row in every_codec.select("topic", "partition", "offset", "value").collect()
    )

    write(records(spark, 20, "CAST(id AS STRING) AS value"), bootstrap, topic="spark-append-time")
    append_time = reader(spark, bootstrap, subscribe="spark-append-time")
    seen["append time"] = [list(row) for row in append_time.select("timestampType").distinct().collect()]

    from_client = reader(spark, bootstrap, subscribe="spark-from-client", includeHeaders="true")
    seen["from a client"] = content(from_client)
    seen["from a client, timestamps"] = digest(
        list(row) for row in from_client.selectExpr("partition", "offset", "unix_millis(timestamp)").collect()
    )

    seen["large"] = outcome(
        lambda: write(
            records(spark, 1, "repeat('x', 2000000) AS value"),
            bootstrap,
            topic="spark-batch",
            kafka_max_request_size="10000000",
        )
    )
    seen["no such topic"] = outcome(lambda: reader(spark, bootstrap, subscribe="spark-nowhere").count())
    seen["no such partition"] = outcome(
        lambda: write(
            records(spark, 1, "'x' AS value", "99 AS partition"),
            bootstrap,
            topic="spark-batch",
            kafka_max_block_ms="1500",
        )
    )
    print_event(seen=seen)
    spark.stop()


if __name__ == "__main__":
    main()
