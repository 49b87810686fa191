"""Each safeguard of the quorum is needed: without it, some seed of the simulation fails."""

from __future__ import annotations

import pytest

from kwire.testing.quorum.breakage import BREAKAGES
from kwire.testing.quorum.history import History
from kwire.testing.simulation.breakage import Breakage
from tests.testing import seeds


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_bugs_made_by_hand_are_found(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.find(breakage, monkeypatch, History, "kwire.testing.quorum")
