"""A batch write and a batch read with format("kafka") and a client's TLS properties."""

from __future__ import annotations

from interop.spark_jobs.session import print_event, session, settings


def main() -> None:
    given = settings()
    spark = session(given["jars"], given["directory"])
    client = {f"kafka.{key}": value for key, value in given["properties"].items()}
    sent = spark.range(0, given["count"], 1, 2).selectExpr("CAST(concat('value-', id) AS BINARY) AS value")
    sent.write.format("kafka").options(**client).option("topic", given["topic"]).save()
    read = spark.read.format("kafka").options(**client).option("subscribe", given["topic"]).load()
    print_event(seen=sorted(row.value for row in read.selectExpr("CAST(value AS STRING) AS value").collect()))
    spark.stop()


if __name__ == "__main__":
    main()
