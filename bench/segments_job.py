"""The Spark side of bench/segments.py: reads commands, one a line, and answers each with what it took.

It is run by the Python that has PySpark, and told with its argument, which is JSON, where the data is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.no_source import NoSource
from kwire.pipeline.session import session

MASTER = "local[2]"


def ticks_of_all(root: int) -> dict[int, int]:
    """Processor time so far of a process and of each of those below it that live."""
    parents, ticks = {}, {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stat = (
                    (path / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(path.name)] = int(stat[1])
            ticks[int(path.name)] = sum(map(int, stat[11:13]))
    inside = {root}
    while below := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= below
    return {pid: ticks.get(pid, 0) for pid in inside}


def seconds_since(before: dict[int, int], after: dict[int, int]) -> float:
    """What was used meanwhile. Spark's Python workers end when they like, and nobody has their sum then."""
    return sum(ticks - before.get(pid, 0) for pid, ticks in after.items()) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session("bench", master=MASTER, settings={"spark.driver.memory": "2g"})

    def segments(schema: str | None = None) -> Any:
        reader = spark.read.format("kwire") if schema is None else spark.read.schema(schema).format("kwire")
        return reader.option("path", given["data"]).option("subscribe", given["topic"]).load()

    def nothing() -> Any:
        spark.dataSource.register(NoSource)
        return spark.read.format(NoSource.name()).option("records", given["records"]).load()

    def kafka() -> Any:
        options = {"subscribe": given["topic"], "startingOffsets": "earliest"}
        bootstrap = given["bootstrap"]
        return (
            spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).options(**options).load()
        )

    sources: dict[str, Callable[[], Any]] = {
        "segments": segments,
        "segments, one column": lambda: segments("offset bigint"),
        "nothing": nothing,
        "Spark's Kafka source": kafka,
    }
    print("{}", flush=True)
    for line in sys.stdin:
        way, into = json.loads(line)
        before = ticks_of_all(os.getpid())
        begun = time.perf_counter()
        table = sources[way]()
        count = None
        if into == "count":
            count = table.count()
        else:
            table.write.mode("overwrite").parquet(given["parquet"])
        seconds = time.perf_counter() - begun
        cpu_seconds = seconds_since(before, ticks_of_all(os.getpid()))
        if count is None:
            count = spark.read.parquet(given["parquet"]).count()
        print(json.dumps([count, seconds, cpu_seconds]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
