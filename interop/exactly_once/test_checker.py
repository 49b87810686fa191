"""The checker finds each planted fault, and finds nothing in Apache Kafka or in kwire with delays only."""

from __future__ import annotations

import pytest

from interop.brokers import ApacheKafka
from interop.exactly_once.faults import DELAYS, FAULTS
from interop.exactly_once.faulty import FaultyKwire
from interop.exactly_once.ledger import Outcome
from interop.exactly_once.load import COMMITS_PER_KILL, SETTINGS, Plan, run_plan

ATTEMPTS = 3
"""The maximum number of loads per fault. A fault shows only after a kill at the right moment."""

GIVES_UP_MARKERS = "these partitions are likely deleted already and hence can be skipped"
"""Logged by Apache Kafka if a restarted coordinator does not know the partition leaders yet.

The coordinator then skips the markers of a transaction. So the transaction stays open in some partitions
until the producer's next transaction ends there.
"""
FOLLOWS_FROM_THAT = {"stuck", "lost", "torn", "aborted", "unread"}


class VerboseApacheKafka(ApacheKafka):
    """Apache Kafka that also logs how its transaction coordinator handles markers."""

    def command(self) -> list[str]:
        java, *arguments = super().command()
        return [java, "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info", *arguments]


def test_checker_finds_nothing_in_apache_kafka() -> None:
    # The first timeout check runs after the default 10 s. By then, a restarted broker knows the leaders.
    settings = {key: value for key, value in SETTINGS.items() if not key.startswith("transaction.")}
    plan = Plan(3, longest_life_s=6, early_kills=0, pause_s=0.5)
    outcomes, logged = run_plan(VerboseApacheKafka(settings), plan)
    explained = FOLLOWS_FROM_THAT if GIVES_UP_MARKERS in logged else set()
    unexplained = [finding for finding in outcomes.findings if finding.kind not in explained]
    assert not unexplained, str(outcomes)
    assert outcomes.count(Outcome.COMMITTED) > 3 * COMMITS_PER_KILL, str(outcomes)


def test_checker_finds_nothing_with_delays_only() -> None:
    outcomes, _ = run_plan(FaultyKwire(DELAYS, SETTINGS), Plan(4))
    assert not outcomes.findings, str(outcomes)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str) -> None:
    found: set[str] = set()
    for _ in range(ATTEMPTS):
        outcomes, _ = run_plan(FaultyKwire(name, SETTINGS), Plan(4, longest_life_s=2.5))
        found |= {finding.kind for finding in outcomes.findings}
        if found & FAULTS[name].found_as:
            return
    pytest.fail(f"found are only {sorted(found)}; in the end {outcomes}")
