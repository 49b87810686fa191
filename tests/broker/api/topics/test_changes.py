"""CreateTopics, DeleteTopics and CreatePartitions on a broker."""

from __future__ import annotations

import pytest

from kwire.broker.config.describe import ConfigSource
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kwire.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kwire.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kwire.wire.primitives import ZERO_UUID, Uuid
from tests.node_harness import NodeHarness


@pytest.fixture
def harness() -> NodeHarness:
    return NodeHarness()


@pytest.mark.parametrize("counts", [(10_000, 1), (9_999, 1)], ids=["too many partitions", "too many records"])
def test_too_many_partitions_or_records_are_an_error_of_every_topic(
    harness: NodeHarness, counts: tuple[int, int]
) -> None:
    requested = [("twice", 1), ("a", counts[0]), ("__cluster_metadata", 1), ("twice", 1), ("b", counts[1])]
    topics = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in requested
    ]
    response = harness.call(7, CreateTopicsRequest(topics=topics, timeout_ms=1_000))
    assert [topic.name for topic in response.topics] == [name for name, _ in requested]
    assert {topic.error_code for topic in response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert len({topic.error_message for topic in response.topics}) == 1
    assert not harness.node.image.topics


def test_with_topic_deletion_disabled_every_topic_has_the_error(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create("t")
    topic_id = harness.node.image.topics["t"].topic_id
    monkeypatch.setattr(harness.node.config, "delete_topic_enable", False)
    for version in range(1, 7):
        request = DeleteTopicsRequest(timeout_ms=1000)
        if version < 6:
            request.topic_names = ["t", "nope", "t"]
            named: list[tuple[str | None, Uuid]] = [(name, ZERO_UUID) for name in request.topic_names]
        else:
            named = [("t", ZERO_UUID), (None, topic_id), (None, ZERO_UUID)]
            request.topics = [DeleteTopicState(name=name, topic_id=each) for name, each in named]
        response = harness.call(version, request)
        assert [(topic.name, topic.topic_id) for topic in response.responses] == named
        code = ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        assert {(topic.error_code, topic.error_message) for topic in response.responses} == {(code, None)}
    assert "t" in harness.node.image.topics


def test_created_topics_are_returned_with_their_configs(harness: NodeHarness) -> None:
    topics = [
        CreatableTopic(name="a", num_partitions=2, replication_factor=1),
        CreatableTopic(name="a b", num_partitions=1, replication_factor=1),
        CreatableTopic(name="c", num_partitions=1, replication_factor=9),
        CreatableTopic(name="twice", num_partitions=1, replication_factor=1),
        CreatableTopic(name="twice", num_partitions=1, replication_factor=1),
        CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1),
    ]
    for version in (2, 7):
        request = CreateTopicsRequest(topics=topics, timeout_ms=1_000, validate_only=version < 7)
        response = harness.call(version, request)
        assert {topic.name: topic.error_code for topic in response.topics} == {
            "a": ErrorCode.NONE,
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "c": ErrorCode.INVALID_REPLICATION_FACTOR,
            "twice": ErrorCode.INVALID_REQUEST,
            "__cluster_metadata": ErrorCode.INVALID_REQUEST,
        }
    (created,) = (topic for topic in response.topics if topic.name == "a")
    assert (created.num_partitions, created.replication_factor) == (2, 1)
    assert {"cleanup.policy", "retention.ms"} <= {config.name for config in created.configs}
    assert set(harness.node.image.topics) == {"a"}


def test_returned_configs_contain_their_source() -> None:
    harness = NodeHarness(None, **{"log.retention.hours": "2"})
    configs = [CreatableTopicConfig(name="segment.ms", value="5000")]
    topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1, configs=configs)
    (created,) = harness.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000)).topics
    described = {config.name: (config.value, config.config_source) for config in created.configs}
    assert described["retention.ms"] == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    assert described["segment.ms"] == ("5000", ConfigSource.TOPIC_CONFIG)
    assert described["flush.ms"] == ("9223372036854775807", ConfigSource.DEFAULT_CONFIG)


def test_a_timeout_of_0_times_out(harness: NodeHarness) -> None:
    topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1)
    response = harness.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=0))
    assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert not harness.node.image.topics


def test_topics_are_deleted_by_name_and_by_id(harness: NodeHarness) -> None:
    harness.create("a", "b", "c")
    ids = {name: topic.topic_id for name, topic in harness.node.image.topics.items()}
    named = [
        ("a", ZERO_UUID),
        (None, ids["b"]),
        (None, Uuid(b"\7" * 16)),
        ("c", ids["c"]),
        ("gone", ZERO_UUID),
    ]
    states = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in named]
    response = harness.call(6, DeleteTopicsRequest(topics=states, timeout_ms=1_000))
    assert {(topic.name, topic.error_code) for topic in response.responses} == {
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("c", ErrorCode.INVALID_REQUEST),
        ("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }
    assert set(harness.node.image.topics) == {"c"}


def test_partitions_are_added_and_not_removed(harness: NodeHarness) -> None:
    harness.create("a", "b", partitions=2)
    requested = [("a", 3), ("b", 1), ("gone", 3), ("twice", 3), ("twice", 3)]
    topics = [CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in requested]
    response = harness.call(3, CreatePartitionsRequest(topics=topics, timeout_ms=1_000))
    assert {result.name: result.error_code for result in response.results} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.INVALID_PARTITIONS,
        "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert [len(harness.node.image.topics[name].partitions) for name in "ab"] == [3, 2]
