"""Some hundred seeds of the quorum's state machines. `make simulate` runs more."""

from __future__ import annotations

from simulation.quorum.history import History
from tests.simulation import seeds


def test_invariants_hold_after_every_step() -> None:
    seeds.check_seeds(range(200), History, "simulation.quorum")


def test_same_seed_gives_the_same_transcript() -> None:
    seeds.check_determinism(History)
