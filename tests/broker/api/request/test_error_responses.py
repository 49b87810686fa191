"""The error of a whole request: each response to it against Apache Kafka's own, and when it is sent."""

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

LONGEST = 32_767
UNREGISTER_BROKER = 64
CASES: dict[int, list[str]] = {
    int(key): list(lines)
    for key, lines in groupby(
        sorted(RESPONSES.read_text(encoding="ascii").splitlines(), key=lambda line: int(line.split()[0])),
        key=lambda line: line.split()[0],
    )
}


def test_kafka_was_asked_of_every_version() -> None:
    asked = {(key, int(line.split()[1])) for key, lines in CASES.items() for line in lines}
    assert asked == {
        (key, version)
        for key, served in SUPPORTED_APIS.items()
        for version in range(max(served.min_version, served.rejected_below), served.max_version + 1)
    }
    assert {*ITEM_ERRORS, *SPECIAL, *WITH_DEFAULT_MESSAGE} <= SUPPORTED_APIS.keys()


@pytest.mark.parametrize("key", CASES)
def test_response(key: int) -> None:
    # UnregisterBroker alone tells what its failure was.
    error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "what failed" if key == UNREGISTER_BROKER else None)
    for line in CASES[key]:
        question, answer = line.split("\t")
        _, version, asked = question.split(" ")
        request, _ = decode(API_VERSIONS[key].request_class, int(version), bytes.fromhex(asked))
        if answer == "none":
            with pytest.raises(WireError):
                error_response(key, int(version), request, error)
        else:
            response = error_response(key, int(version), request, error)
            assert encode(response, int(version)).hex() == answer, (request, response)


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


def test_a_reply_beyond_the_longest_string_is_an_error_instead(harness: NodeHarness) -> None:
    client = harness.connect()
    for version in (2, 4, 5, 7):
        for length, code in (
            (LONGEST - 81, ErrorCode.INVALID_TOPIC_EXCEPTION),
            (LONGEST - 80, ErrorCode.UNKNOWN_SERVER_ERROR),
            (LONGEST, ErrorCode.UNKNOWN_SERVER_ERROR),
        ):
            topic = CreatableTopic(name="a" * length, num_partitions=1, replication_factor=1)
            client.submit(version, CreateTopicsRequest(topics=[topic]))
            harness.turn()
            (answer,) = client.receive(version, CreateTopicsRequest).topics
            assert (answer.error_code, answer.name) == (code, topic.name)
            assert (answer.error_message is None) == (code == ErrorCode.UNKNOWN_SERVER_ERROR)
    assert not client.channel.closing


@pytest.mark.parametrize(
    ("version", "request_class", "asked"),
    [
        (0, ConsumerGroupDescribeRequest, "group_ids"),
        (1, ConsumerGroupDescribeRequest, "group_ids"),
        (6, DescribeGroupsRequest, "groups"),
    ],
)
def test_the_error_goes_to_all_that_was_asked(
    harness: NodeHarness, version: int, request_class: type[Any], asked: str
) -> None:
    harness.create("__consumer_offsets")
    names = ["a" * LONGEST, "b"]
    answer = harness.call(version, request_class(**{asked: names}))
    assert [group.group_id for group in answer.groups] == names
    codes = {group.error_code for group in answer.groups}
    assert codes == {ErrorCode.UNKNOWN_SERVER_ERROR}


def test_a_handler_that_fails_is_an_error_to_all_that_was_asked(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in "ab"])
    monkeypatch.setattr("kwire.broker.api.topics.changes.create_topics", lambda *_: 1 // 0)
    answer = harness.call(7, request)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", -1), ("b", -1)]
    monkeypatch.setattr("kwire.broker.api.topics.metadata.metadata", lambda *_: object())
    assert harness.call(13, MetadataRequest(topics=None)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
