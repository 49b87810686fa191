"""What the scenarios of the pipeline share: jobs that they start and wait for, and topics that they read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from interop.brokers import Broker
from interop.pipeline_kills.jobs import toml
from interop.pipeline_kills.processes import JobProcess, environment
from interop.pipeline_kills.reading import Place, Record, read_topics
from interop.reference import spark_python

MASTER: Final = "local[2]"
JOB_SECONDS: Final = 480.0


class Jobs:
    """Runs jobs in Spark's Python; their files and what they say are in a directory."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self._directory = directory
        self._environment = {**environment(), **variables}
        self._numbers = count(1)

    def start(self, job: str, config: Mapping[str, Any], *options: str) -> JobProcess:
        path = self._directory / f"{next(self._numbers)}-{job}.toml"
        path.write_text(toml(config), encoding="utf-8")
        return self.start_module("pipeline.cli", job, "--config", str(path), "--master", MASTER, *options)

    def start_module(self, *arguments: str) -> JobProcess:
        """A module that has jobs of its own to run."""
        log = self._directory / f"{next(self._numbers)}.log"
        return JobProcess([spark_python(), "-m", *arguments], self._environment, self._directory, log)

    def run(self, job: str, config: Mapping[str, Any], *options: str, status: int = 0) -> str:
        """Run it to its end; what it said, and Spark."""
        return said(self.start(job, config, *options), status)


def said(process: JobProcess, status: int = 0, seconds: float = JOB_SECONDS) -> str:
    """Wait until it ends as it should; all that it said."""
    try:
        assert process.wait(seconds) == status, process.tail(3000)
    finally:
        process.end()
    return process.log.read_text(errors="replace")


def kafka(broker: Broker, *topics: str, **options: Any) -> dict[str, Any]:
    """Topics as an input of a job, over the wire."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": ",".join(topics), **options}
    return {"format": "kafka", "options": given}


def read(broker: Broker, *topics: str) -> dict[Place, dict[int, Record]]:
    """The committed records of topics by their offsets, as a plain consumer sees them."""
    return {
        place: {record.offset: record for record in records}
        for place, records in read_topics(broker.bootstrap, topics).items()
    }
