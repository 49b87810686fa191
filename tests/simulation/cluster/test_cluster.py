"""Some seeds of the simulated cluster. `make simulate` runs more."""

from __future__ import annotations

from simulation.cluster.history import History
from tests.simulation import seeds


def test_invariants_hold_after_every_step() -> None:
    seeds.check_seeds(range(120), History, "simulation.cluster")


def test_same_seed_gives_the_same_transcript() -> None:
    seeds.check_determinism(History)
