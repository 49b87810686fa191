"""Simulated clusters whose controllers are elected: some seeds."""

from __future__ import annotations

from simulation.cluster.elected import MODULE, elected
from tests.simulation import seeds


def test_every_promise_holds_whoever_is_elected() -> None:
    seeds.hold(range(40), elected, MODULE)
