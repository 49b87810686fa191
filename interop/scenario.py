"""Scenarios, and the comparison of what they observe on two brokers.

A scenario is a function that returns a JSON-like observation of a broker. A scenario contains no expected
values: the observation of Apache Kafka is the expected one.
"""

from __future__ import annotations

import fnmatch
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interop.brokers import Broker

Observe = Callable[[Broker], Any]


@dataclass(frozen=True)
class Scenario:
    """A named observation with a time limit."""

    name: str
    observe: Observe
    seconds: float
    needs: str = ""
    is_alone: bool = False
    """Whether the observation is independent of what earlier scenarios left on the broker."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    seconds: float = 60.0, needs: str = "", *, is_alone: bool = False
) -> Callable[[Observe], Observe]:
    """Return a decorator that registers a scenario. ``needs`` is an optional requirement like ``spark``."""

    def register(observe: Observe) -> Observe:
        name = f"{observe.__module__.rpartition('.')[2]}.{observe.__name__}"
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, observe, seconds, needs, is_alone)
        return observe

    return register


class Failed(Exception):
    """A scenario raised an exception or exceeded its time limit. The text contains the traceback."""


def run(scenario: Scenario, broker: Broker) -> Any:
    """Run the scenario in a thread and return its observation.

    Raises Failed, also if a client library hangs until the time limit.
    """
    outcome: list[Any] = []
    problem: list[str] = []

    def body() -> None:
        try:
            outcome.append(plain(scenario.observe(broker)))
        except BaseException:
            problem.append(traceback.format_exc())

    thread = threading.Thread(target=body, name=scenario.name, daemon=True)
    thread.start()
    thread.join(scenario.seconds)
    if thread.is_alive():
        raise Failed(f"{scenario.name} on {broker.name}: not finished after {scenario.seconds:.0f} s")
    if problem:
        raise Failed(problem[0])
    return outcome[0]


def plain(value: Any) -> Any:
    """Convert a value to JSON types: tuples and sets become lists, bytes become text, keys become strings."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return data.decode() if data.isascii() and data.decode().isprintable() else f"0x{data.hex()}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


@dataclass(frozen=True)
class Difference:
    """A place in the observation where the two brokers differ."""

    scenario: str
    path: str
    apache: Any
    kwire: Any
    reason: str = ""


def compare(name: str, apache: Any, kwire: Any, path: str = "") -> list[Difference]:
    """Return all differences between the observations of Apache Kafka and kwire."""
    if isinstance(apache, dict) and isinstance(kwire, dict):
        found = []
        for key in [*apache, *(key for key in kwire if key not in apache)]:
            found += compare(name, apache.get(key, "(absent)"), kwire.get(key, "(absent)"), f"{path}/{key}")
        return found
    if isinstance(apache, list) and isinstance(kwire, list) and len(apache) == len(kwire):
        found = []
        for index, (left, right) in enumerate(zip(apache, kwire, strict=True)):
            found += compare(name, left, right, f"{path}/{index}")
        return found
    same = apache == kwire and isinstance(apache, bool) == isinstance(kwire, bool)
    return [] if same else [Difference(name, path or "/", apache, kwire)]


def explain(difference: Difference, known: list[tuple[str, str, str]]) -> Difference:
    """Return the difference with the reason of the first known difference that matches it.

    `known` contains (scenario, path, reason). Without a match, the difference is returned unchanged.
    """
    for scenario_pattern, path_pattern, reason in known:
        if fnmatch.fnmatchcase(difference.scenario, scenario_pattern) and fnmatch.fnmatchcase(
            difference.path, path_pattern
        ):
            return Difference(
                difference.scenario, difference.path, difference.apache, difference.kwire, reason
            )
    return difference


def table(differences: list[Difference]) -> str:
    """Return the differences as printable text, one or more lines per difference."""
    lines = []
    for difference in differences:
        lines.append(f"{difference.scenario}  {difference.path}")
        lines.append(f"    Apache Kafka: {shorten(difference.apache)}")
        lines.append(f"    kwire:        {shorten(difference.kwire)}")
        if difference.reason:
            lines.append(f"    known:        {difference.reason}")
    return "\n".join(lines)


def shorten(value: Any, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 20]} … ({len(text)})"
