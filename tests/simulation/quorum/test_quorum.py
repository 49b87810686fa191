"""The quorum's machine, simulated: some hundreds of seeds."""

from __future__ import annotations

from simulation.quorum.history import History
from tests.simulation import seeds


def test_every_promise_holds_after_every_step() -> None:
    seeds.hold(range(200), History, "simulation.quorum")


def test_a_seed_decides_everything() -> None:
    seeds.decide_everything(History)
