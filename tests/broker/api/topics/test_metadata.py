"""Metadata in each version, and automatic topic creation."""

from __future__ import annotations

from typing import Any

import pytest

from kwire.broker.metadata.image import PartitionImage
from kwire.wire.errors import ErrorCode
from kwire.wire.messages.describe_cluster import DescribeClusterRequest
from kwire.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kwire.wire.primitives import Uuid
from tests.node_harness import NodeHarness


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a", ErrorCode.NONE),
        ("__consumer_offsets", ErrorCode.NONE),
        # Its directory would be that of the metadata log.
        ("__cluster_metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_topics_with_valid_names_are_created_on_first_use(name: str, code: ErrorCode) -> None:
    harness = NodeHarness()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    harness.call(12, request)
    harness.host.advance(1000)
    (topic,) = harness.call(12, request).topics
    assert topic.error_code == code
    assert bool(topic.partitions) == (code == ErrorCode.NONE)


NOT_REQUESTED = -(2**31)


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("a", partitions=2)
    harness.create("__consumer_offsets")
    return harness


def fetch_metadata(harness: NodeHarness, version: int, names: list[str] | None, **fields: Any) -> Any:
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    return harness.call(version, MetadataRequest(topics=topics, **fields))


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_the_cluster_in_every_version(harness: NodeHarness, version: int) -> None:
    response = fetch_metadata(harness, version, ["a"])
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (
        1,
        *harness.node.endpoints([1], "PLAINTEXT")[0][1:3],
    )
    (topic,) = response.topics
    assert (topic.name, topic.error_code, topic.is_internal) == ("a", 0, False)
    assert [(one.partition_index, one.leader_id) for one in topic.partitions] == [(0, 1), (1, 1)]
    assert all(one.replica_nodes == one.isr_nodes == [1] for one in topic.partitions)
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id == harness.node.cluster_id
    if version >= 7:
        assert {one.leader_epoch for one in topic.partitions} == {0}
    if version >= 10:
        assert topic.topic_id == harness.node.image.topics["a"].topic_id


def test_the_own_broker_is_returned_if_all_are_fenced(harness: NodeHarness) -> None:
    [described] = fetch_metadata(harness, 13, ["a"]).brokers
    image = harness.node.image
    image.brokers = {1: image.brokers[1]._replace(fenced=True)}
    response = fetch_metadata(harness, 13, ["a"])
    assert response.brokers == [described]
    assert response.controller_id == -1


def test_the_responding_broker_is_the_controller_unless_it_is_fenced(harness: NodeHarness) -> None:
    """A random other broker may have failed, and its session may not have timed out yet."""
    for broker_id in (2, 3):
        harness.add_broker(broker_id)
    harness.add_broker(4, fenced=True)

    def controllers() -> set[int]:
        described = harness.call(2, DescribeClusterRequest())
        return {fetch_metadata(harness, 13, []).controller_id, described.controller_id}

    assert controllers() == {1}
    image = harness.node.image
    image.brokers = {**image.brokers, 1: image.brokers[1]._replace(fenced=True)}
    assert set().union(*(controllers() for _ in range(20))) == {2, 3}


@pytest.mark.parametrize("version", [0, 1, 4, 9, 13])
def test_null_and_empty_topic_lists(harness: NodeHarness, version: int) -> None:
    all_topics = {"a": False, "__consumer_offsets": version >= 1}
    without_names = {topic.name: topic.is_internal for topic in fetch_metadata(harness, version, []).topics}
    assert without_names == (all_topics if version == 0 else {})
    if version >= 1:
        assert {
            topic.name: topic.is_internal for topic in fetch_metadata(harness, version, None).topics
        } == all_topics


def test_a_topic_named_twice_is_returned_once(harness: NodeHarness) -> None:
    assert [topic.name for topic in fetch_metadata(harness, 9, ["a", "a"]).topics] == ["a"]


def test_an_unknown_topic_is_not_created_if_auto_creation_is_disabled(harness: NodeHarness) -> None:
    response = fetch_metadata(harness, 9, ["gone", "a b"], allow_auto_topic_creation=False)
    assert {topic.name: topic.error_code for topic in response.topics} == {
        "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    harness.host.advance(1_000)
    assert "gone" not in harness.node.image.topics
    other = NodeHarness(**{"auto.create.topics.enable": "false"})  # type: ignore[arg-type]
    fetch_metadata(other, 9, ["gone"], allow_auto_topic_creation=True)
    other.host.advance(1_000)
    assert "gone" not in other.node.image.topics


def test_topics_are_found_by_id(harness: NodeHarness) -> None:
    known, unknown = harness.node.image.topics["a"].topic_id, Uuid(b"\7" * 16)
    topics = [MetadataRequestTopic(name=None, topic_id=one) for one in (known, unknown, known)]
    # If one topic is requested by id, topics that are requested by name are omitted.
    topics.append(MetadataRequestTopic(name="__consumer_offsets"))
    response = harness.call(12, MetadataRequest(topics=topics))
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("a", known, ErrorCode.NONE),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize(
    ("version", "topic"),
    [
        (10, MetadataRequestTopic(name="a", topic_id=Uuid(b"\7" * 16))),
        (11, MetadataRequestTopic(name=None)),
        (12, MetadataRequestTopic(name=None)),
    ],
)
def test_a_topic_without_name_or_id_is_refused(
    harness: NodeHarness, version: int, topic: MetadataRequestTopic
) -> None:
    response = harness.call(version, MetadataRequest(topics=[topic]))
    assert [one.error_code for one in response.topics] == [ErrorCode.INVALID_REQUEST]


def test_authorized_operations_are_returned_on_request(harness: NodeHarness) -> None:
    response = fetch_metadata(harness, 9, ["a"])
    assert response.topics[0].topic_authorized_operations == NOT_REQUESTED
    assert fetch_metadata(harness, 8, ["a"]).cluster_authorized_operations == NOT_REQUESTED
    described = fetch_metadata(
        harness,
        8,
        ["a"],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert described.topics[0].topic_authorized_operations == 0b110111111000
    assert described.cluster_authorized_operations == 0b1111110100000 | 0b100000


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.LEADER_NOT_AVAILABLE),
        (5, ErrorCode.LEADER_NOT_AVAILABLE),
        (6, ErrorCode.LISTENER_NOT_FOUND),
        (13, ErrorCode.LISTENER_NOT_FOUND),
    ],
)
def test_an_unknown_listener_has_no_leaders(harness: NodeHarness, version: int, code: ErrorCode) -> None:
    client = harness.connect(listener="ELSEWHERE")
    client.submit(version, MetadataRequest(topics=[MetadataRequestTopic(name="a")]))
    harness.turn()
    response = client.receive(version, MetadataRequest)
    assert response.brokers == []
    for partition in response.topics[0].partitions:
        assert (partition.error_code, partition.leader_id) == (code, -1)
        assert partition.offline_replicas == ([1] if version >= 5 else [])


