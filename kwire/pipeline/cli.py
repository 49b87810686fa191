"""The command `kwire pipeline <job> --config job.toml`, which runs a job."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kwire.pipeline import connectivity
from kwire.pipeline.config import FAILED, METRICS_VARIABLE, ConfigError, JobConfig, MissingDependencyError
from kwire.pipeline.spark_errors import summarize_error


class Job(NamedTuple):
    """A job. The function `command(config, master)` of its module runs the job and returns an exit status."""

    help: str
    module: str
    tables: tuple[str, ...] = ()
    """The tables that the job reads from the configuration file, in addition to its own table."""
    flags: Mapping[str, str] = {}
    """Help texts of command-line options. The option `on-corrupt` overrides the job's key `on_corrupt`."""


JOBS: Final = {
    "archive": Job(
        "archive topics to Parquet, each offset once, with a manifest per commit",
        "kwire.pipeline.jobs.archive",
        ("input", "values"),
        {"on-corrupt": "on corruption in a data directory: fail, or skip it and list it in the manifest"},
    ),
    "compact": Job("merge small files of an archive", "kwire.pipeline.jobs.compact"),
    "restore": Job(
        "restore an archive, or a part of it, to topics or a data directory",
        "kwire.pipeline.jobs.restore",
        (),
        {"into-directory": "create a data directory for a broker instead of writing to topics"},
    ),
    "audit": Job(
        "compare topics, archives and data directories",
        "kwire.pipeline.jobs.audit",
        ("left", "right"),
    ),
    "profile": Job(
        "report statistics of a topic as an HTML page with plots", "kwire.pipeline.jobs.profile", ("side",)
    ),
    "windows": Job(
        "aggregate events by window of event time into a compacted topic",
        "kwire.pipeline.jobs.windows",
        ("input",),
    ),
    "mirror": Job(
        "mirror topics and consumer group offsets to another cluster",
        "kwire.pipeline.jobs.mirror",
        ("input",),
    ),
    "replay": Job("write a data set of real events to a topic, at any speed", "kwire.pipeline.jobs.replay"),
}
DESCRIPTION: Final = (
    "Run a Spark job that a TOML file configures. docs/pipeline.md describes the jobs and their keys."
)
NEEDED = {"pyspark": "pyspark", "pyarrow": "pyarrow", "confluent_kafka": "confluent-kafka"}


def main(
    arguments: Sequence[str], parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser
) -> int:
    """Run a job and return its exit status. Prints one sentence for an error that the user can fix.

    `parser_class` determines how usage errors are printed.
    """
    example = "example:\n  kwire pipeline {0} --config {0}.toml"
    raw = argparse.RawDescriptionHelpFormatter
    parser = parser_class(
        prog="kwire pipeline",
        description=DESCRIPTION,
        epilog=example.format("archive"),
        formatter_class=raw,
        allow_abbrev=False,
    )
    jobs = parser.add_subparsers(title="jobs", dest="job", metavar="JOB", required=True)
    for name, known in JOBS.items():
        job = jobs.add_parser(name, help=known.help, formatter_class=raw, allow_abbrev=False)
        job.description, job.epilog = known.help, example.format(name)
        job.add_argument("--config", type=Path, required=True, metavar="FILE", help="the job's TOML file")
        job.add_argument("--master", help="Spark's master (default: that of spark-submit, or local[*])")
        job.add_argument(
            "--metrics",
            metavar="FILE",
            help="write the stream's metrics to FILE after each micro-batch, in Prometheus text format",
        )
        for flag, help_text in known.flags.items():
            job.add_argument(f"--{flag}", dest=flag, metavar=flag.rpartition("-")[2].upper(), help=help_text)
    options = parser.parse_args(arguments)
    if options.metrics:
        os.environ[METRICS_VARIABLE] = options.metrics
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(f"missing packages: {', '.join(missing)}; run pip install 'kwire[spark]'")
    from confluent_kafka import KafkaException

    from kwire.pipeline.archive.manifest import ArchiveError
    from kwire.pipeline.delivery import DeliveryError
    from kwire.pipeline.segments.files import SegmentsError
    from kwire.pipeline.values.registry import RegistryError

    try:
        config = JobConfig.load(options.config)
        for flag in JOBS[options.job].flags:
            if getattr(options, flag) is not None:
                config = config.with_text(options.job, flag.replace("-", "_"), getattr(options, flag))
        config.check_tables(options.job, {name: job.tables for name, job in JOBS.items()})
        for key, servers in config.servers([options.job, *JOBS[options.job].tables]):
            connectivity.check_reachable(key, servers)
        return int(importlib.import_module(JOBS[options.job].module).command(config, options.master))
    except (
        ConfigError,
        ArchiveError,
        DeliveryError,
        SegmentsError,
        RegistryError,
        MissingDependencyError,
    ) as error:
        return _fail(str(error))
    except KafkaException as error:
        return _fail(f"the cluster returned an error: {error.args[0].str()}")
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            return _fail(f"{error.filename}: {error.strerror}")
        sentence = summarize_error(error)
        if sentence is None:
            raise
        return _fail(sentence)


def _fail(why: str) -> int:
    print(f"kwire pipeline: {why}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
