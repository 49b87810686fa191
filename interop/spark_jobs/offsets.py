"""The start and end offsets of batch and streaming reads, and how Spark splits the offsets into tasks."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from interop.spark_jobs.session import ask, digest, outcome, print_event, reader, session, settings, stream


class Offsets:
    """Batch and streaming reads in one Spark session from one broker. Failures are returned by `outcome`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.bootstrap: str = given["bootstrap"]
        self.directory: str = given["directory"]
        self.start: int = given["start"]
        self.spark: SparkSession = session(given["jars"], self.directory)

    def ranges(self, **options: Any) -> Any:
        """Read a batch. Return count, first and last offset by partition, and a hash of all contents."""

        def read() -> Any:
            frame = reader(self.spark, self.bootstrap, **options)
            rows = frame.select("topic", "partition", "offset", "value").collect()
            found: dict[str, Any] = {}
            for place in sorted({(row["topic"], row["partition"]) for row in rows}):
                offsets = [row["offset"] for row in rows if (row["topic"], row["partition"]) == place]
                found[f"{place[0]}-{place[1]}"] = [len(offsets), min(offsets), max(offsets)]
            return {"ranges": found, "contents": digest(list(row) for row in rows)}

        return outcome(read)

    def tasks(self, **options: Any) -> Any:
        """Return the number of records in each task of a batch read."""
        frame = reader(self.spark, self.bootstrap, **options)
        per_task = frame.selectExpr("spark_partition_id() AS task").groupBy("task").count().collect()
        return sorted(list(row) for row in per_task)

    def run(self, name: str, **options: Any) -> Any:
        """Run a stream up to the end offsets at its start.

        Return the record count and the end offsets of each micro-batch that has records.
        """

        def drain() -> Any:
            return self.drain(stream(self.spark, self.bootstrap, **options), name)

        return outcome(drain)

    def drain(self, source: DataFrame, name: str) -> list[Any]:
        query = (
            source.writeStream.format("noop")
            .option("checkpointLocation", f"{self.directory}/checkpoint-{name}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(60):
                raise TimeoutError(f"{name} is not done")
            return [
                [progress["numInputRows"], json.loads(progress["sources"][0]["endOffset"])]
                for progress in query.recentProgress
                if progress["numInputRows"]
            ]
        finally:
            query.stop()


def batch_reads(it: Offsets) -> dict[str, Any]:
    """Read topic spark-times. Each of its 3 partitions has 100 records, one per second from ``it.start``."""
    topic, seen = "spark-times", {}
    middle, late = it.start + 40_500, it.start + 10_000_000

    def by_partition(first: int, second: int, third: int) -> dict[str, Any]:
        return {topic: {"0": first, "1": second, "2": third}}

    seen["whole"] = it.ranges(subscribe=topic)
    seen["starting timestamp"] = it.ranges(subscribe=topic, startingTimestamp=middle)
    seen["ending timestamp"] = it.ranges(subscribe=topic, endingTimestamp=middle)
    seen["starting by timestamp"] = it.ranges(
        subscribe=topic, startingOffsetsByTimestamp=by_partition(it.start, middle, it.start + 99_000)
    )
    seen["ending by timestamp"] = it.ranges(
        subscribe=topic, endingOffsetsByTimestamp=by_partition(it.start + 1, middle, late)
    )
    seen["between timestamps"] = it.ranges(
        subscribe=topic,
        startingOffsetsByTimestamp=by_partition(it.start - 5, middle, it.start + 20_000),
        endingOffsetsByTimestamp=by_partition(it.start + 5_000, middle + 1_000, late),
    )
    seen["starting too late"] = it.ranges(subscribe=topic, startingTimestamp=late)
    seen["starting too late, from the latest"] = it.ranges(
        subscribe=topic, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest"
    )
    seen["starting offsets"] = it.ranges(subscribe=topic, startingOffsets=by_partition(10, -2, 99))
    seen["ending offsets"] = it.ranges(subscribe=topic, endingOffsets=by_partition(10, -1, 1))
    seen["past the end"] = it.ranges(
        subscribe=topic, endingOffsets=by_partition(10, -1, 500), kafkaConsumer_pollTimeoutMs=3000
    )
    seen["latest as start"] = it.ranges(subscribe=topic, startingOffsets="latest")
    seen["assign"] = it.ranges(
        assign=json.dumps({topic: [0, 2]}),
        startingOffsets={topic: {"0": 10, "2": -2}},
        endingOffsets={topic: {"0": 50, "2": -1}},
    )
    seen["assign what is not there"] = it.ranges(assign=json.dumps({topic: [0, 9]}))
    seen["pattern"] = it.ranges(subscribePattern="spark-pattern-[ab]")
    seen["pattern without a topic"] = it.ranges(subscribePattern="spark-nothing-.*")
    seen["read committed"] = it.ranges(subscribe=topic, kafka_isolation_level="read_committed")
    seen["min partitions"] = it.tasks(subscribe=topic, minPartitions=10)
    seen["headers"] = digest(
        [header["key"], header["value"]]
        for row in reader(
            it.spark, it.bootstrap, subscribe="spark-pattern-a", includeHeaders="true"
        ).collect()
        for header in row["headers"] or []
    )
    # Before Spark 3.1, the driver looked up offsets with a consumer in a group. The option still exists.
    it.spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    seen["by a consumer in a group"] = it.ranges(
        subscribe=topic, startingTimestamp=middle, kafka_group_id="spark-times-group"
    )
    seen["pattern by a consumer"] = it.ranges(subscribePattern="spark-pattern-[ab]", groupIdPrefix="spark-x")
    it.spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "false")
    return seen


def streams(it: Offsets) -> dict[str, Any]:
    topic, seen = "spark-times", {}
    seen["at once"] = it.run("once", subscribe=topic, startingOffsets="earliest")
    seen["fifty a trigger"] = it.run(
        "fifty", subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=50
    )
    seen["from the latest"] = it.run("latest", subscribe=topic)
    seen["from a time"] = it.run("time", subscribe=topic, startingTimestamp=it.start + 70_500)
    seen["from offsets"] = it.run(
        "assign", assign=json.dumps({topic: [1, 2]}), startingOffsets={topic: {"1": 95, "2": -1}}
    )

    def pattern() -> Any:
        return it.run("pattern", subscribePattern="spark-pattern-.*", startingOffsets="earliest")

    def latest() -> Any:
        return it.run("latest", subscribe=topic)

    def loss(how: str) -> Any:
        return it.run("loss", subscribe="spark-loss", startingOffsets="earliest", failOnDataLoss=how)

    seen["pattern"] = pattern()
    seen["loss, before"] = loss("true")
    ask("more")  # add a topic that matches, and add partitions and records to existing topics
    seen["pattern, a topic more"] = pattern()
    seen["from the latest, records more"] = latest()
    ask("delete")  # delete records that no micro-batch has read
    seen["loss fails"] = loss("true")
    seen["loss is skipped"] = loss("false")
    batch = {"subscribe": "spark-loss", "startingOffsets": {"spark-loss": {"0": 5, "1": -2}}}
    seen["loss in a batch fails"] = it.ranges(**batch, failOnDataLoss="true")
    seen["loss in a batch is skipped"] = it.ranges(**batch, failOnDataLoss="false")
    ask("recreate")  # recreate the topic with fewer records than the offset in the checkpoint
    seen["recreated topic fails"] = loss("true")
    seen["recreated topic is skipped"] = loss("false")
    return seen


def main() -> None:
    it = Offsets(settings())
    print_event(seen={"batch": batch_reads(it), "streams": streams(it)})
    it.spark.stop()


if __name__ == "__main__":
    main()
