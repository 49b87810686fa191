"""Helpers of the pipeline scenarios, which run jobs and read topics."""

# The type annotations of the client library are incomplete.
# mypy: disable-error-code="attr-defined,arg-type,no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from interop.brokers import Served
from interop.pipeline_kills.jobs import toml
from interop.pipeline_kills.processes import JobProcess, environment
from interop.pipeline_kills.reading import Partition, Record, Unreadable, read_topics
from interop.reference import spark_python

MASTER: Final = "local[2]"
JOB_SECONDS: Final = 480.0
WAIT_S: Final = 30.0


class Jobs:
    """A runner of jobs in the Python that has PySpark. It keeps their files and logs in one directory."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self._directory = directory
        self._environment = {**environment(), **variables}
        self._numbers = count(1)

    def start(self, job: str, config: Mapping[str, Any], *options: str) -> JobProcess:
        path = self._directory / f"{next(self._numbers)}-{job}.toml"
        path.write_text(toml(config), encoding="utf-8")
        return self.start_module(
            "kwire.pipeline.cli", job, "--config", str(path), "--master", MASTER, *options
        )

    def start_module(self, *arguments: str) -> JobProcess:
        """Start a module in the Python that has PySpark."""
        log = self._directory / f"{next(self._numbers)}.log"
        return JobProcess([spark_python(), "-m", *arguments], self._environment, self._directory, log)

    def run(self, job: str, config: Mapping[str, Any], *options: str, status: int = 0) -> str:
        """Run a job, which must end with this exit status. Returns the output of the job and of Spark."""
        return output_of(self.start(job, config, *options), status)


def output_of(process: JobProcess, status: int = 0, seconds: float = JOB_SECONDS) -> str:
    """Wait until the process ends, which it must do with this exit status, and return its output."""
    try:
        assert process.wait(seconds) == status, process.tail(3000)
    finally:
        process.end()
    return process.log.read_text(errors="replace")


def kafka(broker: Served, *topics: str, **options: Any) -> dict[str, Any]:
    """Return the input configuration of a job that reads topics over the network."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": ",".join(topics), **options}
    return {"format": "kafka", "options": given}


def read(broker: Served, *topics: str) -> dict[Partition, dict[int, Record]]:
    """Return the committed records of topics by partition and offset, as a plain consumer reads them.

    Raises Unreadable if this fails for WAIT_S.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            found = read_topics(broker.bootstrap, topics)
            break
        except Unreadable:
            # A broker that has just started knows a partition before it becomes the partition's leader.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    return {place: {record.offset: record for record in records} for place, records in found.items()}


def produce_odd(broker: Served, topic: str, partitions: int, began_ms: int) -> None:
    """Produce unusual records in transactions, a third of them aborted. Timestamps span 18 days."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "odd"})
    producer.init_transactions(WAIT_S)
    for number in range(40):
        producer.begin_transaction()
        for index in range(9):
            producer.produce(
                topic,
                partition=index % partitions,
                key=None if index % 3 == 0 else b"key-%d" % index,
                value=None if index % 4 == 1 else b"%d-%d" % (number, index),
                headers=[("a", b"1"), ("a", None), ("b", b"")] if index % 2 else [],
                timestamp=began_ms + number * 40_000_000 - index,
            )
        producer.flush(WAIT_S)
        if number % 3 == 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
