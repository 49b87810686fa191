"""Some seeds of simulated clusters with several controllers."""

from __future__ import annotations

from simulation.cluster.elected import MODULE, elected_history
from tests.simulation import seeds


def test_invariants_hold_with_elected_controllers() -> None:
    seeds.check_seeds(range(40), elected_history, MODULE)
