"""The lines of the audit log for requests, as Apache Kafka 4.3.1 writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from kwire.broker.api.request.audit_log import AuditLog
from kwire.broker.api.request.supported_apis import ListenerRole
from kwire.broker.security.acl import Acl, PatternType, Permission
from kwire.broker.security.authorizer import Operation, ResourceType
from kwire.broker.security.principal import Principal
from kwire.broker.security.standard_authorizer import StandardAuthorizer
from kwire.coordinator.groups.offsets import OffsetCommit, PartitionCommit
from kwire.host.loggers import AUDIT_LOGGER, TRACE
from kwire.wire.batch import NO_LEADER_EPOCH
from kwire.wire.messages import add_partitions_to_txn as transaction
from kwire.wire.messages import consumer_group_heartbeat as consumer
from kwire.wire.messages import create_topics as create
from kwire.wire.messages import fetch, list_offsets, offset_fetch, produce
from kwire.wire.messages.delete_groups import DeleteGroupsRequest
from kwire.wire.messages.describe_groups import DescribeGroupsRequest
from kwire.wire.messages.find_coordinator import FindCoordinatorRequest
from kwire.wire.messages.init_producer_id import InitProducerIdRequest
from kwire.wire.messages.list_groups import ListGroupsRequest
from tests.node_harness import NodeHarness, produce_request

ANN: Final = Principal("User", "ann")
LINE: Final = re.compile(
    r"is (\w+) operation = (\w+) .* on resource = (\S+) .*resourceRefCount = (\d+) based"
)

TRANSACTIONAL: Final[dict[str, Any]] = {
    "transactional": True,
    "producer_id": 1,
    "producer_epoch": 0,
    "base_sequence": 0,
}
Lines = Callable[..., list[str]]


@pytest.fixture
def harness() -> NodeHarness:
    harness = NodeHarness()
    harness.create("t", "hidden")
    harness.call(0, FindCoordinatorRequest(key="team"))
    harness.turn()
    return harness


@pytest.fixture
def lines(harness: NodeHarness, caplog: pytest.LogCaptureFixture) -> Lines:
    """Return a function that sends a request as ann, and returns the lines that it causes."""
    needs = [
        (ResourceType.TOPIC, "t", Operation.READ),
        (ResourceType.TOPIC, "t", Operation.WRITE),
        (ResourceType.GROUP, "team", Operation.DESCRIBE),
        (ResourceType.TRANSACTIONAL_ID, "pay", Operation.WRITE),
    ]
    rules = StandardAuthorizer(frozenset(), allows_without_acls=False).changed(
        added=[
            Acl(kind, name, PatternType.LITERAL, operation, "User:ann", "*", Permission.ALLOW)
            for kind, name, operation in needs
        ]
    )
    harness.node.gate.authorizer = rules
    harness.node.gate.audit_log = AuditLog(harness.host)
    caplog.set_level(TRACE, AUDIT_LOGGER)

    def send(version: int, request: Any, role: ListenerRole = ListenerRole.BROKER) -> list[str]:
        caplog.clear()
        client = harness.connect(principal=ANN, role=role)
        client.send(version, request)
        harness.turn()
        found = []
        for record in caplog.records:
            match = LINE.search(record.getMessage())
            assert match is not None
            result, operation, resource, count = match.groups()
            level = "TRACE" if record.levelno == TRACE else record.levelname
            found.append(f"{level} {result} {operation} {resource} x{count}")
        return found

    return send


def produced(*topics: str, transactional_id: str | None = None, **batch: Any) -> produce.ProduceRequest:
    """Return a Produce with two partitions of each topic."""
    request = produce_request("t", **batch)
    (data,) = request.topic_data[0].partition_data
    other = produce.PartitionProduceData(index=1, records=data.records)
    request.topic_data = [
        produce.TopicProduceData(name=name, partition_data=[data, other]) for name in topics
    ]
    request.transactional_id = transactional_id
    return request


def test_a_produce_counts_the_partitions_of_a_topic(lines: Lines) -> None:
    assert lines(9, produced("t", "hidden")) == [
        "DEBUG Allowed WRITE Topic:LITERAL:t x2",
        "INFO Denied WRITE Topic:LITERAL:hidden x2",
    ]
    assert lines(9, produced("t")) == ["DEBUG Allowed WRITE Topic:LITERAL:t x2"]


@pytest.mark.parametrize("topics", [("t",), ("t", "hidden")])
def test_a_denied_transactional_id_is_the_only_line(lines: Lines, topics: tuple[str, ...]) -> None:
    request = produced(*topics, **TRANSACTIONAL, transactional_id="x")
    assert lines(9, request) == ["INFO Denied WRITE TransactionalId:LITERAL:x x1"]
    assert lines(9, produced(*topics, **TRANSACTIONAL)) == []


def test_a_fetch_counts_the_partitions_of_a_topic(lines: Lines) -> None:
    partitions = [fetch.FetchPartition(partition=index, partition_max_bytes=1) for index in (0, 1, 2)]
    topics = [fetch.FetchTopic(topic=name, partitions=partitions) for name in ("t", "hidden")]
    assert lines(11, fetch.FetchRequest(max_bytes=1, topics=topics)) == [
        "DEBUG Allowed READ Topic:LITERAL:t x3",
        "INFO Denied READ Topic:LITERAL:hidden x3",
    ]


def test_a_topic_that_a_request_names_twice_is_logged_once(lines: Lines) -> None:
    topics = [list_offsets.ListOffsetsTopic(name=name, partitions=[]) for name in ("t", "hidden", "t")]
    assert lines(7, list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics)) == [
        "DEBUG Allowed DESCRIBE Topic:LITERAL:t x2",
        "INFO Denied DESCRIBE Topic:LITERAL:hidden x1",
    ]


def test_an_offset_fetch_logs_a_topic_once_for_each_group(lines: Lines) -> None:
    topics = [
        offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1])
        for name in ("t", "hidden", "t")
    ]
    groups = [
        offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=topics)
        for name in ("team", "hidden-team", "team")
    ]
    once = [
        "DEBUG Allowed DESCRIBE Group:LITERAL:team x1",
        "DEBUG Allowed DESCRIBE Topic:LITERAL:t x2",
        "INFO Denied DESCRIBE Topic:LITERAL:hidden x1",
    ]
    assert lines(8, offset_fetch.OffsetFetchRequest(groups=groups)) == [
        *once,
        "INFO Denied DESCRIBE Group:LITERAL:hidden-team x1",
        *once,
    ]
    named = offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    denied = offset_fetch.OffsetFetchRequest(group_id="hidden-team", topics=[named])
    assert lines(1, denied) == ["INFO Denied DESCRIBE Group:LITERAL:hidden-team x1"]


def test_an_offset_fetch_of_all_topics_logs_each_topic_once(lines: Lines, harness: NodeHarness) -> None:
    commits = [
        PartitionCommit(*(name, index, 1, NO_LEADER_EPOCH, ""), harness.node.image.topics[name].topic_id)
        for name in ("t", "hidden")
        for index in (0, 1)
    ]
    harness.node.groups.commit_offsets(
        OffsetCommit("team", -1, "", None, commits, None, 8), lambda code: None
    )
    harness.turn()
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id="team", topics=None)]
    assert lines(8, offset_fetch.OffsetFetchRequest(groups=groups)) == [
        "DEBUG Allowed DESCRIBE Group:LITERAL:team x1",
        "DEBUG Allowed DESCRIBE Topic:LITERAL:t x1",
        "INFO Denied DESCRIBE Topic:LITERAL:hidden x1",
    ]


def test_add_partitions_to_txn_counts_the_partitions_of_a_topic(lines: Lines) -> None:
    request = transaction.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="pay",
        v3_and_below_topics=[
            transaction.AddPartitionsToTxnTopic(name=name, partitions=partitions)
            for name, partitions in (("t", [0, 1]), ("hidden", [0]), ("t", [2]), ("without-partitions", []))
        ],
    )
    assert lines(3, request) == [
        "DEBUG Allowed WRITE TransactionalId:LITERAL:pay x1",
        "DEBUG Allowed WRITE Topic:LITERAL:t x3",
        "INFO Denied WRITE Topic:LITERAL:hidden x1",
    ]


def test_groups_are_logged_for_each_item_or_once(lines: Lines) -> None:
    denied = "INFO Denied {} Group:LITERAL:g x1"
    assert lines(5, DescribeGroupsRequest(groups=["g", "g"])) == [denied.format("DESCRIBE")] * 2
    assert lines(2, DeleteGroupsRequest(groups_names=["g", "g"])) == [denied.format("DELETE")]


def test_each_subscribed_topic_is_logged(lines: Lines) -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", subscribed_topic_names=["t", "hidden", "t"]
    )
    assert lines(1, request) == ["INFO Denied READ Group:LITERAL:g x1"]


def test_the_first_of_two_sufficient_rights_is_no_incident(lines: Lines) -> None:
    assert lines(0, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)) == [
        "TRACE Denied IDEMPOTENT_WRITE Cluster:LITERAL:kafka-cluster x1",
        "TRACE Denied WRITE Topic:LITERAL:hardcode x0",
    ]
    assert lines(4, ListGroupsRequest()) == ["TRACE Denied DESCRIBE Cluster:LITERAL:kafka-cluster x1"]


def test_the_right_to_describe_configurations_is_checked_for_each_new_topic(lines: Lines) -> None:
    topic = create.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    request = create.CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
    assert lines(5, request) == [
        "TRACE Denied CREATE Cluster:LITERAL:kafka-cluster x1",
        "INFO Denied CREATE Topic:LITERAL:new x1",
        "TRACE Denied DESCRIBE_CONFIGS Topic:LITERAL:new x1",
    ]
