"""Each safeguard of replication is needed: without it, some seed of the simulated cluster fails."""

from __future__ import annotations

import pytest

from kwire.testing.cluster.breakage import BREAKAGES
from kwire.testing.cluster.history import History
from kwire.testing.simulation.breakage import Breakage
from kwire.testing.simulation.run import failure_of

MODULE = "kwire.testing.cluster"
ENOUGH_SEEDS = 1000
"""Within so many seeds each is found, should the one that found it go another way now."""


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_bugs_made_by_hand_are_found(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    breakage.make(monkeypatch.setattr)
    seeds = (breakage.seed, *range(ENOUGH_SEEDS))
    failure = next(filter(None, (failure_of(seed, History, MODULE) for seed in seeds)), None)
    assert failure is not None, f"{breakage.name} goes unnoticed"
    assert f"replay with: python -m {MODULE} --seed" in failure
