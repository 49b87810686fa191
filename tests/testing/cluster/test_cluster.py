"""A simulated cluster, whole and in trouble: some seeds. `make simulate` runs as many as one likes."""

from __future__ import annotations

from kwire.testing.cluster.history import History
from kwire.testing.simulation.run import run_many

MODULE = "kwire.testing.cluster"
SEEDS = range(120)


def test_every_promise_holds_after_every_step() -> None:
    failures = run_many(SEEDS, History, MODULE)
    assert not failures, failures[0]


def test_a_seed_decides_everything() -> None:
    transcripts = []
    for _ in range(2):
        history = History(7)
        history.run()
        transcripts.append(history.transcript)
    assert transcripts[0] == transcripts[1]
