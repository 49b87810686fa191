"""Simulated clusters whose controllers are elected: some seeds."""

from __future__ import annotations

from kwire.testing.cluster.elected import MODULE, elected
from tests.testing import seeds


def test_every_promise_holds_whoever_is_elected() -> None:
    seeds.hold(range(40), elected, MODULE)
