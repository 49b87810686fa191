"""Each safeguard of elected controllers is needed: without it, some seed of their simulation fails."""

from __future__ import annotations

import pytest

from simulation.cluster.elected import MODULE, elected
from simulation.cluster.elected_breakage import BREAKAGES
from simulation.storage.breakage import Breakage
from tests.simulation import seeds


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_bugs_made_by_hand_are_found(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.find(breakage, monkeypatch, elected, MODULE)
