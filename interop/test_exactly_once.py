"""Exactly once under SIGKILL. That its judge finds what is wrong is held in exactly_once/test_judge.py."""

from __future__ import annotations

from interop.brokers import Kwire
from interop.exactly_once.ledger import Outcome
from interop.exactly_once.load import COMMITS_A_KILL, SETTINGS, Plan, outcomes_of

KILLS = 50


def test_kwire_is_killed_fifty_times() -> None:
    outcomes, _ = outcomes_of(Kwire(SETTINGS), Plan(KILLS))
    assert not outcomes.findings, str(outcomes)
    assert outcomes.count(Outcome.COMMITTED) > KILLS * COMMITS_A_KILL, str(outcomes)
