"""Checks of settings on the broker, before it forwards them to the controller."""

from __future__ import annotations

import pytest

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.node_harness import NodeHarness


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("node.id", "7", "Cannot update these configs dynamically: [node.id]"),
        ("background.threads", "1000", "should not be greater than double the current value 10"),
        ("log.cleaner.threads", "0", "/ by zero"),
        ("log.cleaner.threads", "9", "cannot be increased to more than double the current value 1"),
        ("leader.replication.throttled.rate", "-1", "Value must be at least 0"),
        ("ssl.keystore.location", "/x", "only per-listener using the listener prefix"),
        ("ssl.engine.factory.class", "x", "Class x could not be found."),
        ("listeners", "x", "Unable to parse a listener name from x"),
        ("metric.reporters", "nosuch.Class", "update of Set(metric.reporters) failed"),
    ],
)
def test_invalid_dynamic_settings_are_refused(
    harness: NodeHarness, name: str, value: str, error: str
) -> None:
    change = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
    response = harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert error in response.error_message


@pytest.mark.parametrize(
    "name", ["cordoned.log.dirs", "ssl.provider", "listener.name.plaintext.ssl.provider"]
)
def test_per_broker_settings_cannot_be_set_for_all_brokers(harness: NodeHarness, name: str) -> None:
    codes = []
    for resource_name in ("", "1"):
        change = AlterableConfig(name=name, config_operation=0, value="")
        resource = AlterConfigsResource(resource_type=4, resource_name=resource_name, configs=[change])
        response = harness.call(1, IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
        codes.append(response.error_code)
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
