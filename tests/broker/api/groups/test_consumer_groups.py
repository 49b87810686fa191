"""Consumer groups of KIP-848 on a complete node: features, topics and racks of the cluster."""

from __future__ import annotations

from typing import Any

from kwire.wire.errors import ErrorCode
from kwire.wire.messages.api_versions import ApiVersionsRequest
from kwire.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, RequestTopicPartitions
from kwire.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kwire.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kwire.wire.messages.delete_topics import DeleteTopicsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.api.groups.client import PROPERTIES, Client

VERSION = 1
GROUP = "g"


class Member:
    """A member of a group on a new node."""

    def __init__(self) -> None:
        self.client = Client()
        self.client.call(4, FindCoordinatorRequest(coordinator_keys=[GROUP]))
        self.client.host.advance(1_000)
        self.epoch = 0

    def create(self, name: str, partitions: int) -> bytes:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        created = self.client.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=1_000)).topics[0]
        assert created.error_code == ErrorCode.NONE
        return bytes(created.topic_id)

    def heartbeat(self, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=self.epoch, **fields
        )
        response = self.client.call(VERSION, request)
        self.epoch = response.member_epoch
        return response

    def join(self, *topics: str) -> Any:
        return self.heartbeat(
            rebalance_timeout_ms=60_000, subscribed_topic_names=list(topics), topic_partitions=[]
        )


def assigned(response: Any) -> dict[bytes, list[int]]:
    return {topic.topic_id: list(topic.partitions) for topic in response.assignment.topic_partitions}


def test_regex_subscriptions_work_after_the_clock_is_set_back() -> None:
    member = Member()
    topics = {name: member.create(name, 1) for name in ("apple", "berry")}
    member.heartbeat(rebalance_timeout_ms=60_000, subscribed_topic_regex="a.*", topic_partitions=[])
    member.client.host.advance(10_000)
    assert assigned(member.heartbeat()) == {topics["apple"]: [0]}
    member.client.host.skew_ms -= 3_600_000
    member.heartbeat(subscribed_topic_regex="b.*")
    member.client.host.advance(1_000)
    assert topics["berry"] in assigned(member.heartbeat(topic_partitions=[]))


def test_assignment_follows_created_grown_and_deleted_topics() -> None:
    member = Member()
    first = member.create("first", 2)
    joined = member.join("first", "second")
    assert (joined.member_epoch, assigned(joined), joined.heartbeat_interval_ms) == (
        2,
        {first: [0, 1]},
        5_000,
    )
    member.client.host.advance(1_000)
    second = member.create("second", 1)
    assert assigned(member.heartbeat()) == {first: [0, 1], second: [0]}
    member.client.host.advance(1_000)
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="second", count=2, assignments=None)], timeout_ms=1_000
    )
    assert member.client.call(3, more).results[0].error_code == ErrorCode.NONE
    assert assigned(member.heartbeat()) == {first: [0, 1], second: [0, 1]}
    member.client.host.advance(1_000)
    member.client.call(5, DeleteTopicsRequest(topic_names=["first"], timeout_ms=1_000))
    assert assigned(member.heartbeat()) == {second: [0, 1]}
    described = member.client.call(1, ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups[0]
    assert described.group_state == "Reconciling"
    # The description omits a deleted topic even before the member has revoked it.
    assert [one.topic_name for one in described.members[0].assignment.topic_partitions] == ["second"]
    reassigned = [RequestTopicPartitions(topic_id=second, partitions=[0, 1])]  # type: ignore[arg-type]
    assert member.heartbeat(topic_partitions=reassigned).member_epoch == 5
    described = member.client.call(1, ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups[0]
    assert described.group_state == "Stable"


def test_without_group_version_1_consumer_groups_are_unsupported() -> None:
    member = Member()
    member.create("t", 1)
    node = member.client.node
    node.image.features = {**node.image.features, "group.version": 0}
    assert member.join("t").error_code == ErrorCode.UNSUPPORTED_VERSION
    described = member.client.call(1, ConsumerGroupDescribeRequest(group_ids=[GROUP, "h"])).groups
    assert [group.error_code for group in described] == [ErrorCode.UNSUPPORTED_VERSION] * 2


def test_without_the_consumer_protocol_joining_is_unsupported() -> None:
    member = Member()
    member.create("t", 1)
    member.client.node.config.group_coordinator_rebalance_protocols = ["classic"]
    assert member.join("t").error_code == ErrorCode.UNSUPPORTED_VERSION
    member.client.node.config.group_coordinator_rebalance_protocols = ["classic", "consumer"]
    assert member.join("t").error_code == ErrorCode.NONE


def test_group_version_is_advertised_and_finalized() -> None:
    client = Client()
    response = client.call(4, ApiVersionsRequest(client_software_name="x", client_software_version="1"))
    supported = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
    finalized = {one.name: one.max_version_level for one in response.finalized_features}
    assert supported["group.version"] == (0, 1)
    assert finalized["group.version"] == 1


def test_topic_hash_includes_the_racks_of_replicas() -> None:
    hashes = set()
    for rack in (None, "here", "there"):
        if rack is not None:
            PROPERTIES["broker.rack"] = rack
        try:
            member = Member()
        finally:
            PROPERTIES.pop("broker.rack", None)
        member.create("t", 1)
        assert member.join("t").error_code == ErrorCode.NONE
        topics = member.client.node.groups.shard_for(GROUP).machine.consumer._topics
        topic = topics.by_name("t")
        assert topic is not None
        hashes.add(tuple(map(tuple, topics.racks(topic))))
    assert hashes == {((),), (("here",),), (("there",),)}
