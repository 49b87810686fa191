"""Without any of its safeguards, the quorum fails under some seed."""

from __future__ import annotations

import pytest

from simulation.quorum.history import History
from simulation.quorum.planted_bugs import PLANTED_BUGS
from simulation.storage.planted_bugs import PlantedBug
from tests.simulation import seeds


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.check_bug_is_found(bug, monkeypatch, History, "simulation.quorum")
