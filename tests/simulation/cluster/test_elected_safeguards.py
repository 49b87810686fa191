"""Without any of their safeguards, clusters with several controllers fail under some seed."""

from __future__ import annotations

import pytest

from simulation.cluster.elected import MODULE, elected_history
from simulation.cluster.elected_planted_bugs import PLANTED_BUGS
from simulation.storage.planted_bugs import PlantedBug
from tests.simulation import seeds


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.check_bug_is_found(bug, monkeypatch, elected_history, MODULE)
