"""Exactly-once delivery while the broker is killed. exactly_once/test_checker.py tests the checker."""

from __future__ import annotations

from interop.brokers import Kwire
from interop.exactly_once.ledger import Outcome
from interop.exactly_once.load import COMMITS_PER_KILL, SETTINGS, Plan, run_plan

KILLS = 50


def test_exactly_once_holds_over_fifty_kills() -> None:
    outcomes, _ = run_plan(Kwire(SETTINGS), Plan(KILLS))
    assert not outcomes.findings, str(outcomes)
    assert outcomes.count(Outcome.COMMITTED) > KILLS * COMMITS_PER_KILL, str(outcomes)
