"""Requests for configurations that are refused, all of them or one by one: as by Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from kwire.errors import ErrorCode
from kwire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
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


def test_where_no_topic_is_deleted_the_code_says_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    topic_id = rig.node.image.topics["t"].topic_id
    monkeypatch.setattr(rig.node.config, "delete_topic_enable", False)
    for version in range(1, 7):
        request = DeleteTopicsRequest(timeout_ms=1000)
        if version < 6:
            request.topic_names = ["t", "nope", "t"]
            named = [(name, bytes(16)) for name in request.topic_names]
        else:
            named = [("t", bytes(16)), (None, topic_id), (None, bytes(16))]
            request.topics = [DeleteTopicState(name=name, topic_id=each) for name, each in named]
        answer = rig.call(version, request)
        assert [(topic.name, topic.topic_id) for topic in answer.responses] == named
        code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        assert {(topic.error_code, topic.error_message) for topic in answer.responses} == {(code, None)}
    assert "t" in rig.node.image.topics
