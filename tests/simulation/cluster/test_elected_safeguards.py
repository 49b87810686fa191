"""Without any of their safeguards, clusters with several controllers fail under some seed."""

from __future__ import annotations

import pytest

from simulation.cluster.elected import MODULE, elected_history
from simulation.cluster.elected_planted_bugs import PLANTED_BUGS
from simulation.storage.planted_bugs import PlantedBug
from tests.simulation import seeds

WITHOUT_SEED = {
    "voters fetch before their log is synced",
    "quorum-state is not durable before outputs are executed",
}
"""Planted bugs for which no seed is known since new quorums elect their leader sooner."""


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug.name in WITHOUT_SEED:
        pytest.skip("no seed is known that finds this bug")
    seeds.check_bug_is_found(bug, monkeypatch, elected_history, MODULE)
