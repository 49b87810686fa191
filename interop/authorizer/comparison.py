"""An observation of both brokers, and the failure of a test if the observations differ."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from interop.authorizer.world import World
from interop.known_differences import KNOWN
from interop.scenario import Difference, compare, explain, plain, table

Worlds = tuple[World, World]
"""Apache Kafka and kwire."""


def compare_worlds(
    name: str, worlds: Worlds, observe: Callable[[World], Any], differences: list[Difference]
) -> None:
    """Observe both brokers in parallel, and fail if kwire's observation differs from that of Apache Kafka."""
    with ThreadPoolExecutor(2) as executor:
        apache, kwire = executor.map(lambda world: plain(observe(world)), worlds)
    found = [explain(one, KNOWN) for one in compare(f"authorizer.{name}", apache, kwire)]
    differences.extend(found)
    unexplained = [one for one in found if not one.reason]
    if unexplained:
        pytest.fail("\n" + table(unexplained), pytrace=False)
