"""DescribeConfigs and ListConfigResources."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kwire.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.node_harness import NodeHarness

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

MALFORMED = "This most likely occurs because of a request being malformed by the client library"


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("t")
    return harness


@pytest.mark.parametrize("unknown", [-1, 0, 1, 64])
def test_an_unknown_resource_type_fails_all_resources(harness: NodeHarness, unknown: int) -> None:
    resource_names = [(TOPIC, "t"), (unknown, "x"), (TOPIC, "nope"), (BROKER, "1")]
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["retention.ms"])
        for kind, name in resource_names
    ]
    for version in (1, 2, 3, 4):
        response = harness.call(version, DescribeConfigsRequest(resources=resources))
        assert [(one.resource_type, one.resource_name) for one in response.results] == resource_names
        assert {one.error_code for one in response.results} == {ErrorCode.INVALID_REQUEST}
        assert all(one.error_message.startswith(MALFORMED) for one in response.results)
        assert not any(one.configs for one in response.results)
    response = harness.call(4, DescribeConfigsRequest(resources=[resources[0], resources[2]]))
    assert [one.error_code for one in response.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_resources_are_listed_by_type(harness: NodeHarness) -> None:
    def listed(version: int, *types: int) -> list[tuple[int, str]]:
        response = harness.call(version, ListConfigResourcesRequest(resource_types=list(types)))
        assert response.error_code == (ErrorCode.NONE if 3 not in types else ErrorCode.UNSUPPORTED_VERSION)
        return sorted((one.resource_type, one.resource_name) for one in response.config_resources)

    assert listed(1) == [(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1")]
    assert listed(1, TOPIC) == [(TOPIC, "t")]
    assert listed(1, 3) == listed(0) == []


@pytest.mark.parametrize(
    ("kind", "name"), [(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1"), (CLIENT_METRICS, "m"), (GROUP, "g")]
)
def test_named_keys_are_returned_once_in_the_order_of_the_request(
    harness: NodeHarness, kind: int, name: str
) -> None:
    def described(keys: list[str] | None) -> list[str]:
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        response = harness.call(4, DescribeConfigsRequest(resources=[resource]))
        assert response.results[0].error_code == ErrorCode.NONE
        return [one.name for one in response.results[0].configs]

    every = described(None)
    assert len(set(every)) == len(every) > 1
    assert described([]) == every
    assert described(every[::-1]) == every[::-1]
    assert described([every[-1], "no.such.key", every[0], every[-1]]) == [every[-1], every[0]]
    assert described(["no.such.key"]) == []
