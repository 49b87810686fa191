"""Batch and streaming reads of a topic with aborted and open transactions, at both isolation levels."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from interop.spark_jobs.session import ask, print_event, reader, session, settings, stream

LEVELS = ("read_committed", "read_uncommitted")


def rows(frame: DataFrame) -> list[list[Any]]:
    """Return the partition, offset and value of each record, sorted."""
    found = frame.selectExpr("partition", "offset", "CAST(value AS STRING) AS value").collect()
    return sorted([row["partition"], row["offset"], row["value"]] for row in found)


def main() -> None:
    given = settings()
    spark = session(given["jars"], given["directory"])
    topic, bootstrap = given["topic"], given["bootstrap"]

    def batch(level: str, **options: Any) -> list[list[Any]]:
        return rows(reader(spark, bootstrap, subscribe=topic, kafka_isolation_level=level, **options))

    def streamed(level: str) -> list[list[Any]]:
        """Read the topic to its end with a stream, which has its own checkpoint."""
        taken: list[list[Any]] = []
        source = stream(
            spark,
            bootstrap,
            subscribe=topic,
            startingOffsets="earliest",
            kafka_isolation_level=level,
            maxOffsetsPerTrigger=given["batch"],
        )
        query = (
            source.writeStream.foreachBatch(lambda frame, _: taken.extend(rows(frame)))
            .option("checkpointLocation", f"{given['directory']}/checkpoint-{level}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return taken

    for _ in range(2):
        seen: dict[str, Any] = {}
        for level in LEVELS:
            seen[f"batch, {level}"] = batch(level)
            seen[f"stream, {level}"] = streamed(level)
        seen["part, read_committed"] = batch(
            "read_committed", startingOffsets={topic: given["starts"]}, endingOffsets={topic: given["ends"]}
        )
        print_event(seen=seen)
        ask("end the open transaction")
    spark.stop()


if __name__ == "__main__":
    main()
