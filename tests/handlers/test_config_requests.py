"""Requests for configurations that are refused, all of them or one by one: as by Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from kwire.errors import ErrorCode
from kwire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.handlers.test_failures import Rig

TOPIC, BROKER = 2, 4
MALFORMED = "This most likely occurs because of a request being malformed by the client library"


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.create("t")
    return made


@pytest.mark.parametrize("unknown", [-1, 0, 1, 64])
def test_a_resource_of_no_type_has_none_of_them_described(rig: Rig, unknown: int) -> None:
    asked = [(TOPIC, "t"), (unknown, "x"), (TOPIC, "nope"), (BROKER, "1")]
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["retention.ms"])
        for kind, name in asked
    ]
    for version in (1, 2, 3, 4):
        answer = rig.call(version, DescribeConfigsRequest(resources=resources))
        assert [(one.resource_type, one.resource_name) for one in answer.results] == asked
        assert {one.error_code for one in answer.results} == {ErrorCode.INVALID_REQUEST}
        assert all(one.error_message.startswith(MALFORMED) for one in answer.results)
        assert not any(one.configs for one in answer.results)
    answer = rig.call(4, DescribeConfigsRequest(resources=[resources[0], resources[2]]))
    assert [one.error_code for one in answer.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
