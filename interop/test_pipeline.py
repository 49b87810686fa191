"""The pipeline's jobs on either broker. They read over the network or from the broker's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.brokers import Broker
from interop.pipeline.job_runs import MASTER, Jobs, output_of

FLIGHTS = 3_000
DEMO_S = 540.0


@pytest.fixture
def brokers(kind: type[Broker]) -> Iterator[tuple[Broker, Broker]]:
    """Start two brokers of one kind and yield the source and the target of the restore."""
    source, target = kind(), kind()
    with ExitStack() as stack:
        for broker in (source, target):
            stack.callback(broker.discard)
            broker.start()
        yield source, target


def test_every_job_runs_on_either_broker(brokers: tuple[Broker, Broker], tmp_path: Path) -> None:
    source, target = brokers
    jobs, demo = Jobs(tmp_path), tmp_path / "demo"
    ends = ["--source", source.bootstrap, "--target", target.bootstrap]
    started = jobs.start_module(
        "kwire.pipeline.demo", str(demo), "--limit", str(FLIGHTS), "--master", MASTER, *ends
    )
    output_of(started, seconds=DEMO_S)
    outcome = {path.stem: path.read_text() for path in demo.glob("*.out")}
    assert outcome["replay"] == f"{FLIGHTS} events into flights\n"
    for name in ("audit-archive", "audit-restored"):
        assert f"clean: both sides have the same {FLIGHTS} records" in outcome[name], outcome[name]
    assert (demo / "index.html").exists()

    # An archive of the broker's files, while the broker runs, equals an archive over the network.
    files = {"path": source.properties["log.dirs"], "subscribe": "flights"}
    own = str(tmp_path / "of-files")
    archive = {"directory": own, "trigger": "availableNow"}
    archived = jobs.run("archive", {"input": {"format": "kwire", "options": files}, "archive": archive})
    assert f"{FLIGHTS} records" in archived
    audit = {
        "audit": {"window": "30 days"},
        "left": {"format": "archive", "directory": str(demo / "archive")},
        "right": {"format": "archive", "directory": own},
    }
    assert f"clean: both sides have the same {FLIGHTS} records" in jobs.run("audit", audit)
    # A second run finds no new records.
    path = str(demo / "archive.toml")
    again = jobs.start_module("kwire.pipeline.cli", "archive", "--config", path, "--master", MASTER)
    assert "0 commits" in output_of(again)
