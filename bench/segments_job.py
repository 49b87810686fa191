"""The Spark side of bench/segments.py: reads commands from stdin, runs them, and prints the results.

It must run in a Python environment with PySpark. Its argument is the JSON object of `bench.spark.Spark`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.empty_source import EmptySource
from kwire.pipeline.session import session

MASTER = "local[2]"


def process_tree_ticks(root: int) -> dict[int, int]:
    """Return the processor time, in clock ticks, of a process and each running descendant, by process id."""
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


def cpu_seconds_between(before: dict[int, int], after: dict[int, int]) -> float:
    """Return the processor time between two samples, without that of workers that ended in between."""
    return sum(ticks - before.get(pid, 0) for pid, ticks in after.items()) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    arguments = json.loads(sys.argv[1])
    spark = session("bench", master=MASTER, settings={"spark.driver.memory": "2g"})

    def segments(schema: str | None = None) -> Any:
        reader = spark.read.format("kwire") if schema is None else spark.read.schema(schema).format("kwire")
        return reader.option("path", arguments["data"]).option("subscribe", arguments["topic"]).load()

    def empty_source() -> Any:
        spark.dataSource.register(EmptySource)
        return spark.read.format(EmptySource.name()).option("records", arguments["records"]).load()

    def kafka() -> Any:
        options = {"subscribe": arguments["topic"], "startingOffsets": "earliest"}
        bootstrap = arguments["bootstrap"]
        return (
            spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).options(**options).load()
        )

    sources: dict[str, Callable[[], Any]] = {
        "segments": segments,
        "segments, one column": lambda: segments("offset bigint"),
        "source without data": empty_source,
        "Spark's Kafka source": kafka,
    }
    print("{}", flush=True)
    for line in sys.stdin:
        method, into = json.loads(line)
        before = process_tree_ticks(os.getpid())
        begun = time.perf_counter()
        table = sources[method]()
        count = None
        if into == "count":
            count = table.count()
        else:
            table.write.mode("overwrite").parquet(arguments["parquet"])
        seconds = time.perf_counter() - begun
        cpu_seconds = cpu_seconds_between(before, process_tree_ticks(os.getpid()))
        if count is None:
            count = spark.read.parquet(arguments["parquet"]).count()
        print(json.dumps([count, seconds, cpu_seconds]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
