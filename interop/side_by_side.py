"""A scenario against Apache Kafka and against kwire, in turn, and what differs."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from interop.brokers import Broker
from interop.known_differences import KNOWN
from interop.reference import HERE
from interop.scenario import SCENARIOS, Difference, Failed, Scenario, compare, explain, run, table

if TYPE_CHECKING:
    from interop.conftest import Record

RAW = "raw_"
"""What the modules of scenarios are called that send bytes of their own, and run no client."""


def scenarios(*, raw: bool) -> pytest.MarkDecorator:
    """Have a test be given all scenarios that are raw, or all others: each half has brokers of its own."""
    for module in sorted((HERE / "scenarios").glob("*.py")):
        if module.stem != "__init__":
            importlib.import_module(f"interop.scenarios.{module.stem}")
    chosen = {name: one for name, one in SCENARIOS.items() if name.startswith(RAW) == raw}
    return pytest.mark.parametrize("scenario", chosen.values(), ids=chosen.keys())


def hold(
    scenario: Scenario,
    apache: Broker | None,
    kwire: Broker | None,
    record: Record,
    differences: list[Difference],
    *,
    at_once: bool = False,
) -> None:
    """Fail where kwire does something else than Apache Kafka does, or did when it was last asked.

    They are asked one after the other, or `at_once` where a scenario mostly waits.
    """
    if kwire is not None and kwire.process is not None and kwire.process.poll() is not None:
        kwire.process = None
        kwire.start()
    with ThreadPoolExecutor(2 if at_once else 1) as asking:
        asked = {broker: asking.submit(run, scenario, broker) for broker in (apache, kwire) if broker}
    if apache is not None:
        expected = asked[apache].result()
        record.save(scenario.name, expected)
    else:
        expected = record.load(scenario.name)
    if kwire is None:
        return
    try:
        actual = asked[kwire].result()
    except Failed as failed:
        text = str(failed)
        differences.append(Difference(scenario.name, "/", "finishes", text.strip().splitlines()[-1]))
        pytest.fail(text)
    found = [explain(difference, KNOWN) for difference in compare(scenario.name, expected, actual)]
    differences.extend(found)
    unexplained = [difference for difference in found if not difference.reason]
    if unexplained:
        pytest.fail("\n" + table(unexplained), pytrace=False)
