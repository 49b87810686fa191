"""A simulated cluster, whole and in trouble: some seeds. `make simulate` runs as many as one likes."""

from __future__ import annotations

from simulation.cluster.history import History
from tests.simulation import seeds


def test_every_promise_holds_after_every_step() -> None:
    seeds.hold(range(120), History, "simulation.cluster")


def test_a_seed_decides_everything() -> None:
    seeds.decide_everything(History)
