"""A stream with a checkpoint that copies a topic to another topic until the scenario ends the program."""

from __future__ import annotations

import json

from interop.spark_jobs.session import print_event, session, settings, stream


def main() -> None:
    given = settings()
    spark = session(given["jars"], given["directory"])
    source = stream(
        spark,
        given["bootstrap"],
        subscribe=given["source"],
        startingOffsets="earliest",
        includeHeaders="true",
        maxOffsetsPerTrigger=given["batch"],
    )
    query = (
        source.select("key", "value", "headers", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("topic", given["target"])
        .option("checkpointLocation", given["checkpoint"])
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    reported = -1
    while query.isActive:
        query.awaitTermination(0.05)
        for progress in query.recentProgress:
            if progress["batchId"] > reported and progress["numInputRows"]:
                reported = progress["batchId"]
                end = json.loads(progress["sources"][0]["endOffset"])
                print_event(batch=reported, rows=progress["numInputRows"], end=end)
    query.awaitTermination()


if __name__ == "__main__":
    main()
