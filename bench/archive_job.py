"""The Spark side of bench/archive.py: reads names of jobs, one a line, and answers each with what it took.

It is run by the Python that has PySpark, and told with its argument, which is JSON, where the data is.
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

from bench.segments_job import MASTER, seconds_since, ticks_of_all
from kwire.pipeline.archive.manifest import Archive
from kwire.pipeline.config import JobConfig
from kwire.pipeline.jobs.archive import ArchiveConfig, start
from kwire.pipeline.jobs.restore import RestoreConfig, directory_config, run
from kwire.pipeline.restore.directory import restore
from kwire.pipeline.session import session


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session("bench", master=MASTER, settings={"spark.driver.memory": "2g"})
    jobs = {
        "archive from topics": partial(archive, spark, given, "kafka"),
        "archive from a data directory": partial(archive, spark, given, "kwire"),
        "restore into topics": partial(into_topics, spark, given),
        "restore into a data directory": partial(into_directory, spark, given),
    }
    print("{}", flush=True)
    for line in sys.stdin:
        [job] = json.loads(line)
        before = ticks_of_all(os.getpid())
        begun = time.perf_counter()
        count = jobs[job]()
        seconds = time.perf_counter() - begun
        cpu_seconds = seconds_since(before, ticks_of_all(os.getpid()))
        print(json.dumps([count, seconds, cpu_seconds]), flush=True)
    spark.stop()


def archive(spark: Any, given: dict[str, str], source: str) -> int:
    """Archive the topic anew; how many records."""
    directory = Path(given["directory"], "archive")
    shutil.rmtree(directory, ignore_errors=True)
    where = {"path": given["data"]} if source == "kwire" else {"kafka.bootstrap.servers": given["bootstrap"]}
    config = JobConfig(
        {
            "input": {"format": source, "options": {**where, "subscribe": given["topic"]}},
            "archive": {"directory": str(directory)},
        }
    )
    start(spark, ArchiveConfig.of(config)).awaitTermination()
    return sum(file.records for file in Archive(directory).files())


def into_topics(spark: Any, given: dict[str, str]) -> int:
    """Restore the archive into a topic that is not there; how many records."""
    table = {
        "directory": str(Path(given["directory"], "archive")),
        "job": "bench",
        "offsets": "same",
        "suffix": f"-{time.time_ns()}-restored",
        "client": {"bootstrap.servers": given["bootstrap"]},
    }
    return sum(done.records for done in run(spark, RestoreConfig.of(JobConfig({"restore": table}))))


def into_directory(spark: Any, given: dict[str, str]) -> int:
    """Restore the archive into a data directory that is not there; how many records."""
    target = Path(given["directory"], "restored")
    shutil.rmtree(target, ignore_errors=True)
    table = {"directory": str(Path(given["directory"], "archive")), "into_directory": str(target)}
    config = directory_config(JobConfig({"restore": table}))
    assert config is not None
    logs = restore(
        config, lambda write, tasks: spark.sparkContext.parallelize(tasks, len(tasks)).map(write).collect()
    )
    return sum(log.records for log in logs)


if __name__ == "__main__":
    main()
