"""Exactly once under SIGKILL: kwire, Apache Kafka, and kwire with faults that have to be found."""

from __future__ import annotations

import pytest

from interop.brokers import ApacheKafka, Broker, Kwire
from interop.exactly_once.faults import DELAYS, FAULTS
from interop.exactly_once.faulty import FaultyKwire
from interop.exactly_once.ledger import Outcome
from interop.exactly_once.load import SETTINGS, Outcomes, Plan, kill_under_load

KILLS = 50
COMMITS_A_KILL = 8
"""Fewer would mean that the load has not been one."""
LOOKS = 3
"""A fault is found only where a kill comes at the right moment, which a busy machine makes rarer."""

GIVES_UP_MARKERS = "these partitions are likely deleted already and hence can be skipped"
"""Apache Kafka says so where a restarted coordinator, not knowing the leaders yet, ends a transaction without
the markers of some partitions: what is in these stays open, or ends as the producer's next transaction does.
"""
FOLLOWS_FROM_THAT = {"stuck", "lost", "torn", "aborted", "unread"}


class TalkativeApacheKafka(ApacheKafka):
    """Tells also what its transaction coordinator does about markers."""

    def command(self) -> list[str]:
        java, *arguments = super().command()
        return [java, "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info", *arguments]


def run(broker: Broker, plan: Plan) -> tuple[Outcomes, str]:
    """What came of a plan, and what the broker logged."""
    try:
        outcomes = kill_under_load(broker, plan)
        print(outcomes)
        return outcomes, broker.log_text()
    finally:
        broker.discard()


def test_kwire_is_killed_fifty_times() -> None:
    outcomes, _ = run(Kwire(SETTINGS), Plan(KILLS))
    assert not outcomes.findings, str(outcomes)
    assert outcomes.count(Outcome.COMMITTED) > KILLS * COMMITS_A_KILL, str(outcomes)


def test_the_judge_finds_nothing_in_apache_kafka() -> None:
    # Its first look for timeouts comes after the default 10 s, when a restarted broker knows the leaders.
    settings = {key: value for key, value in SETTINGS.items() if not key.startswith("transaction.")}
    plan = Plan(3, longest_life_s=6, early_kills=0, pause_s=0.5)
    outcomes, logged = run(TalkativeApacheKafka(settings), plan)
    explained = FOLLOWS_FROM_THAT if GIVES_UP_MARKERS in logged else set()
    unexplained = [finding for finding in outcomes.findings if finding.kind not in explained]
    assert not unexplained, str(outcomes)
    assert outcomes.count(Outcome.COMMITTED) > 3 * COMMITS_A_KILL, str(outcomes)


def test_the_judge_finds_nothing_where_kwire_is_only_slow() -> None:
    outcomes, _ = run(FaultyKwire(DELAYS, SETTINGS), Plan(4))
    assert not outcomes.findings, str(outcomes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    found: set[str] = set()
    for _ in range(LOOKS):
        outcomes, _ = run(FaultyKwire(name, SETTINGS), Plan(4, longest_life_s=2.5))
        found |= {finding.kind for finding in outcomes.findings}
        if found & FAULTS[name].found_as:
            return
    pytest.fail(f"found are only {sorted(found)}; in the end {outcomes}")
