"""Two streams that copy and count the records of a topic, and batch reads, while brokers are killed."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from pyspark.sql.functions import concat_ws
from pyspark.sql.streaming import StreamingQuery

from interop.spark_jobs.session import ask, print_event, reader, session, settings, stream

POLL_S = 0.2
# Spark keeps an admin client, which looks up offsets. A request of this client to a killed leader waits until
# it times out, by default after a minute, even if another leader was elected meanwhile.
SHORT = {"kafka_request_timeout_ms": 10_000, "kafka_default_api_timeout_ms": 10_000}


def main() -> None:
    given = settings()
    bootstrap = given["bootstrap"]
    spark = session(given["jars"], given["directory"])

    def started(name: str, rows: Any, mode: str) -> StreamingQuery:
        writer = rows.writeStream.format("kafka").outputMode(mode).trigger(processingTime="500 milliseconds")
        found: StreamingQuery = (
            writer.option("kafka.bootstrap.servers", bootstrap)
            .option("topic", given[name])
            .option("checkpointLocation", f"{given['directory']}/{name}")
            .start()
        )
        return found

    def read(topic: str) -> dict[int, list[tuple[int, str]]]:
        """Return the offset and value of each record, by partition, in order."""
        found = defaultdict(list)
        for row in (
            reader(spark, bootstrap, subscribe=topic, **SHORT)
            .select("partition", "offset", "value")
            .collect()
        ):
            found[row.partition].append((row.offset, bytes(row.value).decode()))
        return {partition: sorted(rows) for partition, rows in found.items()}

    source = stream(spark, bootstrap, subscribe=given["source"], startingOffsets="earliest", **SHORT)
    counts = source.groupBy("partition").count()
    queries = [
        started("copy", source.select("value", "partition"), "append"),
        started("counts", counts.select(concat_ws(" ", "partition", "count").alias("value")), "update"),
    ]
    while True:
        ask("read")
        rows = read(given["source"])
        ends = {str(partition): of[-1][0] + 1 for partition, of in rows.items()}
        for query in queries:
            while not has_passed(query, given["source"], ends):
                # If the query failed, this raises its error.
                query.awaitTermination(POLL_S)
        print_event(source=rows, copy=read(given["copy"]), counts=read(given["counts"]))


def has_passed(query: StreamingQuery, topic: str, ends: dict[str, int]) -> bool:
    """Return whether the query has committed a micro-batch that ends at or after these offsets."""
    progress = query.lastProgress
    reached = json.loads(progress["sources"][0]["endOffset"] or "{}").get(topic, {}) if progress else {}
    return all(reached.get(partition, 0) >= end for partition, end in ends.items())


if __name__ == "__main__":
    main()
