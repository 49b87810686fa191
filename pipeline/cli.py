"""`kwire pipeline <job> --config job.toml`: the jobs, for people and for cron."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config import ConfigError, JobConfig, MissingError

JOBS = {
    "archive": "topics to Parquet, each offset once, with a manifest for each commit",
    "restore": "an archive, or a part of it, back into topics",
    "audit": "compare two sides: topics, archives, data directories",
    "replay": "real events into a topic, at any speed",
}
NEEDED = {"pyspark": "pyspark", "pyarrow": "pyarrow", "confluent_kafka": "confluent-kafka"}
CLEAN, FAILED, DIFFERENT = 0, 1, 3
"""Exit statuses; the last is that of an audit that found something."""


def main(arguments: Sequence[str]) -> int:
    """Run a job; its exit status."""
    parser = argparse.ArgumentParser(prog="kwire pipeline", allow_abbrev=False)
    jobs = parser.add_subparsers(title="jobs", dest="job", metavar="JOB", required=True)
    for name, what in JOBS.items():
        job = jobs.add_parser(name, help=what, description=what, allow_abbrev=False)
        job.add_argument("--config", type=Path, required=True, metavar="FILE", help="the job's TOML file")
        job.add_argument(
            "--master", help="Spark's master (default: local[*], unless spark-submit has set one)"
        )
    options = parser.parse_args(arguments)
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(
            f"the pipeline needs {', '.join(missing)}: install kwire with its extra, kwire[pipeline]"
        )
    from confluent_kafka import KafkaException

    from pipeline.archive.manifest import ArchiveError
    from pipeline.delivery import DeliveryError
    from pipeline.segments.files import SegmentsError

    try:
        return _RUN[options.job](JobConfig.load(options.config), options.master)
    except (ConfigError, ArchiveError, DeliveryError, SegmentsError, MissingError) as error:
        return _fail(str(error))
    except KafkaException as error:
        return _fail(f"the cluster says: {error.args[0].str()}")
    except Exception as error:
        known = _sentence(error)
        if known is None:
            raise
        return _fail(known)


def _fail(why: str) -> int:
    print(f"kwire pipeline: {why}", file=sys.stderr)
    return FAILED


def _sentence(error: Exception) -> str | None:
    """What one of ours said within Spark's many lines; None where it was not one of ours."""
    text = str(error)
    for line in text.splitlines():
        for name in ("SegmentsError: ", "CorruptSegment: ", "ArchiveError: ", "DeliveryError: "):
            if name in line:
                return line.partition(name)[2]
    return None


def _archive(config: JobConfig, master: str | None) -> int:
    from pipeline.archive.job import ArchiveConfig, start
    from pipeline.archive.manifest import Archive
    from pipeline.session import session

    wanted = ArchiveConfig.of(config)
    spark = session("kwire archive", master=master or "local[*]", needs_kafka=wanted.input.format == "kafka")
    before = sum(1 for _ in Archive(wanted.directory).commits())
    query = start(spark, wanted)
    try:
        query.awaitTermination()
    finally:
        spark.stop()
    added = list(Archive(wanted.directory).commits())[before:]
    records = sum(file.records for commit in added for file in commit.files)
    files = sum(len(commit.files) for commit in added)
    print(f"{len(added)} commits with {records} records in {files} files")
    return CLEAN


def _restore(config: JobConfig, master: str | None) -> int:
    from pipeline.jobs.restore import RestoreConfig, run
    from pipeline.session import session

    wanted = RestoreConfig.of(config)
    spark = session("kwire restore", master=master or "local[*]", needs_kafka=False)
    try:
        for done in run(spark, wanted):
            print(f"{done.topic}-{done.partition}: {done.records} records, offsets: {done.mode}")
    finally:
        spark.stop()
    return CLEAN


def _audit(config: JobConfig, master: str | None) -> int:
    from pipeline.jobs.audit import AuditConfig, run
    from pipeline.session import session

    wanted = AuditConfig.of(config)
    needs_kafka = "kafka" in (wanted.left.format, wanted.right.format)
    spark = session("kwire audit", master=master or "local[*]", needs_kafka=needs_kafka)
    try:
        outcome = run(spark, wanted)
    finally:
        spark.stop()
    for difference in outcome.differences:
        print(difference)
    if outcome.clean:
        print(f"clean: {outcome.records} records in {outcome.windows} windows are the same on both sides")
        return CLEAN
    print(f"{len(outcome.differences)} of {outcome.windows} windows differ")
    return DIFFERENT


def _replay(config: JobConfig, master: str | None) -> int:
    from pipeline.jobs.replay import ReplayConfig, run

    wanted = ReplayConfig.of(config)
    print(f"{run(wanted)} events into {wanted.topic}")
    return CLEAN


_RUN: dict[str, Callable[[JobConfig, str | None], int]] = {
    "archive": _archive,
    "restore": _restore,
    "audit": _audit,
    "replay": _replay,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
