"""Each safeguard of the quorum is needed: without it, some seed of the simulation fails."""

from __future__ import annotations

import pytest

from simulation.quorum.breakage import BREAKAGES
from simulation.quorum.history import History
from simulation.storage.breakage import Breakage
from tests.simulation import seeds


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_bugs_made_by_hand_are_found(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.find(breakage, monkeypatch, History, "simulation.quorum")