@pytest.mark.parametrize("version", [0, 1, 5, 13])
def test_only_v0_omits_unreachable_replicas(harness: NodeHarness, version: int) -> None:
    """In v0, which has no offline replicas, an error indicates that there are more."""
    harness.add_broker(2, fenced=True)
    harness.add_broker(3, listener="ELSEWHERE")
    harness.add_broker(4)
    harness.add_topic(
        "b",
        PartitionImage(replicas=(1, 2, 4), isr=(1, 2), leader=1),
        PartitionImage(replicas=(4, 3, 1), isr=(4,), leader=4),
        PartitionImage(replicas=(4, 5), isr=(4, 5), leader=5),
        PartitionImage(replicas=(4, 1), isr=(1, 4), leader=1),
    )
    described = [
        (one.error_code, one.leader_id, one.replica_nodes, one.isr_nodes)
        for one in fetch_metadata(harness, version, ["b"]).topics[0].partitions
    ]
    no_leader, fewer = ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE
    if version == 0:
        assert described == [
            (fewer, 1, [1, 4], [1]),
            (fewer, 4, [4, 1], [4]),
            (no_leader, -1, [4], [4]),
            (ErrorCode.NONE, 1, [4, 1], [1, 4]),
        ]
    else:
        assert described == [
            (ErrorCode.NONE, 1, [1, 2, 4], [1, 2]),
            (ErrorCode.NONE, 4, [4, 3, 1], [4]),
            (no_leader, -1, [4, 5], [4, 5]),
            (ErrorCode.NONE, 1, [4, 1], [1, 4]),
        ]
