"""`kwire pipeline <job> --config job.toml`: the jobs, for people and for cron."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pipeline.config import FAILED, METRICS_VARIABLE, ConfigError, JobConfig, MissingError


class Job(NamedTuple):
    """What a job does, and the module whose `command(config, master)` runs it and gives an exit status."""

    what: str
    module: str
    flags: Mapping[str, str] = {}
    """Options that stand for keys of the job's own table, and win over these; each with its help."""


JOBS: Final = {
    "archive": Job(
        "topics to Parquet, each offset once, with a manifest for each commit",
        "pipeline.archive.job",
        {"on-corrupt": "what becomes of damage in a data directory: fail, or skip it and tell the manifest"},
    ),
    "compact": Job("the small files of an archive, merged", "pipeline.archive.compact"),
    "restore": Job(
        "an archive, or a part of it, back into topics",
        "pipeline.jobs.restore",
        {"into-directory": "a data directory to make for a broker, instead of topics of a running one"},
    ),
    "audit": Job("compare two sides: topics, archives, data directories", "pipeline.jobs.audit"),
    "profile": Job("the shape of a topic, as a report with plots", "pipeline.jobs.profile"),
    "windows": Job("figures by window of event time, kept in a compacted topic", "pipeline.jobs.windows"),
    "mirror": Job("topics into another cluster, and the offsets of groups", "pipeline.jobs.mirror"),
    "replay": Job("real events into a topic, at any speed", "pipeline.jobs.replay"),
}
SAID: Final = ("SegmentsError: ", "CorruptSegment: ", "ArchiveError: ", "DeliveryError: ", "RegistryError: ")
"""What stands before a sentence of ours within Spark's many lines."""
NEEDED = {"pyspark": "pyspark", "pyarrow": "pyarrow", "confluent_kafka": "confluent-kafka"}


def main(arguments: Sequence[str]) -> int:
    """Run a job; its exit status."""
    parser = argparse.ArgumentParser(prog="kwire pipeline", allow_abbrev=False)
    jobs = parser.add_subparsers(title="jobs", dest="job", metavar="JOB", required=True)
    for name, known in JOBS.items():
        job = jobs.add_parser(name, help=known.what, description=known.what, allow_abbrev=False)
        job.add_argument("--config", type=Path, required=True, metavar="FILE", help="the job's TOML file")
        job.add_argument("--master", help="Spark's master (default: that of spark-submit, or local[*])")
        job.add_argument(
            "--metrics",
            metavar="FILE",
            help="where the metrics of a stream go, in Prometheus' text format, after each batch",
        )
        for flag, told in known.flags.items():
            job.add_argument(f"--{flag}", dest=flag, metavar=flag.rpartition("-")[2].upper(), help=told)
    options = parser.parse_args(arguments)
    if options.metrics:
        os.environ[METRICS_VARIABLE] = options.metrics
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(
            f"the pipeline needs {', '.join(missing)}: install kwire with its extra, kwire[pipeline]"
        )
    from confluent_kafka import KafkaException

    from pipeline.archive.manifest import ArchiveError
    from pipeline.delivery import DeliveryError
    from pipeline.segments.files import SegmentsError
    from pipeline.values.registry import RegistryError

    try:
        config = JobConfig.load(options.config)
        for flag in JOBS[options.job].flags:
            if getattr(options, flag) is not None:
                config = config.with_text(options.job, flag.replace("-", "_"), getattr(options, flag))
        return int(importlib.import_module(JOBS[options.job].module).command(config, options.master))
    except (ConfigError, ArchiveError, DeliveryError, SegmentsError, RegistryError, MissingError) as error:
        return _fail(str(error))
    except KafkaException as error:
        return _fail(f"the cluster says: {error.args[0].str()}")
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        return _fail(sentence)


def _fail(why: str) -> int:
    print(f"kwire pipeline: {why}", file=sys.stderr)
    return FAILED


def _sentence(error: Exception) -> str | None:
    """What one of ours said within Spark's many lines; None where it was not one of ours."""
    text = str(error)
    for line in text.splitlines():
        for name in SAID:
            if name in line:
                return line.partition(name)[2]
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
