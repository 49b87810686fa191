"""The jobs of the pipeline on either broker, over the wire and over its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.reference import HERE, spark_jars, spark_python
from pipeline.demo import Step, run, steps

FLIGHTS = 3_000
MASTER = "local[2]"


@pytest.fixture(params=[Kwire, ApacheKafka], ids=["kwire", "apache"])
def brokers(request: pytest.FixtureRequest, only: str) -> Iterator[tuple[Broker, Broker]]:
    """Two of a kind: where the events are, and where they are restored to."""
    if only and only != request.param.name.split()[0].lower():
        pytest.skip(f"only {only} was asked for")
    source, target = request.param(), request.param()
    with ExitStack() as stack:
        for broker in (source, target):
            stack.callback(broker.discard)
            broker.start()
        yield source, target


@pytest.fixture
def spark_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent))
    monkeypatch.setenv("PYSPARK_PYTHON", spark_python())
    monkeypatch.setenv("KWIRE_SPARK_JARS", str(spark_jars()[0].parent))


def of_files(broker: Broker) -> dict[str, Any]:
    """The same topic, from the broker's files."""
    path = broker.properties["log.dirs"]
    return {"format": "kwire", "options": {"path": path, "subscribe": "flights"}}


@pytest.mark.usefixtures("spark_environment")
def test_every_job_runs_on_either_broker(brokers: tuple[Broker, Broker], tmp_path: Path) -> None:
    source, target = brokers

    def said(step: Step) -> str:
        return run(step, tmp_path, MASTER, spark_python())[0]

    outcome = {step.name: said(step) for step in steps(tmp_path, source.bootstrap, target.bootstrap, FLIGHTS)}
    assert outcome["replay"] == f"{FLIGHTS} events into flights"
    assert f"{FLIGHTS} records" in outcome["archive"]
    for name in ("audit-archive", "audit-restored"):
        assert outcome[name].startswith(f"clean: {FLIGHTS} records"), outcome[name]
    # The archive of the broker's files, while it has them open, is that of the wire.
    files = {"format": "archive", "directory": str(tmp_path / "of-files")}
    archived = said(
        Step(
            "archive",
            "archive-of-files",
            "",
            {
                "input": of_files(source),
                "archive": {"directory": files["directory"], "trigger": "availableNow"},
            },
        )
    )
    assert f"{FLIGHTS} records" in archived
    wire = {"format": "archive", "directory": str(tmp_path / "archive")}
    compared = said(
        Step("audit", "audit-of-files", "", {"audit": {"window": "30 days"}, "left": wire, "right": files})
    )
    assert compared.startswith(f"clean: {FLIGHTS} records"), compared
    # Again, and nothing is new.
    again = steps(tmp_path, source.bootstrap, target.bootstrap, FLIGHTS)[1]
    assert said(again).startswith("0 commits"), again
