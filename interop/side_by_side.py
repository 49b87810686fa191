"""A scenario against Apache Kafka and against kwire, in turn, and what differs."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from interop.brokers import Broker
from interop.known_differences import KNOWN
from interop.raw_client import RawClient
from interop.reference import HERE
from interop.scenario import SCENARIOS, Difference, Failed, Scenario, compare, explain, run, table

if TYPE_CHECKING:
    from interop.record import Record

ASKED_AGAIN = 2
"""So often Apache Kafka is asked again where kwire differs from it: it need not do the same twice."""
OFFSETS_TOPIC_SECONDS = 30.0
RAW = "raw_"
"""What the modules of scenarios are called that send bytes of their own, and run no client."""


def scenarios(*, raw: bool) -> pytest.MarkDecorator:
    """Have a test be given all scenarios that are raw, or all others: each half has brokers of its own."""
    for module in sorted((HERE / "scenarios").glob("*.py")):
        if module.stem != "__init__":
            importlib.import_module(f"interop.scenarios.{module.stem}")
    chosen = {name: one for name, one in SCENARIOS.items() if name.startswith(RAW) == raw}
    return pytest.mark.parametrize("scenario", chosen.values(), ids=chosen.keys())


def run_and_compare(
    scenario: Scenario,
    apache: Broker | None,
    kwire: Broker | None,
    record: Record,
    differences: list[Difference],
    *,
    at_once: bool = False,
    alone: bool = False,
) -> None:
    """Fail where kwire does something else than Apache Kafka does, or did when it was last asked.

    They are asked one after the other, or `at_once` where a scenario mostly waits. What Apache Kafka does may
    hang on which of its threads comes first. So where a scenario is `alone`, since it sees nothing of what
    others have left, Apache Kafka is asked again when they differ, and kwire is not: what kwire did once has
    to be, as a whole, what Apache Kafka does one time of three.
    """
    if kwire is not None and kwire.process is not None and kwire.process.poll() is not None:
        kwire.process = None
        kwire.start()
    with ThreadPoolExecutor(2 if at_once else 1) as asking:
        asked = {broker: asking.submit(run, scenario, broker) for broker in (apache, kwire) if broker}
    if apache is None:
        answers = iter([record.load(scenario.name)])
    else:
        answers = _answers(scenario, apache, asked[apache], again=ASKED_AGAIN if alone else 0)
    expected = next(answers)
    if kwire is None:
        record.save(scenario.name, expected)
        return
    try:
        actual = asked[kwire].result()
    except Failed as failed:
        text = str(failed)
        differences.append(Difference(scenario.name, "/", "finishes", text.strip().splitlines()[-1]))
        pytest.fail(text)
    at_first = found = _differences(scenario, expected, actual)
    for another in answers if _unexplained(found) else ():
        found = _differences(scenario, another, actual)
        if not _unexplained(found):
            expected = another
            warnings.warn(
                f"Apache Kafka did what kwire did when it was asked again:\n{table(_unexplained(at_first))}",
                stacklevel=2,
            )
            break
    else:
        found = at_first
    if apache is not None:
        record.save(scenario.name, expected)
    differences.extend(found)
    if _unexplained(found):
        pytest.fail("\n" + table(_unexplained(found)), pytrace=False)


def _differences(scenario: Scenario, expected: Any, actual: Any) -> list[Difference]:
    return [explain(difference, KNOWN) for difference in compare(scenario.name, expected, actual)]


def _unexplained(found: list[Difference]) -> list[Difference]:
    return [difference for difference in found if not difference.reason]


def _answers(scenario: Scenario, apache: Broker, first: Future[Any], *, again: int) -> Iterator[Any]:
    """What Apache Kafka does, and then what others do that are new. Failed: none came to an end."""
    failures: list[Failed] = []
    for number in range(1 + again):
        try:
            answer = first.result() if number == 0 else _anew(scenario, type(apache)())
        except Failed as failed:
            failures.append(failed)
            continue
        if failures and len(failures) == number:
            warnings.warn(f"Apache Kafka failed at first, and was asked again:\n{failures[0]}", stacklevel=2)
        yield answer
    if len(failures) > again:
        raise failures[0]


def _anew(scenario: Scenario, broker: Broker) -> Any:
    """What a broker does that is started for it. Failed."""
    try:
        broker.start()
        make_offsets_topic(broker)
        return run(scenario, broker)
    except (RuntimeError, OSError, AssertionError) as error:
        raise Failed(f"{broker.name} does not start: {error}") from error
    finally:
        broker.discard()


def make_offsets_topic(broker: Broker) -> None:
    """Have __consumer_offsets from the start, so that no scenario depends on an earlier one."""
    deadline = time.monotonic() + OFFSETS_TOPIC_SECONDS
    with RawClient(broker.bootstrap) as client:
        while client.call("FindCoordinator", 2, Key="any", KeyType=0)["ErrorCode"]:
            assert time.monotonic() < deadline, f"{broker.name} makes no offsets topic"
            time.sleep(0.1)
