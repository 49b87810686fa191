"""The Spark side of bench/archive.py: reads job names from stdin, runs them, and prints the results.

It must run in a Python environment with PySpark. Its argument is the JSON object of `bench.spark.Spark`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.segments_job import MASTER, cpu_seconds_between, process_tree_ticks
from kwire.pipeline.archive.manifest import Archive
from kwire.pipeline.config import JobConfig
from kwire.pipeline.jobs.archive import ArchiveConfig, start
from kwire.pipeline.jobs.restore import RestoreConfig, directory_config, run
from kwire.pipeline.restore.directory import restore
from kwire.pipeline.session import session


def main() -> None:
    arguments = json.loads(sys.argv[1])
    spark = session("bench", master=MASTER, settings={"spark.driver.memory": "2g"})
    jobs = {
        "archive from topics": partial(archive, spark, arguments, "kafka"),
        "archive from a data directory": partial(archive, spark, arguments, "kwire"),
        "restore into topics": partial(into_topics, spark, arguments),
        "restore into a data directory": partial(into_directory, spark, arguments),
    }
    print("{}", flush=True)
    for line in sys.stdin:
        [job] = json.loads(line)
        before = process_tree_ticks(os.getpid())
        begun = time.perf_counter()
        count = jobs[job]()
        seconds = time.perf_counter() - begun
        cpu_seconds = cpu_seconds_between(before, process_tree_ticks(os.getpid()))
        print(json.dumps([count, seconds, cpu_seconds]), flush=True)
    spark.stop()


def archive(spark: Any, arguments: dict[str, str], source: str) -> int:
    """Replace the archive with a new archive of the topic, and return the number of records.

    `source` is the input format: "kafka" or "kwire".
    """
    directory = Path(arguments["directory"], "archive")
    shutil.rmtree(directory, ignore_errors=True)
    where = (
        {"path": arguments["data"]}
        if source == "kwire"
        else {"kafka.bootstrap.servers": arguments["bootstrap"]}
    )
    config = JobConfig(
        {
            "input": {"format": source, "options": {**where, "subscribe": arguments["topic"]}},
            "archive": {"directory": str(directory)},
        }
    )
    start(spark, ArchiveConfig.of(config)).awaitTermination()
    return sum(file.records for file in Archive(directory).files())


def into_topics(spark: Any, arguments: dict[str, str]) -> int:
    """Restore the archive into a new topic and return the number of records."""
    table = {
        "directory": str(Path(arguments["directory"], "archive")),
        "job": "bench",
        "offsets": "same",
        "suffix": f"-{time.time_ns()}-restored",
        "client": {"bootstrap.servers": arguments["bootstrap"]},
    }
    return sum(done.records for done in run(spark, RestoreConfig.of(JobConfig({"restore": table}))))


def into_directory(spark: Any, arguments: dict[str, str]) -> int:
    """Restore the archive into a new data directory and return the number of records."""
    target = Path(arguments["directory"], "restored")
    shutil.rmtree(target, ignore_errors=True)
    table = {"directory": str(Path(arguments["directory"], "archive")), "into_directory": str(target)}
    config = directory_config(JobConfig({"restore": table}))
    assert config is not None
    logs = restore(
        config, lambda write, tasks: spark.sparkContext.parallelize(tasks, len(tasks)).map(write).collect()
    )
    return sum(log.records for log in logs)


if __name__ == "__main__":
    main()
