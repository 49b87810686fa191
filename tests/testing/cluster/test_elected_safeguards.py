"""Each safeguard of elected controllers is needed: without it, some seed of their simulation fails."""

from __future__ import annotations

import pytest

from kwire.testing.cluster.elected import MODULE, elected
from kwire.testing.cluster.elected_breakage import BREAKAGES
from kwire.testing.simulation.breakage import Breakage
from tests.testing import seeds


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_bugs_made_by_hand_are_found(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.find(breakage, monkeypatch, elected, MODULE)
