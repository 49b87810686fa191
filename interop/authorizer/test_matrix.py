"""Each API with each set of rights, on Apache Kafka and on kwire: the complete responses must be equal."""

from __future__ import annotations

import pytest

import interop.authorizer.cases  # noqa: F401 - adds the cases
from interop.authorizer.case import CASES
from interop.authorizer.comparison import Worlds, compare_worlds
from interop.raw import by_api
from interop.scenario import Difference

WITHOUT_RIGHTS = {"SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions", "PushTelemetry"}
"""The APIs that need no right."""


@pytest.mark.parametrize("api", CASES)
def test_rights(api: str, worlds: Worlds, differences: list[Difference]) -> None:
    compare_worlds(api, worlds, lambda world: [case.observe(world) for case in CASES[api]], differences)


def test_each_api_has_a_case(worlds: Worlds) -> None:
    _, kwire = worlds
    for listener in ("broker", "controller"):
        served = by_api(
            kwire.client(listener, "admin").call(
                "ApiVersions", 4, ClientSoftwareName="a", ClientSoftwareVersion="1"
            )
        )
        assert served.keys() - CASES.keys() <= WITHOUT_RIGHTS
