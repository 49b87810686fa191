"""`kwire pipeline <job> --config job.toml`: the jobs, for people and for cron."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kwire.pipeline import connectivity
from kwire.pipeline.config import FAILED, METRICS_VARIABLE, ConfigError, JobConfig, MissingError
from kwire.pipeline.spark_errors import summarize_error


class Job(NamedTuple):
    """What a job does, and the module whose `command(config, master)` runs it and gives an exit status."""

    help: str
    module: str
    tables: tuple[str, ...] = ()
    """Of its file, beside its own."""
    flags: Mapping[str, str] = {}
    """Options that stand for keys of the job's own table, and win over these; each with its help."""


JOBS: Final = {
    "archive": Job(
        "topics to Parquet, each offset once, with a manifest for each commit",
        "kwire.pipeline.jobs.archive",
        ("input", "values"),
        {"on-corrupt": "what becomes of damage in a data directory: fail, or skip it and tell the manifest"},
    ),
    "compact": Job("the small files of an archive, merged", "kwire.pipeline.jobs.compact"),
    "restore": Job(
        "an archive, or a part of it, back into topics",
        "kwire.pipeline.jobs.restore",
        (),
        {"into-directory": "a data directory to make for a broker, instead of topics of a running one"},
    ),
    "audit": Job(
        "compare two sides: topics, archives, data directories",
        "kwire.pipeline.jobs.audit",
        ("left", "right"),
    ),
    "profile": Job("the shape of a topic, as a report with plots", "kwire.pipeline.jobs.profile", ("side",)),
    "windows": Job(
        "figures by window of event time, kept in a compacted topic",
        "kwire.pipeline.jobs.windows",
        ("input",),
    ),
    "mirror": Job(
        "topics into another cluster, and the offsets of groups", "kwire.pipeline.jobs.mirror", ("input",)
    ),
    "replay": Job("real events into a topic, at any speed", "kwire.pipeline.jobs.replay"),
}
DESCRIPTION: Final = (
    "Run a job on Spark, as its TOML file says; docs/pipeline.md tells what is in such a file."
)
NEEDED = {"pyspark": "pyspark", "pyarrow": "pyarrow", "confluent_kafka": "confluent-kafka"}


def main(
    arguments: Sequence[str], parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser
) -> int:
    """Run a job; its exit status. The parser says what is wrong as other commands do, where it is theirs."""
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
            help="where the metrics of a stream go, in Prometheus' text format, after each batch",
        )
        for flag, help_text in known.flags.items():
            job.add_argument(f"--{flag}", dest=flag, metavar=flag.rpartition("-")[2].upper(), help=help_text)
    options = parser.parse_args(arguments)
    if options.metrics:
        os.environ[METRICS_VARIABLE] = options.metrics
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return _fail(f"the pipeline needs {', '.join(missing)}: pip install 'kwire[pipeline]'")
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
    except (ConfigError, ArchiveError, DeliveryError, SegmentsError, RegistryError, MissingError) as error:
        return _fail(str(error))
    except KafkaException as error:
        return _fail(f"the cluster says: {error.args[0].str()}")
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
