"""A scenario run against Apache Kafka and kwire, and the comparison of both observations."""

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

RETRIES = 2
"""The number of repeated runs, each on a new Apache Kafka broker, if kwire's observation differs."""
OFFSETS_TOPIC_SECONDS = 30.0
RAW = "raw_"
"""The name prefix of the scenario modules that send hand-made requests instead of using a client library."""


def scenarios(*, raw: bool) -> pytest.MarkDecorator:
    """Parametrize a test with all raw scenarios, or with all scenarios that are not raw."""
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
    """Run a scenario and fail if kwire's observation differs from the one of Apache Kafka.

    If `apache` is None, the stored observation of Apache Kafka is used. With `at_once`, both brokers run the
    scenario in parallel, which is faster for scenarios that mostly wait.

    Apache Kafka's observation may depend on the timing of its threads. So with `alone`, a scenario that found
    a difference runs up to two more times, each on a new Apache Kafka broker. The test passes if kwire's
    observation, which is not repeated, equals one of Apache Kafka's.
    """
    if kwire is not None and kwire.process is not None and kwire.process.poll() is not None:
        kwire.process = None
        kwire.start()
    with ThreadPoolExecutor(2 if at_once else 1) as executor:
        futures = {broker: executor.submit(run, scenario, broker) for broker in (apache, kwire) if broker}
    if apache is None:
        observations = iter([record.load(scenario.name)])
    else:
        observations = _observations(scenario, apache, futures[apache], again=RETRIES if alone else 0)
    expected = next(observations)
    if kwire is None:
        record.save(scenario.name, expected)
        return
    try:
        actual = futures[kwire].result()
    except Failed as failed:
        text = str(failed)
        differences.append(Difference(scenario.name, "/", "finishes", text.strip().splitlines()[-1]))
        pytest.fail(text)
    at_first = found = _differences(scenario, expected, actual)
    for another in observations if _unexplained(found) else ():
        found = _differences(scenario, another, actual)
        if not _unexplained(found):
            expected = another
            warnings.warn(
                f"Apache Kafka behaved like kwire in a second run. Before:\n{table(_unexplained(at_first))}",
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


def _observations(scenario: Scenario, apache: Broker, first: Future[Any], *, again: int) -> Iterator[Any]:
    """Yield the first observation of Apache Kafka, then one observation from each of `again` new brokers.

    Raises Failed if all runs fail.
    """
    failures: list[Failed] = []
    for number in range(1 + again):
        try:
            observation = first.result() if number == 0 else _run_on_new_broker(scenario, type(apache)())
        except Failed as failed:
            failures.append(failed)
            continue
        if failures and len(failures) == number:
            warnings.warn(
                f"The scenario failed on Apache Kafka at first and ran again:\n{failures[0]}", stacklevel=2
            )
        yield observation
    if len(failures) > again:
        raise failures[0]


def _run_on_new_broker(scenario: Scenario, broker: Broker) -> Any:
    """Start `broker`, run the scenario on it, and discard it.

    Raises Failed if the broker does not start or the scenario fails.
    """
    try:
        broker.start()
        make_offsets_topic(broker)
        return run(scenario, broker)
    except (RuntimeError, OSError, AssertionError) as error:
        raise Failed(f"{broker.name} does not start: {error}") from error
    finally:
        broker.discard()


def make_offsets_topic(broker: Broker) -> None:
    """Create __consumer_offsets, so that no scenario depends on an earlier one to create the topic."""
    deadline = time.monotonic() + OFFSETS_TOPIC_SECONDS
    with RawClient(broker.bootstrap) as client:
        while client.call("FindCoordinator", 2, Key="any", KeyType=0)["ErrorCode"]:
            assert time.monotonic() < deadline, f"{broker.name} creates no __consumer_offsets"
            time.sleep(0.1)
