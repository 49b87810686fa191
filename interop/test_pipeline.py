"""The jobs of the pipeline on either broker, over the wire and over its files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.brokers import Broker
from interop.reference import HERE, spark_jars, spark_python

FLIGHTS = 3_000
MASTER = "local[2]"
DEMO_S, JOB_S = 540.0, 150.0


@pytest.fixture
def brokers(kind: type[Broker]) -> Iterator[tuple[Broker, Broker]]:
    """Two of a kind: where the events are, and where they are restored to."""
    source, target = kind(), kind()
    with ExitStack() as stack:
        for broker in (source, target):
            stack.callback(broker.discard)
            broker.start()
        yield source, target


class Jobs:
    """Runs what the pipeline has for the command line, in Spark's own environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent),
            "PYSPARK_PYTHON": spark_python(),
            "KWIRE_SPARK_JARS": str(spark_jars()[0].parent),
        }

    def run(self, *arguments: str, seconds: float = JOB_S) -> str:
        """What a module says that does its work."""
        done = subprocess.run(
            [spark_python(), "-m", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout

    def job(self, name: str, config: str) -> str:
        """A job of one's own."""
        path = self.directory / f"{name}-of-files.toml"
        path.write_text(config)
        return self.run("pipeline.cli", name, "--config", str(path), "--master", MASTER)


def test_every_job_runs_on_either_broker(brokers: tuple[Broker, Broker], tmp_path: Path) -> None:
    source, target = brokers
    jobs, demo = Jobs(tmp_path), tmp_path / "demo"
    ends = ["--source", source.bootstrap, "--target", target.bootstrap]
    jobs.run("pipeline.demo", str(demo), "--limit", str(FLIGHTS), "--master", MASTER, *ends, seconds=DEMO_S)
    outcome = {path.stem: path.read_text() for path in demo.glob("*.out")}
    assert outcome["replay"] == f"{FLIGHTS} events into flights\n"
    for name in ("audit-archive", "audit-restored"):
        assert f"clean: {FLIGHTS} records" in outcome[name], outcome[name]
    assert (demo / "index.html").exists()

    # The archive of the broker's files, while it has them open, is that of the wire.
    path = source.properties["log.dirs"]
    archived = jobs.job(
        "archive",
        f"""
        [input]
        format = "kwire"
        options = {{ path = "{path}", subscribe = "flights" }}
        [archive]
        directory = "{tmp_path}/of-files"
        trigger = "availableNow"
        """,
    )
    assert f"{FLIGHTS} records" in archived
    compared = jobs.job(
        "audit",
        f"""
        [audit]
        window = "30 days"
        [left]
        format = "archive"
        directory = "{demo}/archive"
        [right]
        format = "archive"
        directory = "{tmp_path}/of-files"
        """,
    )
    assert f"clean: {FLIGHTS} records" in compared
    # Again, and nothing is new.
    again = jobs.run("pipeline.cli", "archive", "--config", str(demo / "archive.toml"), "--master", MASTER)
    assert "0 commits" in again
