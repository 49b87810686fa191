"""Error responses to complete requests, compared with Apache Kafka's, and when they are sent."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from kwire.broker.api.request.error_responses import (
    ITEM_ERRORS,
    SPECIAL,
    WITH_DEFAULT_MESSAGE,
    error_response,
)
from kwire.broker.api.request.supported_apis import SUPPORTED_APIS
from kwire.wire.codegen import decode, encode
from kwire.wire.errors import ApiError, ErrorCode, WireError
from kwire.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.metadata import MetadataRequest
from kwire.wire.registry import API_VERSIONS
from tests.broker.api.golden import RESPONSES
from tests.node_harness import NodeHarness

MAX_STRING = 32_767
UNREGISTER_BROKER = 64
CASES: dict[int, list[str]] = {
    int(key): list(lines)
    for key, lines in groupby(
        sorted(RESPONSES.read_text(encoding="ascii").splitlines(), key=lambda line: int(line.split()[0])),
        key=lambda line: line.split()[0],
    )
}


def test_the_data_covers_every_supported_version() -> None:
    requested = {(key, int(line.split()[1])) for key, lines in CASES.items() for line in lines}
    assert requested == {
        (key, version) for key, served in SUPPORTED_APIS.items() for version in served.accepted_versions
    }
    assert {*ITEM_ERRORS, *SPECIAL, *WITH_DEFAULT_MESSAGE} <= SUPPORTED_APIS.keys()


@pytest.mark.parametrize("key", CASES)
def test_error_response_equals_kafkas(key: int) -> None:
    # Only UnregisterBroker returns the message of the failure.
    error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "what failed" if key == UNREGISTER_BROKER else None)
    for line in CASES[key]:
        request_line, kafka_response = line.split("\t")
        _, version, requested = request_line.split(" ")
        request, _ = decode(API_VERSIONS[key].request_class, int(version), bytes.fromhex(requested))
        if kafka_response == "none":
            with pytest.raises(WireError):
                error_response(key, int(version), request, error)
        else:
            response = error_response(key, int(version), request, error)
            assert encode(response, int(version)).hex() == kafka_response, (request, response)


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def test_a_response_with_a_too_long_string_becomes_an_error(harness: NodeHarness) -> None:
    client = harness.connect()
    for version in (2, 4, 5, 7):
        for length, code in (
            (MAX_STRING - 81, ErrorCode.INVALID_TOPIC_EXCEPTION),
            (MAX_STRING - 80, ErrorCode.UNKNOWN_SERVER_ERROR),
            (MAX_STRING, ErrorCode.UNKNOWN_SERVER_ERROR),
        ):
            topic = CreatableTopic(name="a" * length, num_partitions=1, replication_factor=1)
            client.submit(version, CreateTopicsRequest(topics=[topic]))
            harness.turn()
            (response,) = client.receive(version, CreateTopicsRequest).topics
            assert (response.error_code, response.name) == (code, topic.name)
            assert (response.error_message is None) == (code == ErrorCode.UNKNOWN_SERVER_ERROR)
    assert not client.channel.closing


@pytest.mark.parametrize(
    ("version", "request_class", "requested"),
    [
        (0, ConsumerGroupDescribeRequest, "group_ids"),
        (1, ConsumerGroupDescribeRequest, "group_ids"),
        (6, DescribeGroupsRequest, "groups"),
    ],
)
def test_the_error_is_set_for_every_requested_group(
    harness: NodeHarness, version: int, request_class: type[Any], requested: str
) -> None:
    harness.create("__consumer_offsets")
    names = ["a" * MAX_STRING, "b"]
    response = harness.call(version, request_class(**{requested: names}))
    assert [group.group_id for group in response.groups] == names
    codes = {group.error_code for group in response.groups}
    assert codes == {ErrorCode.UNKNOWN_SERVER_ERROR}


def test_a_failing_handler_is_an_error_of_every_requested_topic(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in "ab"])
    monkeypatch.setattr("kwire.broker.api.topics.changes.create_topics", lambda *_: 1 // 0)
    response = harness.call(7, request)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("a", -1), ("b", -1)]
    monkeypatch.setattr("kwire.broker.api.topics.metadata.metadata", lambda *_: object())
    assert harness.call(13, MetadataRequest(topics=None)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
