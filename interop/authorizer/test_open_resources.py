"""Some APIs on brokers with `allow.everyone.if.no.acl.found`."""

from __future__ import annotations

import pytest

import interop.authorizer.cases  # noqa: F401 - adds the cases
from interop.authorizer.case import CASES
from interop.authorizer.comparison import Worlds, compare_worlds
from interop.scenario import Difference

APIS = (
    "Produce",
    "Fetch",
    "Metadata",
    "InitProducerId",
    "DescribeGroups",
    "DescribeConfigs",
    "ListTransactions",
)


@pytest.mark.parametrize("api", APIS)
def test_rights(api: str, open_worlds: Worlds, differences: list[Difference]) -> None:
    compare_worlds(api, open_worlds, lambda world: [case.observe(world) for case in CASES[api]], differences)
