"""The Spark side of bench/segments.py: reads commands, one a line, and answers each with what it took.

It is run by the Python that has PySpark, and told with its argument, which is JSON, where the data is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.brokers import cpu_ticks
from pipeline.session import session

MASTER = "local[2]"


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session("bench", master=MASTER, settings={"spark.driver.memory": "2g"})

    def segments(schema: str | None = None) -> Any:
        reader = spark.read.format("kwire") if schema is None else spark.read.schema(schema).format("kwire")
        return reader.option("path", given["data"]).option("subscribe", given["topic"]).load()

    def kafka() -> Any:
        options = {"subscribe": given["topic"], "startingOffsets": "earliest"}
        bootstrap = given["bootstrap"]
        return (
            spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).options(**options).load()
        )

    sources: dict[str, Callable[[], Any]] = {
        "segments": segments,
        "segments, one column": lambda: segments("offset bigint"),
        "Spark's Kafka source": kafka,
    }
    print("{}", flush=True)
    for line in sys.stdin:
        way, into = json.loads(line)
        used = cpu_ticks(os.getpid())
        begun = time.perf_counter()
        table = sources[way]()
        count = None
        if into == "count":
            count = table.count()
        else:
            table.write.mode("overwrite").parquet(given["parquet"])
        seconds = time.perf_counter() - begun
        cpu_seconds = (cpu_ticks(os.getpid()) - used) / os.sysconf("SC_CLK_TCK")
        if count is None:
            count = spark.read.parquet(given["parquet"]).count()
        print(json.dumps([count, seconds, cpu_seconds]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
