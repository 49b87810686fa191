"""Each API with each set of rights, on Apache Kafka and on kwire: the complete responses must be equal."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from interop.authorizer.case import CASES
from interop.authorizer.world import World
from interop.known_differences import KNOWN
from interop.reference import HERE
from interop.scenario import Difference, compare, explain, plain, table

for module in sorted((HERE / "authorizer" / "cases").glob("[!_]*.py")):
    importlib.import_module(f"interop.authorizer.cases.{module.stem}")


@pytest.mark.parametrize("api", CASES)
def test_rights(api: str, worlds: tuple[World, World], differences: list[Difference]) -> None:
    def observe(world: World) -> object:
        return plain([case.observe(world) for case in CASES[api]])

    with ThreadPoolExecutor(2) as executor:
        apache, kwire = executor.map(observe, worlds)
    found = [explain(one, KNOWN) for one in compare(f"authorizer.{api}", apache, kwire)]
    differences.extend(found)
    unexplained = [one for one in found if not one.reason]
    if unexplained:
        pytest.fail("\n" + table(unexplained), pytrace=False)
